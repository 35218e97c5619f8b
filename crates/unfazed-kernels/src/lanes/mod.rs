//! Sixteen lanes of f32, once per instruction set.
//!
//! A vector kernel is written once, generic over [`Lanes`], as a [`Kernel`]; [`dispatch`] instantiates it inside a
//! function that has the instruction set enabled. Every method below is exact or rounded once as IEEE 754 says, so the
//! same kernel gives the same bits on all of them. A new instruction set is one file that implements [`Lanes`].
//!
//! | file | lanes are |
//! |---|---|
//! | `reference.rs` | an array, computed one by one: the definition |
//! | `avx2.rs` | two registers of 256 bits |
//! | `avx512.rs` | one register of 512 bits |
//! | `neon.rs` | four registers of 128 bits |

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod reference;

use std::sync::OnceLock;

use half::f16;

use crate::{Isa, LANES};

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use reference::Reference;

/// Operations on sixteen f32. A value of a type that implements this proves that the processor has the instructions.
pub trait Lanes: Copy {
    /// Sixteen values.
    type V: Copy;
    /// Accumulators that fit in registers beside what a loop needs otherwise.
    const ACCUMULATORS: usize;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// From memory.
    fn load(self, x: &[f32; LANES]) -> Self::V;
    /// From f16 in memory, exact.
    fn load_half(self, x: &[f16; LANES]) -> Self::V;
    /// From signed bytes in memory.
    fn load_bytes(self, x: &[u8; LANES]) -> Self::V;
    /// To memory.
    fn store(self, v: Self::V, out: &mut [f32; LANES]);
    /// To f16 in memory, rounded half to even.
    fn store_half(self, v: Self::V, out: &mut [f16; LANES]);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b`: `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// 2 to the power of `n`, where `n` holds whole numbers from -126 to 127. Any value for a NaN.
    fn pow2(self, n: Self::V) -> Self::V;

    /// From the first lanes in memory, the others `fill`.
    #[inline(always)]
    fn load_part(self, x: &[f32], fill: f32) -> Self::V {
        let mut all = [fill; LANES];
        for (lane, x) in all.iter_mut().zip(x) {
            *lane = *x;
        }
        self.load(&all)
    }

    /// The first `out.len()` lanes to memory.
    #[inline(always)]
    fn store_part(self, v: Self::V, out: &mut [f32]) {
        for (out, lane) in out.iter_mut().zip(self.array(v)) {
            *out = lane;
        }
    }

    /// The lanes as an array.
    #[inline(always)]
    fn array(self, v: Self::V) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        self.store(v, &mut out);
        out
    }

    /// Sum of the lanes, by the fixed tree.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        tree(self.array(v), |a, b| a + b)
    }

    /// Largest lane, by the fixed tree of [`Lanes::max`].
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        tree(self.array(v), |a, b| if a > b { a } else { b })
    }
}

/// The one order in which sixteen partial results become one: halves are folded onto each other, 8, 4, 2, 1.
#[inline(always)]
pub fn tree(mut x: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            x[i] = f(x[i], x[i + half]);
        }
        half /= 2;
    }
    x[0]
}

/// A kernel, generic over the lanes. Implementations mark `run` and all that it calls `#[inline(always)]`, else the
/// instruction set is lost on the way.
pub trait Kernel {
    /// What it returns.
    type Output;
    /// Runs on these lanes.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs a kernel with an instruction set, or with the best that this processor has if it lacks that one (the bits are
/// the same).
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    static BEST: OnceLock<Isa> = OnceLock::new();
    let isa = isa.min(*BEST.get_or_init(Isa::best));
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` is at most the best that is available, and each one includes those before it.
        Isa::Avx512 => unsafe { run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 | Isa::AvxVnni => unsafe { run_avx2(kernel) },
        #[cfg(target_arch = "x86_64")]
        Isa::Reference if is_x86_feature_detected!("fma") => {
            // SAFETY: just detected. `mul_add` is an instruction then and not a call; it rounds the same way.
            unsafe { run_reference_fma(kernel) }
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::I8mm => kernel.run(unsafe { Neon::new() }),
        _ => kernel.run(Reference),
    }
}

/// # Safety
/// The processor has what [`Isa::Avx512`] stands for.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees the instructions.
    kernel.run(unsafe { Avx512::new() })
}

/// # Safety
/// The processor has what [`Isa::Avx2`] stands for.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees the instructions.
    kernel.run(unsafe { Avx2::new() })
}

/// # Safety
/// The processor has FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
unsafe fn run_reference_fma<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Reference)
}

/// Asks for a cache line soon to be read, wherever the address points; a hint without effect on results.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
