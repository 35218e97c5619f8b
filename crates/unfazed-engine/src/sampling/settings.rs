//! Which sampling settings make sense. The front checks them too; the engine does not rely on it.

use unfazed_wire::Sampling;

/// Says what is wrong with the settings, if anything: field, value, and what would pass.
pub fn check(sampling: &Sampling, vocab: usize) -> Result<(), String> {
    let within = |field: &str, value: f32, low: f32, high: f32| {
        if value >= low && value <= high {
            Ok(())
        } else {
            Err(format!("{field} is {value}: it must be between {low} and {high}"))
        }
    };
    within("temperature", sampling.temperature, 0.0, 1e6)?;
    within("top_p", sampling.top_p, 0.0, 1.0)?;
    within("min_p", sampling.min_p, 0.0, 1.0)?;
    within("repetition penalty", sampling.penalties.repetition, 1e-6, 1e6)?;
    within("presence penalty", sampling.penalties.presence, -1e6, 1e6)?;
    within("frequency penalty", sampling.penalties.frequency, -1e6, 1e6)?;
    for &(token, bias) in &sampling.logit_bias {
        if token as usize >= vocab {
            return Err(format!("logit_bias names token {token}: the vocabulary has {vocab}"));
        }
        within("logit_bias", bias, -1e6, 1e6)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let refused = |change: fn(&mut Sampling)| {
            let mut sampling = Sampling::default();
            change(&mut sampling);
            check(&sampling, 100).unwrap_err()
        };
        assert!(check(&Sampling::default(), 100).is_ok());
        assert!(refused(|s| s.temperature = f32::NAN).starts_with("temperature is NaN"));
        assert!(refused(|s| s.temperature = -1.0).contains("between 0 and"));
        assert!(refused(|s| s.top_p = 1.5).starts_with("top_p is 1.5"));
        assert!(refused(|s| s.min_p = -0.1).starts_with("min_p"));
        assert!(refused(|s| s.penalties.repetition = 0.0).starts_with("repetition"));
        assert!(refused(|s| s.penalties.presence = f32::INFINITY).starts_with("presence"));
        assert!(refused(|s| s.penalties.frequency = f32::NAN).starts_with("frequency"));
        assert!(refused(|s| s.logit_bias = vec![(100, 1.0)]).contains("token 100"));
        assert!(refused(|s| s.logit_bias = vec![(99, f32::NEG_INFINITY)]).starts_with("logit_bias is -inf"));
    }
}
