//! Sixteen lanes of four bytes, once per instruction set: what unpacking and integer dot products need.
//!
//! The kernels are written once, generic over [`Integers`], as an [`IntegerKernel`]; [`dispatch`] instantiates them
//! inside a function that has the instruction set enabled. All operations are exact, so the bits cannot differ. A new
//! instruction set is one file that implements [`Integers`].
//!
//! | file | what |
//! |---|---|
//! | `avx2.rs` | two registers of 256 bits; dots by `vpmaddubsw`, or by `vpdpbusd` with AVX-VNNI |
//! | `avx512.rs` | one register of 512 bits; dots by `vpdpbusd` |
//! | `neon.rs` | four registers of 128 bits; dots by `sdot`, or by `usdot` with `i8mm` |
//! | `portable.rs` | arrays, for tests: each way to form dots, on any processor |

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
pub(super) mod portable;

use crate::Isa;
use crate::lanes::Lanes;
use crate::panel::LINE;

use super::shape::{Dot, Shape};

/// Operations on sixteen lanes of four bytes. A value of a type that implements this proves that the processor has the
/// instructions.
pub(crate) trait Integers: Copy {
    /// The same lanes as f32.
    type Lanes: Lanes;
    /// Four bytes a lane.
    type Bytes: Copy;
    /// An i32 a lane.
    type Ints: Copy;

    /// What kind of dot product there is.
    const DOT: Dot;
    /// Panels that are multiplied at once: as many as registers hold 32 columns of.
    const PANELS: usize;
    /// Whether registers hold the sums of six rows and four panels.
    const BLOCK: bool = false;
    /// Whether the common formats have kernels of their own: they take long to compile.
    const OWN: bool = true;

    /// Operations on the lanes as f32.
    fn lanes(self) -> Self::Lanes;
    /// Runs a kernel as a function of its own that has the instruction set.
    fn enter<K: IntegerKernel>(self, kernel: K) -> K::Output;

    /// From memory.
    fn load(self, line: &[u8; LINE]) -> Self::Bytes;
    /// To memory.
    fn store(self, bytes: Self::Bytes, line: &mut [u8; LINE]);
    /// All bytes `byte`.
    fn splat(self, byte: u8) -> Self::Bytes;
    /// `a & b`.
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `a | b`.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `a - b` in each byte, wrapping.
    fn sub(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Each byte shifted left, 7 at most; what the low bits become is left open.
    fn shift_left(self, bytes: Self::Bytes, by: u32) -> Self::Bytes;
    /// Each byte shifted right, 7 at most; what the high bits become is left open.
    fn shift_right(self, bytes: Self::Bytes, by: u32) -> Self::Bytes;
    /// The entries of a table that the bytes, 15 at most, name.
    fn look_up(self, table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes;

    /// Adds up, for U rows of activations and R panels, the products of G vectors of codes with quants `4 * first..` of
    /// the row. The codes are what [`Shape::operand`] says. If [`Shape::starts`], the sum of row `u` starts from
    /// `starts[u * 8 / G]`.
    fn dots<S: Shape, const R: usize, const U: usize, const G: usize>(
        self,
        codes: impl Vectors<Self, R>,
        quants: &[[i8; 32]; U],
        first: usize,
        starts: &[i32],
    ) -> [[Self::Ints; R]; U];
    /// Adds up the products of P vectors of pairs of i16, which are small, with pairs that all lanes share.
    fn pair_dots<const P: usize>(self, a: &[[i16; LINE / 2]; P], b: &[i32; P]) -> Self::Ints;
    /// As f32, exact below 2^24.
    fn floats(self, ints: Self::Ints) -> <Self::Lanes as Lanes>::V;
}

/// The vectors of codes of 32 columns of R panels, wherever they are.
pub(crate) trait Vectors<I: Integers, const R: usize>: Copy {
    /// Vector `g`, 7 at most, of each panel.
    fn vector(self, isa: I, g: usize) -> [I::Bytes; R];
}

/// Codes in memory, for many rows.
#[repr(align(64))]
pub(crate) struct Stored<const R: usize>(pub(crate) [[[u8; LINE]; 8]; R]);

impl<I: Integers, const R: usize> Vectors<I, R> for &Stored<R> {
    #[inline(always)]
    fn vector(self, isa: I, g: usize) -> [I::Bytes; R] {
        let mut vectors = [isa.load(&self.0[0][g]); R];
        for (vector, codes) in vectors.iter_mut().zip(&self.0) {
            *vector = isa.load(&codes[g]);
        }
        vectors
    }
}

/// In registers, as many as there are, for few rows.
impl<I: Integers, const R: usize> Vectors<I, R> for &[[I::Bytes; 8]; R] {
    #[inline(always)]
    fn vector(self, _: I, g: usize) -> [I::Bytes; R] {
        let mut vectors = [self[0][g]; R];
        for r in 1..R {
            vectors[r] = self[r][g];
        }
        vectors
    }
}

/// A kernel, generic over the integers. Implementations mark `run` and all that it calls `#[inline(always)]`, else the
/// instruction set is lost on the way.
pub(crate) trait IntegerKernel {
    /// What it returns.
    type Output;
    /// Runs on these integers.
    fn run<I: Integers>(self, isa: I) -> Self::Output;
}

/// Runs a kernel with an instruction set, or gives it back if that one has no integers of its own.
///
/// # Panics
///
/// If this processor does not run `isa`.
pub(super) fn dispatch<K: IntegerKernel>(isa: Isa, kernel: K) -> Result<K::Output, K> {
    assert!(isa.available(), "this processor does not run {}", isa.name());
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set is available.
        Isa::Avx512 => Ok(unsafe { avx512::Avx512::new() }.enter(kernel)),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::AvxVnni => Ok(unsafe { avx2::Avx2::<true>::new() }.enter(kernel)),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => Ok(unsafe { avx2::Avx2::<false>::new() }.enter(kernel)),
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        Isa::Neon => Ok(unsafe { neon::Neon::<false>::new() }.enter(kernel)),
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        Isa::I8mm => Ok(unsafe { neon::Neon::<true>::new() }.enter(kernel)),
        _ => Err(kernel),
    }
}

/// Quants `4 * g..4 * g + 4`, as a dword: what the four bytes of every lane are multiplied by.
#[cfg(any(target_arch = "x86_64", test))]
#[inline(always)]
fn four(quants: &[i8; 32], g: usize) -> i32 {
    let four = [quants[4 * g], quants[4 * g + 1], quants[4 * g + 2], quants[4 * g + 3]];
    i32::from_le_bytes(four.map(|quant| quant as u8))
}
