//! One body, compiled once per instruction set.
//!
//! A [`Kernel`] is plain Rust over arrays of 16 lanes. [`instantiate`] inlines it into a function that has the
//! features of an instruction set, where the compiler turns the lanes into vectors and `f32::mul_add` into one
//! instruction. The arithmetic stays what the source says, so the bits are equal by construction.

#![allow(unsafe_code)]

use crate::Isa;

/// A body to be compiled per instruction set. Implement [`Kernel::run`] with `#[inline(always)]`, and mark all
/// that it calls in its inner loops so too: code that is not inlined does not get the features.
pub(crate) trait Kernel {
    /// What the body returns.
    type Output;

    /// The body.
    fn run(self) -> Self::Output;
}

/// Runs a body as compiled for an instruction set.
///
/// # Panics
///
/// If the processor does not have the instruction set ([`Isa::available`]).
#[inline]
pub(crate) fn instantiate<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    assert!(isa.available(), "this processor does not run {}", isa.name());
    match isa {
        // SAFETY: `available` found every feature that the function is compiled for.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(kernel) },
        _ => kernel.run(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}
