//! Elements of a page.

use half::f16;

use crate::LANES;
use crate::lanes::Lanes;

/// How a key or a value is kept: f16, or f32 in the test mode that is compared with float references.
pub trait KvElement: Copy + Default + Send + Sync + 'static {
    /// Sixteen of them, exact.
    fn load<L: Lanes>(l: L, x: &[Self; LANES]) -> L::V;
    /// Sixteen of them, rounded half to even.
    fn store<L: Lanes>(l: L, v: L::V, out: &mut [Self; LANES]);
}

impl KvElement for f16 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[f16; LANES]) -> L::V {
        l.load_half(x)
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, v: L::V, out: &mut [f16; LANES]) {
        l.store_half(v, out);
    }
}

impl KvElement for f32 {
    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[f32; LANES]) -> L::V {
        l.load(x)
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, v: L::V, out: &mut [f32; LANES]) {
        l.store(v, out);
    }
}
