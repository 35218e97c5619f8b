//! One register of sixteen lanes: AVX-512.

use std::arch::x86_64::*;

use half::f16;

use super::{Lanes, avx2};
use crate::LANES;

/// Proof that the processor has AVX-512 F, BW, VL and DQ.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The proof.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ, and what AVX2 kernels need.
    #[inline(always)]
    pub unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

impl Lanes for Avx512 {
    type V = __m512;
    const ACCUMULATORS: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves the instruction, `x` is sixteen floats.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn load_half(self, x: &[f16; LANES]) -> __m512 {
        // SAFETY: `self` proves the instructions, `x` is 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> __m512 {
        // SAFETY: `self` proves the instructions, `x` is 16 bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves the instruction, `out` is sixteen floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn store_half(self, v: __m512, out: &mut [f16; LANES]) {
        // SAFETY: `self` proves the instructions, `out` is 32 bytes.
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), half);
        }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        // SAFETY: `self` proves that the instructions exist.
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves that the instructions exist, AVX2's among them.
        unsafe { avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
    }
    #[inline(always)]
    fn largest(self, v: __m512) -> f32 {
        // SAFETY: `self` proves that the instructions exist, AVX2's among them.
        unsafe { avx2::largest(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
    }
}
