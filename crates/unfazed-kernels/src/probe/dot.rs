//! Integer dot products and nothing else.

use std::hint::black_box;

use crate::Isa;

/// Runs `steps` steps of an instruction set's dot products of int8 numbers on registers; returns the multiply-adds that
/// they were. No kernel is faster: it also has to load, to scale and to add up.
///
/// For AVX2, which has no such instruction, they are products added in pairs and accumulated in 16 bits, as kernels do
/// while they can; for the scalar definition, what the compiler makes of a plain loop.
///
/// # Panics
///
/// If the processor does not run `isa`.
pub fn dot(isa: Isa, steps: usize) -> u64 {
    assert!(isa.available(), "this processor does not run {}", isa.name());
    let macs = match isa {
        // SAFETY: the processor runs it, as was checked above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::avx512(steps) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => unsafe { x86::avx_vnni(steps) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::avx2(steps) },
        // Both kinds of dot products run at the same rate.
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::I8mm => unsafe { arm::dotprod(steps) },
        Isa::Reference => portable(steps),
        _ => unreachable!("it is not available, as was checked above"),
    };
    (macs * steps) as u64
}

/// Returns the multiply-adds of a step.
fn portable(steps: usize) -> usize {
    const NUMBERS: usize = 512;
    let (a, b) = ([3i8; NUMBERS], [5i8; NUMBERS]);
    for _ in 0..steps {
        let (a, b) = (black_box(&a), black_box(&b));
        black_box(a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>());
    }
    NUMBERS
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// As many chains as hide the latency of an addition.
    const CHAINS: usize = 16;

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn avx512(steps: usize) -> usize {
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        let (a, b) = (black_box(_mm512_set1_epi8(3)), black_box(_mm512_set1_epi8(5)));
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
        CHAINS * 64
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) fn avx_vnni(steps: usize) -> usize {
        // No more registers than there are beside the operands.
        let mut sums = [_mm256_setzero_si256(); CHAINS - 4];
        let (a, b) = (black_box(_mm256_set1_epi8(3)), black_box(_mm256_set1_epi8(5)));
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        black_box(sums);
        (CHAINS - 4) * 32
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(steps: usize) -> usize {
        let mut sums = [_mm256_setzero_si256(); CHAINS / 2];
        let (a, b) = (black_box(_mm256_set1_epi8(3)), black_box(_mm256_set1_epi8(5)));
        for _ in 0..steps {
            for sum in &mut sums {
                let mut products = _mm256_maddubs_epi16(a, b);
                // Keeps the products of a step from becoming one.
                // SAFETY: no instruction.
                unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) products) };
                *sum = _mm256_add_epi16(*sum, products);
            }
        }
        black_box(sums);
        CHAINS / 2 * 32
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;
    use std::hint::black_box;

    /// As many chains as hide the latency of an addition.
    const CHAINS: usize = 16;

    #[target_feature(enable = "neon,dotprod")]
    pub(super) fn dotprod(steps: usize) -> usize {
        let mut sums = [vdupq_n_s32(0); CHAINS];
        let (a, b) = (black_box(vdupq_n_s8(3)), black_box(vdupq_n_s8(5)));
        for _ in 0..steps {
            for sum in &mut sums {
                // SAFETY: an operation on registers. (Its intrinsic is not stable.)
                unsafe {
                    std::arch::asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) *sum, in(vreg) a, in(vreg) b,
                        options(pure, nomem, nostack, preserves_flags));
                }
            }
        }
        black_box(sums);
        CHAINS * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiply_adds_are_counted_by_step_on_every_instruction_set() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            assert!(dot(isa, 1) >= 256, "{}", isa.name());
            assert_eq!(dot(isa, 1000), 1000 * dot(isa, 1), "{}", isa.name());
        }
    }
}
