//! The definition: lanes one by one.

use std::array::from_fn;

use half::f16;

use super::Lanes;
use crate::LANES;

/// Lanes as an array, on any processor.
#[derive(Clone, Copy, Debug)]
pub struct Reference;

type V = [f32; LANES];

impl Lanes for Reference {
    type V = V;
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        *x
    }
    #[inline(always)]
    fn load_half(self, x: &[f16; LANES]) -> V {
        from_fn(|i| x[i].to_f32())
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> V {
        from_fn(|i| f32::from(x[i] as i8))
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        *out = v;
    }
    #[inline(always)]
    fn store_half(self, v: V, out: &mut [f16; LANES]) {
        *out = from_fn(|i| f16::from_f32(v[i]));
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn pow2(self, n: V) -> V {
        from_fn(|i| f32::from_bits(((n[i] as i32).wrapping_add(127) as u32) << 23))
    }
}
