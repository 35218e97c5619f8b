//! Two registers of 256 bits: AVX2 with FMA and F16C, with or without AVX-VNNI.
//!
//! Without, `vpmaddubsw` forms dot products. What binds it on processors with two multipliers and four vector units is
//! both of them: four columns of sixteen lanes take two multiplications and two additions. So as many products as fit are
//! added in 16 bits before they are widened, which [`Operand::Halves`] makes all of a sub-block for most formats.

#![allow(clippy::needless_range_loop)] // Several arrays are indexed alike; the loops over those unroll.

use std::arch::x86_64::*;

use crate::lanes::{self, Lanes};
use crate::panel::LINE;

use super::super::shape::{Dot, Operand, Shape, operand};
use super::{IntegerKernel, Integers, Vectors, four};

/// Proof that the processor has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(lanes::Avx2);

impl<const VNNI: bool> Avx2<VNNI> {
    /// The proof.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
    #[inline(always)]
    pub(super) unsafe fn new() -> Avx2<VNNI> {
        // SAFETY: the caller guarantees the instructions.
        Avx2(unsafe { lanes::Avx2::new() })
    }
}

/// Lanes 0 to 7 and 8 to 15.
type Pair = [__m256i; 2];

macro_rules! both {
    ($f:ident, $($x:expr),+) => {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { [$f($($x[0]),+), $f($($x[1]),+)] }
    };
}

impl<const VNNI: bool> Integers for Avx2<VNNI> {
    type Lanes = lanes::Avx2;
    type Bytes = Pair;
    type Ints = Pair;

    const DOT: Dot = if VNNI { Dot::Unsigned } else { Dot::Pairs };
    const PANELS: usize = 1;

    #[inline(always)]
    fn lanes(self) -> lanes::Avx2 {
        self.0
    }
    #[inline(always)]
    fn enter<K: IntegerKernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { if const { VNNI } { run_vnni(kernel) } else { run(kernel) } }
    }
    #[inline(always)]
    fn load(self, line: &[u8; LINE]) -> Pair {
        let p = line.as_ptr().cast::<__m256i>();
        // SAFETY: `self` proves the instruction, `line` is 64 bytes.
        unsafe { [_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))] }
    }
    #[inline(always)]
    fn store(self, bytes: Pair, line: &mut [u8; LINE]) {
        let p = line.as_mut_ptr().cast::<__m256i>();
        // SAFETY: `self` proves the instruction, `line` is 64 bytes.
        unsafe {
            _mm256_storeu_si256(p, bytes[0]);
            _mm256_storeu_si256(p.add(1), bytes[1]);
        }
    }
    #[inline(always)]
    fn splat(self, byte: u8) -> Pair {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { [_mm256_set1_epi8(byte as i8); 2] }
    }
    #[inline(always)]
    fn and(self, a: Pair, b: Pair) -> Pair {
        both!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    fn or(self, a: Pair, b: Pair) -> Pair {
        both!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        both!(_mm256_sub_epi8, a, b)
    }
    #[inline(always)]
    fn shift_left(self, bytes: Pair, by: u32) -> Pair {
        // SAFETY: SSE2 is part of x86-64.
        let by = unsafe { [_mm_cvtsi32_si128(by as i32); 2] };
        both!(_mm256_sll_epi16, bytes, by)
    }
    #[inline(always)]
    fn shift_right(self, bytes: Pair, by: u32) -> Pair {
        // SAFETY: SSE2 is part of x86-64.
        let by = unsafe { [_mm_cvtsi32_si128(by as i32); 2] };
        both!(_mm256_srl_epi16, bytes, by)
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: Pair) -> Pair {
        // SAFETY: `self` proves the instructions, `table` is 16 bytes.
        let table = unsafe { [_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())); 2] };
        both!(_mm256_shuffle_epi8, table, indices)
    }
    #[inline(always)]
    fn dots<S: Shape, const R: usize, const U: usize, const G: usize>(
        self,
        codes: impl Vectors<Self, R>,
        quants: &[[i8; 32]; U],
        first: usize,
        starts: &[i32],
    ) -> [[Pair; R]; U] {
        // SAFETY: `self` proves that the instructions exist.
        unsafe {
            if const { VNNI } {
                dots_vnni::<Self, S, R, U, G>(self, codes, quants, first, starts)
            } else {
                dots_pairs::<Self, S, R, U, G>(self, codes, quants, first, starts)
            }
        }
    }
    #[inline(always)]
    fn pair_dots<const P: usize>(self, a: &[[i16; LINE / 2]; P], b: &[i32; P]) -> Pair {
        // SAFETY: `self` proves the instructions; each of `a` is 64 bytes.
        unsafe {
            let mut sum = [_mm256_setzero_si256(); 2];
            for (a, &b) in a.iter().zip(b) {
                let b = _mm256_set1_epi32(b);
                for (h, sum) in sum.iter_mut().enumerate() {
                    let a = _mm256_loadu_si256(a.as_ptr().cast::<__m256i>().add(h));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
                }
            }
            sum
        }
    }
    #[inline(always)]
    fn floats(self, ints: Pair) -> <lanes::Avx2 as Lanes>::V {
        both!(_mm256_cvtepi32_ps, ints)
    }
}

