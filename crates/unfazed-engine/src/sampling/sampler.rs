//! The choice of a token: bias, penalties, temperature, top-k, top-p, min-p, draw.

use unfazed_kernels::Isa;
use unfazed_wire::Sampling;

use super::adjust::{Occurrences, adjust, changes_logits};
use super::philox;
use super::select::{argmax, largest, largest_value};
use super::weights::{pick, probabilities, sum};

/// Tokens in the first attempt at a nucleus; it grows eightfold until it holds `top_p`.
const NUCLEUS: usize = 64;

/// Chooses tokens. Holds scratch memory alone: a choice depends on its arguments and on nothing before it.
#[derive(Debug)]
pub struct Sampler {
    isa: Isa,
    adjusted: Vec<f32>,
    weights: Vec<f32>,
    order: Vec<u32>,
    kept: Vec<f32>,
}

impl Sampler {
    /// A sampler whose kernels run on `isa` (the choices are the same on all).
    pub fn new(isa: Isa) -> Sampler {
        Sampler { isa, adjusted: Vec::new(), weights: Vec::new(), order: Vec::new(), kept: Vec::new() }
    }

    /// Chooses the token for `position` from finite logits. Settings must have passed
    /// [`check`](super::settings::check).
    pub fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        occurrences: &Occurrences,
        position: usize,
    ) -> u32 {
        let mut adjusted = std::mem::take(&mut self.adjusted);
        let values = if changes_logits(sampling) {
            adjust(logits, sampling, occurrences, &mut adjusted);
            adjusted.as_slice()
        } else {
            logits
        };
        let token = if sampling.temperature == 0.0 {
            argmax(values)
        } else {
            let draw = philox::uniform(sampling.seed, sampling.choice, position as u64);
            self.draw(values, sampling, draw)
        };
        self.adjusted = adjusted;
        token
    }

    fn draw(&mut self, values: &[f32], sampling: &Sampling, draw: f64) -> u32 {
        let top_k = match sampling.top_k as usize {
            0 => values.len(),
            k => k.min(values.len()),
        };
        if top_k < values.len() {
            self.keep_top_k(values, top_k, sampling);
        } else if sampling.top_p < 1.0 {
            self.keep_nucleus(values, sampling);
        } else {
            return self.draw_from_all(values, sampling, draw);
        }
        let floor = self.kept.first().map_or(0.0, |best| best * sampling.min_p);
        let count = self.kept.iter().take_while(|weight| **weight >= floor).count().max(1);
        self.kept.truncate(count);
        self.order.get(pick(&self.kept, draw)).copied().unwrap_or(0)
    }

    /// Nothing but min-p cuts the vocabulary: no token needs to be put in order.
    fn draw_from_all(&mut self, values: &[f32], sampling: &Sampling, draw: f64) -> u32 {
        self.weigh_all(values, sampling.temperature);
        if sampling.min_p > 0.0 {
            let floor = largest_value(&self.weights) * sampling.min_p;
            self.weights.iter_mut().filter(|weight| **weight < floor).for_each(|weight| *weight = 0.0);
        }
        pick(&self.weights, draw) as u32
    }

    /// Probabilities among the `top_k` most likely, cut to the nucleus.
    fn keep_top_k(&mut self, values: &[f32], top_k: usize, sampling: &Sampling) {
        largest(values, top_k, &mut self.order);
        let value = |id: &u32| values.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let peak = self.order.first().map_or(0.0, value);
        let values = self.order.iter().map(value);
        probabilities(self.isa, values, peak, sampling.temperature, &mut self.kept);
        let total = sum(&self.kept);
        cut_to_nucleus(&mut self.kept, sampling.top_p, total);
    }

    /// The nucleus of the whole vocabulary: all probabilities are added up, but only as many tokens are put in order
    /// as it takes.
    fn keep_nucleus(&mut self, values: &[f32], sampling: &Sampling) {
        self.weigh_all(values, sampling.temperature);
        let total = sum(&self.weights);
        let mut count = NUCLEUS;
        loop {
            largest(values, count, &mut self.order);
            let weight = |id: &u32| self.weights.get(*id as usize).copied().unwrap_or(0.0);
            self.kept.clear();
            self.kept.extend(self.order.iter().map(weight));
            if cut_to_nucleus(&mut self.kept, sampling.top_p, total) || count >= values.len() {
                return;
            }
            count = count.saturating_mul(8);
        }
    }

    fn weigh_all(&mut self, values: &[f32], temperature: f32) {
        let peak = largest_value(values);
        probabilities(self.isa, values.iter().copied(), peak, temperature, &mut self.weights);
    }
}

