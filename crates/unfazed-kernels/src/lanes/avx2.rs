//! Two registers of eight lanes: AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use half::f16;

use super::Lanes;
use crate::LANES;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The proof.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[inline(always)]
    pub unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

/// Lanes 0 to 7 and 8 to 15.
type V = [__m256; 2];

macro_rules! both {
    ($f:ident, $($x:expr),+) => {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { [$f($($x[0]),+), $f($($x[1]),+)] }
    };
}

impl Lanes for Avx2 {
    type V = V;
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        // SAFETY: `self` proves the instruction, `x` is sixteen floats.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn load_half(self, x: &[f16; LANES]) -> V {
        let p = x.as_ptr().cast::<__m128i>();
        // SAFETY: `self` proves the instructions, `x` is 32 bytes.
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))] }
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> V {
        let p = x.as_ptr();
        // SAFETY: `self` proves the instructions, `x` is twice 8 bytes.
        unsafe {
            let (low, high) = (_mm_loadl_epi64(p.cast()), _mm_loadl_epi64(p.add(8).cast()));
            [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))]
        }
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        let p = out.as_mut_ptr();
        // SAFETY: `self` proves the instruction, `out` is sixteen floats.
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    fn store_half(self, v: V, out: &mut [f16; LANES]) {
        let p = out.as_mut_ptr().cast::<__m128i>();
        // SAFETY: `self` proves the instructions, `out` is 32 bytes.
        unsafe {
            _mm_storeu_si128(p, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn pow2(self, n: V) -> V {
        both!(power_of_two, n)
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { sum(_mm256_add_ps(v[0], v[1])) }
    }
    #[inline(always)]
    fn largest(self, v: V) -> f32 {
        // SAFETY: `self` proves that the instructions exist.
        unsafe { largest(_mm256_max_ps(v[0], v[1])) }
    }
}

/// Eight lanes folded by the rest of the tree.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn sum(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The same for the largest.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn largest(v: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// 2 to the power of each of eight whole numbers.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn power_of_two(n: __m256) -> __m256 {
    let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
}
