//! Four registers of 128 bits: NEON with `dotprod`, with or without `i8mm`.
//!
//! Without, there is no dot product of unsigned codes with signed quants, but one of signed values (`sdot`), which needs no
//! correction either. With it there is (`usdot`). Both take the four bytes that all lanes share from any quarter of a
//! register, so one load gives the quants of 16 columns. Rust has no stable intrinsics for them yet.
//!
//! `i8mm` also multiplies 2 x 8 by 8 x 2 (`usmmla`): twice the products an instruction, of eight columns of two rows side
//! by side, where a panel has four columns of each. To put codes together anew for each four rows of activations costs
//! what is saved. If it were done once, where codes are unpacked, a tile would take 88 instructions instead of 128 for 32
//! columns of a panel and four rows.

#![allow(clippy::needless_range_loop)] // Several arrays are indexed alike; the loops over those unroll.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

use crate::lanes::{self, Lanes};
use crate::panel::LINE;

use super::super::shape::{Dot, Shape};
use super::{IntegerKernel, Integers, Vectors};

/// Proof that the processor has NEON with `dotprod`, and `i8mm` if `I8MM`.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const I8MM: bool>(lanes::Neon);

impl<const I8MM: bool> Neon<I8MM> {
    /// The proof.
    ///
    /// # Safety
    /// The processor has NEON with `dotprod`, and `i8mm` if `I8MM`.
    #[inline(always)]
    pub(super) unsafe fn new() -> Neon<I8MM> {
        // SAFETY: the caller guarantees the instructions.
        Neon(unsafe { lanes::Neon::new() })
    }
}

/// Lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
type Bytes = [uint8x16_t; 4];
type Ints = [int32x4_t; 4];

macro_rules! each {
    ($f:ident, $($x:expr),+) => {
        // SAFETY: `self` proves that the instructions exist.
        from_fn(|i| unsafe { $f($($x[i]),+) })
    };
}

impl<const I8MM: bool> Integers for Neon<I8MM> {
    type Lanes = lanes::Neon;
    type Bytes = Bytes;
    type Ints = Ints;

    const DOT: Dot = if I8MM { Dot::Unsigned } else { Dot::Signed };
    const PANELS: usize = 1;
    const OWN: bool = false;