/// Cuts descending weights to the fewest, at least one, that reach `top_p` of `total`. False if they all do not.
fn cut_to_nucleus(weights: &mut Vec<f32>, top_p: f32, total: f64) -> bool {
    let goal = f64::from(top_p) * total;
    let mut running = 0.0;
    for (index, &weight) in weights.iter().enumerate() {
        running += f64::from(weight);
        if running >= goal {
            weights.truncate(index + 1);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unfazed_wire::Penalties;

    fn choose(logits: &[f32], sampling: &Sampling, position: usize) -> u32 {
        Sampler::new(Isa::best()).choose(logits, sampling, &Occurrences::default(), position)
    }

    /// The definition, by sorting everything.
    fn possible(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap());
        if sampling.top_k > 0 {
            order.truncate(sampling.top_k as usize);
        }
        let peak = logits[order[0] as usize];
        let weight = |&id: &u32| f64::from(((logits[id as usize] - peak) / sampling.temperature).exp());
        let total: f64 = order.iter().map(weight).sum();
        let mut running = 0.0;
        let mut kept = Vec::new();
        for id in order {
            // A little room on both sides of a border, where the rounding of sums decides.
            if running / total >= f64::from(sampling.top_p) + 1e-6 && !kept.is_empty() {
                break;
            }
            running += weight(&id);
            kept.push(id);
        }
        let floor = f64::from(sampling.min_p) * 0.999_999;
        kept.retain(|id| weight(id) >= floor);
        kept
    }

    proptest! {
        #[test]
        fn a_chosen_token_is_one_that_the_settings_allow(
            logits in prop::collection::vec(-6f32..6.0, 1..400),
            temperature in 0.1f32..3.0,
            top_k in 0u32..50,
            top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
            seed in any::<u64>(),
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
            let allowed = possible(&logits, &sampling);
            for position in 0..8 {
                let token = choose(&logits, &sampling, position);
                prop_assert!(allowed.contains(&token), "{token} of {allowed:?}");
            }
        }
    }

    #[test]
    fn temperature_zero_takes_the_first_of_equals() {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(choose(&[1.0, 3.0, 3.0, 2.0], &sampling, 9), 1);
    }

    #[test]
    fn tokens_come_as_often_as_their_probabilities_say() {
        let logits = [0.0f32, 4f32.ln(), 5f32.ln()];
        for (top_k, top_p) in [(0, 1.0), (3, 1.0), (0, 0.999), (2, 1.0)] {
            let mut counts = [0u32; 3];
            for seed in 0..20_000 {
                let sampling = Sampling { seed, top_k, top_p, ..Sampling::default() };
                counts[choose(&logits, &sampling, 0) as usize] += 1;
            }
            let expected = if top_k == 2 { [0, 8889, 11_111] } else { [2000, 8000, 10_000] };
            for (count, expected) in counts.into_iter().zip(expected) {
                assert!(count.abs_diff(expected) < 400, "{counts:?} at top-k {top_k}, top-p {top_p}");
            }
        }
    }

    #[test]
    fn a_draw_depends_on_seed_choice_and_position_alone() {
        let logits = vec![0.0; 1000];
        let sampling = Sampling { seed: 5, ..Sampling::default() };
        let mut used = Sampler::new(Isa::best());
        let none = Occurrences::default();
        let first: Vec<u32> = (0..20).map(|p| used.choose(&logits, &sampling, &none, p)).collect();
        let again: Vec<u32> = (0..20).rev().map(|p| choose(&logits, &sampling, p)).collect();
        assert!(first.iter().eq(again.iter().rev()));
        let other = Sampling { choice: 1, ..sampling };
        assert_ne!(first, (0..20).map(|p| choose(&logits, &other, p)).collect::<Vec<_>>());
    }

    #[test]
    fn a_tiny_temperature_is_greedy_and_not_a_nan() {
        let sampling = Sampling { temperature: f32::MIN_POSITIVE, ..Sampling::default() };
        assert_eq!(choose(&[-1e30, 1e30, 5.0], &sampling, 0), 1);
    }

    #[test]
    fn penalties_change_what_is_chosen() {
        let penalties = Penalties { presence: 2.0, ..Penalties::default() };
        let sampling = Sampling { temperature: 0.0, penalties, ..Sampling::default() };
        let mut occurrences = Occurrences::of_prompt(&[1]);
        let mut sampler = Sampler::new(Isa::best());
        let logits = [1.0, 2.0, 0.0];
        assert_eq!(sampler.choose(&logits, &sampling, &occurrences, 1), 1);
        occurrences.push(1);
        assert_eq!(sampler.choose(&logits, &sampling, &occurrences, 2), 0);
    }
}
