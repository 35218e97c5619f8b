//! Which instruction set runs.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

/// An instruction set that has kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Scalar definition, on any processor.
    Reference,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI.
    AvxVnni,
    /// AVX-512 F, BW, VL, DQ with VNNI (and FMA, F16C).
    Avx512,
    /// NEON with the dot products of `dotprod`: 64-bit ARM since about 2018, every Mac.
    Neon,
    /// The same with the mixed dot products of `i8mm`: since about 2021, Macs from M2 on.
    I8mm,
}

impl Isa {
    /// All: of each architecture, slowest first.
    pub const ALL: [Isa; 6] = [Isa::Reference, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Neon, Isa::I8mm];

    /// True if this processor and operating system run it.
    pub fn available(self) -> bool {
        match self {
            Isa::Reference => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => Isa::Neon.available() && is_aarch64_feature_detected!("i8mm"),
            // Those of other architectures.
            _ => false,
        }
    }

    /// The fastest one that is available.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Isa::Reference)
    }

    /// Name as used in settings and events: `reference`, `avx2`, `avxvnni`, `avx512`, `neon`, `i8mm`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Reference => "reference",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
            Isa::I8mm => "i8mm",
        }
    }

    /// The inverse of [`Isa::name`].
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}
