//! Bias and penalties: what is done to logits before a token is chosen from them.

use std::collections::HashMap;

use unfazed_wire::{Penalties, Sampling};

/// How often tokens occurred in a sequence, for penalties.
#[derive(Clone, Debug, Default)]
pub struct Occurrences {
    /// Times generated; 0 for a token that is in the prompt alone.
    generated: HashMap<u32, u32>,
}

impl Occurrences {
    /// Those of a prompt; nothing has been generated.
    pub fn of_prompt(prompt: &[u32]) -> Occurrences {
        Occurrences { generated: prompt.iter().map(|&token| (token, 0)).collect() }
    }

    /// One more generated token.
    pub fn push(&mut self, token: u32) {
        let count = self.generated.entry(token).or_default();
        *count = count.saturating_add(1);
    }
}

/// True if settings change logits at all.
pub fn changes_logits(sampling: &Sampling) -> bool {
    !sampling.logit_bias.is_empty() || penalises(&sampling.penalties)
}

/// True if occurrences must be counted.
pub fn penalises(penalties: &Penalties) -> bool {
    *penalties != Penalties::default()
}

/// Copies logits to `out`, adds the bias, then applies penalties: repetition to all tokens of prompt and answer,
/// presence and frequency to those of the answer. Values stay finite.
pub fn adjust(logits: &[f32], sampling: &Sampling, occurrences: &Occurrences, out: &mut Vec<f32>) {
    out.clear();
    out.extend_from_slice(logits);
    for &(token, bias) in &sampling.logit_bias {
        if let Some(logit) = out.get_mut(token as usize) {
            *logit = finite(*logit + bias);
        }
    }
    let Penalties { repetition, presence, frequency } = sampling.penalties;
    // The order in a hash map is random, but each entry changes a logit of its own.
    for (&token, &count) in &occurrences.generated {
        let Some(logit) = out.get_mut(token as usize) else { continue };
        let mut value = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
        if count > 0 {
            value = value - presence - frequency * count as f32;
        }
        *logit = finite(value);
    }
}

fn finite(value: f32) -> f32 {
    value.clamp(f32::MIN, f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjusted(sampling: &Sampling, prompt: &[u32], generated: &[u32]) -> Vec<f32> {
        let mut occurrences = Occurrences::of_prompt(prompt);
        generated.iter().for_each(|&token| occurrences.push(token));
        let mut out = Vec::new();
        adjust(&[2.0, -2.0, 4.0, 0.5], sampling, &occurrences, &mut out);
        out
    }

    #[test]
    fn repetition_counts_the_prompt_and_pushes_both_signs_down() {
        let penalties = Penalties { repetition: 2.0, ..Penalties::default() };
        let sampling = Sampling { penalties, ..Sampling::default() };
        assert_eq!(adjusted(&sampling, &[0, 1], &[2, 2]), [1.0, -4.0, 2.0, 0.5]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time_and_neither_the_prompt() {
        let penalties = Penalties { repetition: 1.0, presence: 0.5, frequency: 0.25 };
        let sampling = Sampling { penalties, ..Sampling::default() };
        assert_eq!(adjusted(&sampling, &[0, 3], &[2, 2, 2, 1]), [2.0, -2.75, 2.75, 0.5]);
    }

    #[test]
    fn bias_comes_before_penalties() {
        let penalties = Penalties { repetition: 2.0, ..Penalties::default() };
        let sampling = Sampling { penalties, logit_bias: vec![(1, 4.0)], ..Sampling::default() };
        assert_eq!(adjusted(&sampling, &[1], &[]), [2.0, 1.0, 4.0, 0.5]);
    }

    #[test]
    fn values_stay_finite_under_extreme_settings() {
        let penalties = Penalties { repetition: 1e-6, presence: -1e6, frequency: -1e6 };
        let sampling = Sampling { penalties, ..Sampling::default() };
        let occurrences = Occurrences::of_prompt(&[0, 1]);
        let mut out = Vec::new();
        adjust(&[f32::MAX, f32::MIN], &sampling, &occurrences, &mut out);
        assert!(out.iter().all(|value| value.is_finite()));
    }
}
