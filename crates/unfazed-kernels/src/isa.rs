//! Which instruction set runs.

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
}

impl Isa {
    /// All, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Reference, Isa::Avx2, Isa::AvxVnni, Isa::Avx512];

    /// True if this processor and operating system run it.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            match self {
                Isa::Reference => true,
                Isa::Avx2 => {
                    is_x86_feature_detected!("avx2")
                        && is_x86_feature_detected!("fma")
                        && is_x86_feature_detected!("f16c")
                }
                Isa::AvxVnni => Isa::Avx2.available() && is_x86_feature_detected!("avxvnni"),
                Isa::Avx512 => {
                    Isa::Avx2.available()
                        && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vnni")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Reference
        }
    }

    /// The fastest one that is available.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Isa::Reference)
    }

    /// Name as used in settings and events: `reference`, `avx2`, `avxvnni`, `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Reference => "reference",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
        }
    }

    /// The inverse of [`Isa::name`].
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}