/// # Safety
/// The processor has AVX2, FMA and F16C.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<K: IntegerKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees the instructions.
    kernel.run(unsafe { Avx2::<false>::new() })
}

/// # Safety
/// The processor has AVX2, FMA, F16C and AVX-VNNI.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn run_vnni<K: IntegerKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees the instructions.
    kernel.run(unsafe { Avx2::<true>::new() })
}

/// Dot products by `vpdpbusd`.
///
/// # Safety
/// The processor has AVX2 and AVX-VNNI.
#[inline(always)]
unsafe fn dots_vnni<I, S: Shape, const R: usize, const U: usize, const G: usize>(
    isa: I,
    codes: impl Vectors<I, R>,
    quants: &[[i8; 32]; U],
    first: usize,
    starts: &[i32],
) -> [[Pair; R]; U]
where
    I: Integers<Bytes = Pair>,
{
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let mut sums = [[[_mm256_setzero_si256(); 2]; R]; U];
        if S::starts(Dot::Unsigned) {
            for u in 0..U {
                sums[u] = [[_mm256_set1_epi32(starts[u * 8 / G]); 2]; R];
            }
        }
        for g in 0..G {
            let vectors = codes.vector(isa, first + g);
            for u in 0..U {
                let quants = _mm256_set1_epi32(four(&quants[u], first + g));
                for r in 0..R {
                    for h in 0..2 {
                        sums[u][r][h] = _mm256_dpbusd_avx_epi32(sums[u][r][h], vectors[r][h], quants);
                    }
                }
            }
        }
        sums
    }
}

/// How many vectors of products are added in 16 bits: as many of `vectors` as cannot overflow there.
const fn narrow(operand: Operand, largest: i32, vectors: usize) -> usize {
    // Unsigned codes of 8 bits come less 128.
    let largest = if largest > 128 { 128 } else { largest };
    let mut count = vectors;
    while !matches!(operand, Operand::Halves) && count as i32 * 2 * 127 * largest > i16::MAX as i32 {
        count /= 2;
    }
    count
}

/// Dot products by `vpmaddubsw`. Signed codes go as magnitudes, and the quants with the codes' signs: of magnitudes up to
/// 128 and 127 the sum of two products fits.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn dots_pairs<I, S: Shape, const R: usize, const U: usize, const G: usize>(
    isa: I,
    codes: impl Vectors<I, R>,
    quants: &[[i8; 32]; U],
    first: usize,
    starts: &[i32],
) -> [[Pair; R]; U]
where
    I: Integers<Bytes = Pair>,
{
    let operand = operand(Dot::Pairs, !S::MINIMUMS, S::LARGEST, S::SUB);
    let narrow = narrow(operand, S::LARGEST, G);
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let zero = [[_mm256_setzero_si256(); 2]; R];
        let (mut narrow_starts, mut sums) = ([zero; U], [zero; U]);
        if S::starts(Dot::Pairs) {
            for u in 0..U {
                let start = [[_mm256_set1_epi32(starts[u * 8 / G]); 2]; R];
                *if operand == Operand::Halves { &mut narrow_starts[u] } else { &mut sums[u] } = start;
            }
        }
        for part in 0..G / narrow {
            let vectors = part * narrow..(part + 1) * narrow;
            if narrow > 2 {
                // All rows pass by a vector of codes.
                let mut products = narrow_starts;
                for g in vectors {
                    let codes = codes.vector(isa, first + g);
                    for u in 0..U {
                        add_products(operand, &codes, four(&quants[u], first + g), &mut products[u]);
                    }
                }
                for u in 0..U {
                    widen(&products[u], &mut sums[u]);
                }
            } else {
                // Row by row, for there are no registers for narrow sums of all beside the wide ones.
                for u in 0..U {
                    let mut products = zero;
                    for g in vectors.clone() {
                        let codes = codes.vector(isa, first + g);
                        add_products(operand, &codes, four(&quants[u], first + g), &mut products);
                    }
                    widen(&products, &mut sums[u]);
                }
            }
        }
        sums
    }
}

/// Adds the products of a vector of codes and four quants in 16 bits.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn add_products<const R: usize>(operand: Operand, codes: &[Pair; R], four: i32, sums: &mut [Pair; R]) {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let quants = _mm256_set1_epi32(four);
        for r in 0..R {
            for h in 0..2 {
                let codes = codes[r][h];
                let products = if operand == Operand::Value {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(quants, codes))
                } else {
                    _mm256_maddubs_epi16(codes, quants)
                };
                sums[r][h] = in_order(_mm256_add_epi16(sums[r][h], products));
            }
        }
    }
}

/// The same sum. Keeps the compiler from adding products up as a tree, for which there are not enough registers.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn in_order(mut sum: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) sum, options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Adds pairs of sums of 16 bits to sums of 32.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn widen<const R: usize>(narrow: &[Pair; R], sums: &mut [Pair; R]) {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        for r in 0..R {
            for h in 0..2 {
                let wide = _mm256_madd_epi16(narrow[r][h], _mm256_set1_epi16(1));
                sums[r][h] = _mm256_add_epi32(sums[r][h], wide);
            }
        }
    }
}
