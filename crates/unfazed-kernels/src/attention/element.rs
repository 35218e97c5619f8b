//! Floats as elements of a page.

#![allow(unsafe_code)]

use half::{bf16, f16};

use crate::LANES;
use crate::lanes::Lanes;

/// A float that keys and values are kept as.
///
/// # Safety
///
/// Every bit pattern is a value, and nothing is padding.
pub(super) unsafe trait KvElement: Copy + Default + Send + Sync + 'static {
    /// Sixteen of them, exact.
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V;
    /// Sixteen of them, rounded half to even.
    fn store<L: Lanes>(l: L, v: L::V, out: &mut [Self; LANES]);
}

// SAFETY: a number.
unsafe impl KvElement for f16 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[f16; LANES]) -> L::V {
        l.load_half(x)
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, v: L::V, out: &mut [f16; LANES]) {
        l.store_half(v, out);
    }
}

// SAFETY: a number.
unsafe impl KvElement for bf16 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[bf16; LANES]) -> L::V {
        l.load(&x.map(|x| f32::from_bits(u32::from(x.to_bits()) << 16)))
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, v: L::V, out: &mut [bf16; LANES]) {
        *out = l.array(v).map(bf16::from_f32);
    }
}

// SAFETY: a number.
unsafe impl KvElement for f32 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[f32; LANES]) -> L::V {
        l.load(x)
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, v: L::V, out: &mut [f32; LANES]) {
        l.store(v, out);
    }
}

/// Bytes as vectors of elements.
///
/// # Panics
///
/// If they do not begin on an element's boundary, or are not whole vectors.
#[inline(always)]
pub(super) fn vectors<E: KvElement>(bytes: &[u8]) -> &[[E; LANES]] {
    // SAFETY: every bit pattern is an element, which has no padding.
    let (before, vectors, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty(), "a panel off its boundary");
    vectors
}

/// The same, to be written.
#[inline(always)]
pub(super) fn vectors_mut<E: KvElement>(bytes: &mut [u8]) -> &mut [[E; LANES]] {
    // SAFETY: every bit pattern is an element, and every element is bytes without padding.
    let (before, vectors, after) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && after.is_empty(), "a panel off its boundary");
    vectors
}
