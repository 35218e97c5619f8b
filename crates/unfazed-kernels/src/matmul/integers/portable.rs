//! Arrays, on any processor, with each kind of dot product: so that tests see what an instruction set would compute that
//! their processor lacks. Every step wraps or saturates as the instructions do.

use std::array::from_fn;

use crate::LANES;
use crate::lanes::Reference;
use crate::panel::LINE;

use super::super::shape::{Dot, Operand, Shape};
use super::{IntegerKernel, Integers, Vectors, four};

/// [`Dot`] number `DOT` of [`KINDS`], `PANELS` panels at once.
#[derive(Clone, Copy)]
pub(crate) struct Portable<const DOT: usize, const PANELS: usize>;

/// The kinds of dot products.
pub(crate) const KINDS: [Dot; 3] = [Dot::Unsigned, Dot::Pairs, Dot::Signed];

impl<const DOT: usize, const PANELS: usize> Integers for Portable<DOT, PANELS> {
    type Lanes = Reference;
    type Bytes = [u8; LINE];
    type Ints = [i32; LANES];

    const DOT: Dot = KINDS[DOT];
    const PANELS: usize = PANELS;
    const BLOCK: bool = Self::PANELS > 1;

    fn lanes(self) -> Reference {
        Reference
    }
    fn enter<K: IntegerKernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    fn load(self, line: &[u8; LINE]) -> [u8; LINE] {
        *line
    }
    fn store(self, bytes: [u8; LINE], line: &mut [u8; LINE]) {
        *line = bytes;
    }
    fn splat(self, byte: u8) -> [u8; LINE] {
        [byte; LINE]
    }
    fn and(self, a: [u8; LINE], b: [u8; LINE]) -> [u8; LINE] {
        from_fn(|i| a[i] & b[i])
    }
    fn or(self, a: [u8; LINE], b: [u8; LINE]) -> [u8; LINE] {
        from_fn(|i| a[i] | b[i])
    }
    fn sub(self, a: [u8; LINE], b: [u8; LINE]) -> [u8; LINE] {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    fn shift_left(self, bytes: [u8; LINE], by: u32) -> [u8; LINE] {
        // Ones come in, for what comes in is left open.
        bytes.map(|byte| byte << by | ((1u16 << by) - 1) as u8)
    }
    fn shift_right(self, bytes: [u8; LINE], by: u32) -> [u8; LINE] {
        bytes.map(|byte| !(!byte >> by))
    }
    fn look_up(self, table: &[u8; 16], indices: [u8; LINE]) -> [u8; LINE] {
        indices.map(|index| table[usize::from(index)])
    }
    fn dots<S: Shape, const R: usize, const U: usize, const G: usize>(
        self,
        codes: impl Vectors<Self, R>,
        quants: &[[i8; 32]; U],
        first: usize,
        starts: &[i32],
    ) -> [[[i32; LANES]; R]; U] {
        let operand = S::operand(Self::DOT);
        from_fn(|u| {
            from_fn(|r| {
                from_fn(|lane| {
                    let start = if S::starts(Self::DOT) { starts[u * 8 / G] } else { 0 };
                    let mut sum = if operand == Operand::Halves { 0 } else { start };
                    let mut halves = [start as i16, (start >> 16) as i16];
                    for g in 0..G {
                        let codes = codes.vector(self, first + g)[r];
                        let four = four(&quants[u], first + g).to_le_bytes();
                        let products: [i32; 4] = from_fn(|c| {
                            let code = codes[4 * lane + c];
                            let signed = operand == Operand::Value;
                            let code = if signed { i32::from(code as i8) } else { i32::from(code) };
                            code * i32::from(four[c] as i8)
                        });
                        let pairs = [products[0] + products[1], products[2] + products[3]];
                        if Self::DOT == Dot::Pairs {
                            assert!(pairs.into_iter().all(|pair| i16::try_from(pair).is_ok()), "saturated");
                        }
                        if operand == Operand::Halves {
                            halves = from_fn(|h| halves[h].wrapping_add(pairs[h] as i16));
                        } else {
                            sum += pairs[0] + pairs[1];
                        }
                    }
                    if operand == Operand::Halves { halves.map(i32::from).iter().sum() } else { sum }
                })
            })
        })
    }
    fn pair_dots<const P: usize>(self, a: &[[i16; LINE / 2]; P], b: &[i32; P]) -> [i32; LANES] {
        from_fn(|lane| {
            let products = a.iter().zip(b).map(|(a, &b)| {
                i32::from(a[2 * lane]) * i32::from(b as i16) + i32::from(a[2 * lane + 1]) * (b >> 16)
            });
            products.sum()
        })
    }
    fn floats(self, ints: [i32; LANES]) -> [f32; LANES] {
        ints.map(|int| int as f32)
    }
}
