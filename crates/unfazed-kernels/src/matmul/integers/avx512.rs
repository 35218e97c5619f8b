//! One register of 512 bits: AVX-512 with VNNI.
//!
//! 32 columns of two panels are held in 16 registers while few rows pass by; of many rows the sums of six with four panels
//! are. The quants of a row are memory operands, broadcast while they are loaded: as values they would be broadcast on a port
//! that the dot products need.

#![allow(clippy::needless_range_loop)] // Several arrays are indexed alike; the loops over those unroll.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::lanes::{self, Lanes};
use crate::panel::LINE;

use super::super::shape::{Dot, Shape};
use super::{IntegerKernel, Integers, Vectors, four};

/// Proof that the processor has AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(lanes::Avx512);

impl Avx512 {
    /// The proof.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL, DQ and VNNI, and what AVX2 kernels need.
    #[inline(always)]
    pub(super) unsafe fn new() -> Avx512 {
        // SAFETY: the caller guarantees the instructions.
        Avx512(unsafe { lanes::Avx512::new() })
    }
}

impl Integers for Avx512 {
    type Lanes = lanes::Avx512;
    type Bytes = __m512i;
    type Ints = __m512i;

    const DOT: Dot = Dot::Unsigned;
    const PANELS: usize = 2;
    const BLOCK: bool = true;

    #[inline(always)]
    fn lanes(self) -> lanes::Avx512 {
        self.0
    }
    #[inline(always)]
    fn enter<K: IntegerKernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { run(kernel) }
    }
    #[inline(always)]
    fn load(self, line: &[u8; LINE]) -> __m512i {
        // SAFETY: `self` proves the instruction, `line` is 64 bytes.
        unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, bytes: __m512i, line: &mut [u8; LINE]) {
        // SAFETY: `self` proves the instruction, `line` is 64 bytes.
        unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), bytes) }
    }
    #[inline(always)]
    fn splat(self, byte: u8) -> __m512i {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_set1_epi8(byte as i8) }
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_sub_epi8(a, b) }
    }
    #[inline(always)]
    fn shift_left(self, bytes: __m512i, by: u32) -> __m512i {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { _mm512_sll_epi16(bytes, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn shift_right(self, bytes: __m512i, by: u32) -> __m512i {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: __m512i) -> __m512i {
        // SAFETY: `self` proves the instructions, `table` is 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }
    #[inline(always)]
    fn dots<S: Shape, const R: usize, const U: usize, const G: usize>(
        self,
        codes: impl Vectors<Self, R>,
        quants: &[[i8; 32]; U],
        first: usize,
        starts: &[i32],
    ) -> [[__m512i; R]; U] {
        // SAFETY: `self` proves that the instructions exist.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); R]; U];
            if S::starts(Self::DOT) {
                for u in 0..U {
                    sums[u] = [_mm512_set1_epi32(starts[u * 8 / G]); R];
                }
            }
            for g in 0..G {
                let vectors = codes.vector(self, first + g);
                for u in 0..U {
                    let quants = _mm512_set1_epi32(four(&quants[u], first + g));
                    for r in 0..R {
                        sums[u][r] = _mm512_dpbusd_epi32(sums[u][r], vectors[r], quants);
                    }
                }
            }
            sums
        }
    }
    #[inline(always)]
    fn pair_dots<const P: usize>(self, a: &[[i16; LINE / 2]; P], b: &[i32; P]) -> __m512i {
        // SAFETY: `self` proves the instructions; each of `a` is 64 bytes.
        unsafe {
            let mut sum = _mm512_setzero_si512();
            for (a, &b) in a.iter().zip(b) {
                sum = dpwssd(sum, _mm512_loadu_si512(a.as_ptr().cast()), _mm512_set1_epi32(b));
            }
            sum
        }
    }
    #[inline(always)]
    fn floats(self, ints: __m512i) -> <lanes::Avx512 as Lanes>::V {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_cvtepi32_ps(ints) }
    }
}

/// `vpdpwssd`, of whose intrinsic the compiler makes two instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dpwssd(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: an operation on registers.
    unsafe {
        asm!("vpdpwssd {0}, {1}, {2}", inout(zmm_reg) sum, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// # Safety
/// The processor has what [`Avx512::new`] asks for.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn run<K: IntegerKernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees the instructions.
    kernel.run(unsafe { Avx512::new() })
}