    #[inline(always)]
    fn lanes(self) -> lanes::Neon {
        self.0
    }
    #[inline(always)]
    fn enter<K: IntegerKernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { if I8MM { run_i8mm(kernel) } else { run(kernel) } }
    }
    #[inline(always)]
    fn load(self, line: &[u8; LINE]) -> Bytes {
        // SAFETY: `self` proves the instruction, `line` is four times 16 bytes.
        from_fn(|i| unsafe { vld1q_u8(line.as_ptr().add(16 * i)) })
    }
    #[inline(always)]
    fn store(self, bytes: Bytes, line: &mut [u8; LINE]) {
        for (bytes, place) in bytes.into_iter().zip(line.as_chunks_mut::<16>().0) {
            // SAFETY: `self` proves the instruction, `place` is 16 bytes.
            unsafe { vst1q_u8(place.as_mut_ptr(), bytes) };
        }
    }
    #[inline(always)]
    fn splat(self, byte: u8) -> Bytes {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { [vdupq_n_u8(byte); 4] }
    }
    #[inline(always)]
    fn and(self, a: Bytes, b: Bytes) -> Bytes {
        each!(vandq_u8, a, b)
    }
    #[inline(always)]
    fn or(self, a: Bytes, b: Bytes) -> Bytes {
        each!(vorrq_u8, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Bytes, b: Bytes) -> Bytes {
        each!(vsubq_u8, a, b)
    }
    #[inline(always)]
    fn shift_left(self, bytes: Bytes, by: u32) -> Bytes {
        // SAFETY: `self` proves that the instruction exists.
        let by = unsafe { [vdupq_n_s8(by as i8); 4] };
        each!(vshlq_u8, bytes, by)
    }
    /// A shift to the left by less than nothing.
    #[inline(always)]
    fn shift_right(self, bytes: Bytes, by: u32) -> Bytes {
        // SAFETY: `self` proves that the instruction exists.
        let by = unsafe { [vdupq_n_s8(-(by as i8)); 4] };
        each!(vshlq_u8, bytes, by)
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: Bytes) -> Bytes {
        // SAFETY: `self` proves the instruction, `table` is 16 bytes.
        let table = unsafe { [vld1q_u8(table.as_ptr()); 4] };
        each!(vqtbl1q_u8, table, indices)
    }
    #[inline(always)]
    fn dots<S: Shape, const R: usize, const U: usize, const G: usize>(
        self,
        codes: impl Vectors<Self, R>,
        quants: &[[i8; 32]; U],
        first: usize,
        starts: &[i32],
    ) -> [[Ints; R]; U] {
        let start = |u: usize| if S::starts(Self::DOT) { starts[u * 8 / G] } else { 0 };
        // SAFETY: `self` proves that the instruction exists.
        let mut sums: [[Ints; R]; U] = from_fn(|u| unsafe { [[vdupq_n_s32(start(u)); 4]; R] });
        for part in 0..G / 4 {
            let quants: [int8x16_t; U] = from_fn(|u| {
                let quants = &quants[u][4 * first + 16 * part..][..16];
                // SAFETY: `self` proves the instruction, `quants` are 16 bytes.
                unsafe { vld1q_s8(quants.as_ptr()) }
            });
            for g in 0..4 {
                let codes = codes.vector(self, first + 4 * part + g);
                for u in 0..U {
                    for r in 0..R {
                        for (sum, codes) in sums[u][r].iter_mut().zip(codes[r]) {
                            // SAFETY: `self` proves that the instructions exist.
                            *sum = unsafe { dot::<I8MM>(*sum, codes, quants[u], g) };
                        }
                    }
                }
            }
        }
        sums
    }
    #[inline(always)]
    fn pair_dots<const P: usize>(self, a: &[[i16; LINE / 2]; P], b: &[i32; P]) -> Ints {
        // SAFETY: `self` proves the instructions; each of `a` is four times 8 of i16.
        from_fn(|i| unsafe {
            let (mut low, mut high) = (vdupq_n_s32(0), vdupq_n_s32(0));
            for (a, &b) in a.iter().zip(b) {
                let (a, b) = (vld1q_s16(a.as_ptr().add(8 * i)), vreinterpretq_s16_s32(vdupq_n_s32(b)));
                low = vmlal_s16(low, vget_low_s16(a), vget_low_s16(b));
                high = vmlal_high_s16(high, a, b);
            }
            vpaddq_s32(low, high)
        })
    }
    #[inline(always)]
    fn floats(self, ints: Ints) -> <lanes::Neon as Lanes>::V {
        each!(vcvtq_f32_s32, ints)
    }
}

/// # Safety
/// The processor has NEON with `dotprod`.
#[target_feature(enable = "neon,dotprod")]
unsafe fn run<K: IntegerKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees the instructions.
    kernel.run(unsafe { Neon::<false>::new() })
}

/// # Safety
/// The processor has NEON with `dotprod` and `i8mm`.
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn run_i8mm<K: IntegerKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees the instructions.
    kernel.run(unsafe { Neon::<true>::new() })
}

/// `sum` plus, for each of four lanes, its four codes times quants `4 * g..4 * g + 4`; unsigned codes if `I8MM`.
///
/// # Safety
/// The processor has NEON with `dotprod`, and `i8mm` if `I8MM`.
#[inline(always)]
unsafe fn dot<const I8MM: bool>(
    mut sum: int32x4_t,
    codes: uint8x16_t,
    quants: int8x16_t,
    g: usize,
) -> int32x4_t {
    macro_rules! dot {
        ($instruction:literal, $g:literal) => {
            // SAFETY: the caller guarantees the instruction, which is one on registers alone.
            unsafe {
                asm!(
                    concat!($instruction, " {0:v}.4s, {1:v}.16b, {2:v}.4b[", $g, "]"),
                    inout(vreg) sum, in(vreg) codes, in(vreg) quants,
                    options(pure, nomem, nostack, preserves_flags)
                )
            }
        };
    }
    // Unrolled, this leaves one.
    match (I8MM, g) {
        (false, 0) => dot!("sdot", 0),
        (false, 1) => dot!("sdot", 1),
        (false, 2) => dot!("sdot", 2),
        (false, _) => dot!("sdot", 3),
        (true, 0) => dot!("usdot", 0),
        (true, 1) => dot!("usdot", 1),
        (true, 2) => dot!("usdot", 2),
        (true, _) => dot!("usdot", 3),
    }
    sum
}
