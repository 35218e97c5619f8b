//! Which instruction set runs.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

/// Why an instruction set cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// There is none of that name.
    #[error("{name:?} is no instruction set that has kernels; this processor runs {}", available_names(), name = .0)]
    Unknown(String),
    /// This processor does not run it.
    #[error("this processor does not run {name}; it runs {}", available_names(), name = .0.name())]
    Unavailable(Isa),
}

/// Names of the available ones, slowest first.
fn available_names() -> String {
    let available = Isa::ALL.into_iter().filter(|isa| isa.available());
    available.map(Isa::name).collect::<Vec<_>>().join(", ")
}

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

    /// The one of this name, or the fastest if there is no name.
    pub fn choose(name: Option<&str>) -> Result<Isa, IsaError> {
        let Some(name) = name else { return Ok(Isa::best()) };
        let isa = Isa::from_name(name).ok_or_else(|| IsaError::Unknown(name.to_owned()))?;
        if isa.available() { Ok(isa) } else { Err(IsaError::Unavailable(isa)) }
    }

    /// The inverse of [`Isa::name`].
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_available_or_says_what_is() {
        assert_eq!(Isa::choose(None), Ok(Isa::best()));
        for isa in Isa::ALL {
            let chosen = Isa::choose(Some(isa.name()));
            assert_eq!(chosen.is_ok(), isa.available());
            assert_eq!(chosen.unwrap_or(isa), isa);
            let error = IsaError::Unavailable(isa).to_string();
            assert!(error.contains(isa.name()) && error.contains("it runs reference"), "{error}");
        }
        let error = Isa::choose(Some("avx3")).map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("avx3") && error.contains(Isa::best().name())));
    }
}
