//! Rotary position embedding from `config.json`: `rope_theta` with `rope_scaling`, or `rope_parameters`.

use super::fields::Fields;
use crate::FormatError;
use crate::config::{Llama3Scaling, RopeConfig, RopePairing, RopeScaling, YarnScaling, bounds};

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
        Some(scaling) => scaling_of(&scaling)?,
        None => RopeScaling::None,
    };
    Ok(RopeConfig { base, dimensions: head_dim, pairing: RopePairing::Halves, scaling })
}

fn scaling_of(fields: &Fields) -> Result<RopeScaling, FormatError> {
    let name = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    match fields.string(name)? {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear(required(fields, "factor")?)),
        Some("llama3") => Ok(RopeScaling::Llama3(Llama3Scaling {
            factor: required(fields, "factor")?,
            low_frequency_factor: required(fields, "low_freq_factor")?,
            high_frequency_factor: required(fields, "high_freq_factor")?,
            original_context: original_context(fields)?,
        })),
        Some("yarn") => yarn(fields),
        Some(_) => Err(fields.unsupported(name, "default, linear, llama3 and yarn are")),
    }
}

fn yarn(fields: &Fields) -> Result<RopeScaling, FormatError> {
    for name in ["mscale", "mscale_all_dim"] {
        if fields.get(name).is_some() {
            return Err(fields.unsupported(name, "attention_factor is"));
        }
    }
    if fields.bool("truncate")? == Some(false) {
        return Err(fields.unsupported("truncate", "true is"));
    }
    Ok(RopeScaling::Yarn(YarnScaling {
        beta_fast: fields.f32("beta_fast")?.unwrap_or(YarnScaling::BETA_FAST),
        beta_slow: fields.f32("beta_slow")?.unwrap_or(YarnScaling::BETA_SLOW),
        amplitude: fields.f32("attention_factor")?,
        ..YarnScaling::new(required(fields, "factor")?, original_context(fields)?)
    }))
}

fn original_context(fields: &Fields) -> Result<usize, FormatError> {
    fields.required_size("original_max_position_embeddings", bounds::CONTEXT)
}

fn required(fields: &Fields, name: &str) -> Result<f32, FormatError> {
    fields.f32(name)?.ok_or_else(|| fields.missing(name, "this scaling needs it"))
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
    fn scalings_are_read_with_the_defaults_of_the_library() {
        let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let expected = RopeScaling::Llama3(Llama3Scaling {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192,
        });
        assert_eq!(read(&json!({"rope_scaling": llama3})).unwrap().scaling, expected);

        let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
        let expected = RopeScaling::Yarn(YarnScaling::new(4.0, 32768));
        assert_eq!(read(&json!({"rope_scaling": yarn})).unwrap().scaling, expected);
        let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
            "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5});
        let expected = YarnScaling {
            factor: 4.0,
            original_context: 32768,
            beta_fast: 16.0,
            beta_slow: 2.0,
            amplitude: Some(1.5),
        };
        assert_eq!(read(&json!({"rope_parameters": yarn})).unwrap().scaling, RopeScaling::Yarn(expected));
    }

    #[test]
    fn scaling_that_is_not_computed_is_refused_by_name() {
        let refused = |scaling| read(&json!({"rope_scaling": scaling})).unwrap_err().to_string();
        let error = refused(json!({"type": "longrope", "factor": 4.0}));
        assert!(error.contains("rope_scaling.type is \"longrope\""), "{error}");
        let error = refused(json!({"type": "yarn", "factor": 4.0}));
        assert!(error.contains("original_max_position_embeddings"), "{error}");
        let error = refused(json!({"type": "yarn", "factor": 4.0, "mscale": 1.0}));
        assert!(error.contains("rope_scaling.mscale"), "{error}");
    }
}
