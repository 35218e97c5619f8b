//! Rotary position embedding from `config.json`: `rope_theta` with `rope_scaling`, or `rope_parameters`.

use super::fields::Fields;
use crate::FormatError;
use crate::config::{RopeConfig, RopePairing, RopeScaling, bounds};

/// Base of the frequencies where `rope_theta` is not given.
const THETA_DEFAULT: f32 = 10_000.0;

pub(super) fn rope(fields: &Fields, head_dim: usize) -> Result<RopeConfig, FormatError> {
    if fields.f32("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(fields.unsupported("partial_rotary_factor", "1 is"));
    }
    // Newer configurations keep the base and the scaling in one object, older ones apart.
    let parameters = fields.object("rope_parameters")?;
    let theta = parameters.as_ref().map(|parameters| parameters.f32("rope_theta")).transpose()?.flatten();
    let base = match theta {
        Some(theta) => theta,
        None => fields.f32("rope_theta")?.unwrap_or(THETA_DEFAULT),
    };
    let scaling_fields = match parameters {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_scaling")?,
    };
    let scaling = match scaling_fields {
        Some(scaling) => scaling_of(&scaling, base, head_dim)?,
        None => RopeScaling::None,
    };
    Ok(RopeConfig { base, dimensions: head_dim, pairing: RopePairing::Halves, scaling })
}

fn scaling_of(fields: &Fields, base: f32, head_dim: usize) -> Result<RopeScaling, FormatError> {
    let name = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    match fields.string(name)? {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear(required(fields, "factor")?)),
        Some("llama3") => {
            let llama3 = Llama3::read(fields)?;
            Ok(RopeScaling::PerPair(llama3.factors(base, head_dim)))
        }
        Some(_) => Err(fields.unsupported(name, "default, linear and llama3 are")),
    }
}

fn required(fields: &Fields, name: &str) -> Result<f32, FormatError> {
    fields.f32(name)?.ok_or_else(|| fields.missing(name, "this scaling needs it"))
}

/// Llama 3's scaling: frequencies with wavelengths far beyond the trained context are divided by `factor`, those
/// well inside it are kept, and between the two the change is gradual.
struct Llama3 {
    factor: f64,
    low_frequency_factor: f64,
    high_frequency_factor: f64,
    original_context: f64,
}

impl Llama3 {
    fn read(fields: &Fields) -> Result<Llama3, FormatError> {
        let low = required(fields, "low_freq_factor")?;
        let high = required(fields, "high_freq_factor")?;
        if !(low > 0.0 && high > low) {
            let reason = format!("it must be above low_freq_factor, {low}, and that above 0");
            return Err(fields.invalid("high_freq_factor", reason));
        }
        let context = fields.required_size("original_max_position_embeddings", bounds::CONTEXT)?;
        Ok(Llama3 {
            factor: f64::from(required(fields, "factor")?),
            low_frequency_factor: f64::from(low),
            high_frequency_factor: f64::from(high),
            original_context: context as f64,
        })
    }

    fn factors(&self, base: f32, dimensions: usize) -> Vec<f32> {
        (0..dimensions / 2)
            .map(|pair| {
                let exponent = 2.0 * pair as f64 / dimensions as f64;
                let wavelength = std::f64::consts::TAU * f64::from(base).powf(exponent);
                let turns = self.original_context / wavelength;
                if turns > self.high_frequency_factor {
                    1.0
                } else if turns < self.low_frequency_factor {
                    self.factor as f32
                } else {
                    let span = self.high_frequency_factor - self.low_frequency_factor;
                    let kept = (turns - self.low_frequency_factor) / span;
                    (1.0 / ((1.0 - kept) / self.factor + kept)) as f32
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::source::MemorySource;

    fn read(value: &serde_json::Value) -> Result<RopeConfig, FormatError> {
        let text = value.to_string();
        let fields = Fields::read(&MemorySource::new("config.json", text.as_bytes()), 1 << 20).unwrap();
        rope(&fields, 128)
    }

    #[test]
    fn both_spellings_of_the_base_are_read() {
        assert_eq!(read(&json!({"rope_theta": 5e5})).unwrap().base, 5e5);
        assert_eq!(
            read(&json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})).unwrap().base,
            5e5
        );
        assert_eq!(read(&json!({})).unwrap().base, 10_000.0);
    }

    #[test]
    fn llama3_scaling_keeps_high_frequencies_divides_low_ones_and_blends_between() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let rope = read(&json!({"rope_theta": 5e5, "rope_scaling": scaling})).unwrap();
        let RopeScaling::PerPair(factors) = rope.scaling else { panic!("not per pair") };
        assert_eq!(factors.len(), 64);
        // Wavelengths: pair 0 turns every 6.28 positions; pair 63 every 2.6 million.
        assert_eq!(factors[0], 1.0);
        assert_eq!(factors[63], 8.0);
        assert!(factors.is_sorted());
        assert!(factors.iter().any(|factor| *factor > 1.0 && *factor < 8.0));
    }

    #[test]
    fn unknown_scaling_is_refused_by_name() {
        let error = read(&json!({"rope_scaling": {"type": "yarn", "factor": 4.0}})).unwrap_err().to_string();
        assert!(error.contains("rope_scaling.type is \"yarn\""), "{error}");
    }
}
