//! Four registers of four lanes: NEON.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

use half::f16;

use super::Lanes;
use crate::LANES;

/// Proof that the processor has NEON.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// The proof.
    ///
    /// # Safety
    /// The processor has NEON.
    #[inline(always)]
    pub unsafe fn new() -> Neon {
        Neon(())
    }
}

/// Lanes 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
type V = [float32x4_t; 4];

macro_rules! each {
    ($f:ident, $($x:expr),+) => {
        // SAFETY: `self` proves that the instructions exist.
        from_fn(|i| unsafe { $f($($x[i]),+) })
    };
}

impl Lanes for Neon {
    type V = V;
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: `self` proves that the instruction exists.
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        // SAFETY: `self` proves the instruction, `x` is four times four floats.
        from_fn(|i| unsafe { vld1q_f32(x.as_ptr().add(4 * i)) })
    }
    #[inline(always)]
    fn load_half(self, x: &[f16; LANES]) -> V {
        // SAFETY: `self` proves the instructions, `x` is four times four halves.
        from_fn(|i| unsafe { from_half(vld1_u16(x.as_ptr().cast::<u16>().add(4 * i))) })
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; LANES]) -> V {
        // SAFETY: `self` proves the instructions, `x` is 16 bytes.
        unsafe {
            let bytes = vld1q_s8(x.as_ptr().cast());
            let halves = [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)];
            from_fn(|i| {
                let half = halves[i / 2];
                vcvtq_f32_s32(if i % 2 == 0 { vmovl_s16(vget_low_s16(half)) } else { vmovl_high_s16(half) })
            })
        }
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        for (v, out) in v.into_iter().zip(out.as_chunks_mut::<4>().0) {
            // SAFETY: `self` proves the instruction, `out` is four floats.
            unsafe { vst1q_f32(out.as_mut_ptr(), v) };
        }
    }
    #[inline(always)]
    fn store_half(self, v: V, out: &mut [f16; LANES]) {
        for (v, out) in v.into_iter().zip(out.as_chunks_mut::<4>().0) {
            // SAFETY: `self` proves the instructions, `out` is four halves.
            unsafe { vst1_u16(out.as_mut_ptr().cast(), to_half(v)) };
        }
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        each!(vaddq_f32, a, b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        each!(vsubq_f32, a, b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        each!(vmulq_f32, a, b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        each!(vdivq_f32, a, b)
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        each!(vfmaq_f32, c, a, b)
    }
    /// Not by `fmax`, which has another opinion of NaNs and of zeros.
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        let greater: [uint32x4_t; 4] = each!(vcgtq_f32, a, b);
        each!(vbslq_f32, greater, a, b)
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        let less: [uint32x4_t; 4] = each!(vcltq_f32, a, b);
        each!(vbslq_f32, less, a, b)
    }
    #[inline(always)]
    fn pow2(self, n: V) -> V {
        // SAFETY: `self` proves that the instructions exist.
        n.map(|n| unsafe {
            let exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
        })
    }
}

/// Four f16 to f32, exact. (Rust has no stable intrinsics of f16.)
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn from_half(x: uint16x4_t) -> float32x4_t {
    let out;
    // SAFETY: an instruction of NEON on registers alone.
    unsafe { asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) x, options(pure, nomem, nostack)) };
    out
}

/// Four f32 to f16, rounded half to even.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn to_half(x: float32x4_t) -> uint16x4_t {
    let out;
    // SAFETY: an instruction of NEON on registers alone.
    unsafe { asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) out, in(vreg) x, options(pure, nomem, nostack)) };
    out
}
