//! What a policy would have done with a trace, and how fast that would have been.

use super::policy::{Policy, PolicyKind};
use super::trace::{Step, TraceHeader};
use super::{ExpertId, Unit};

/// A policy over a number of slots, as it replays a trace.
pub struct Replay {
    kind: PolicyKind,
    slots: usize,
    policy: Box<dyn Policy>,
    counts: Counts,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens computed.
    pub tokens: u64,
    /// Experts used, each once a step.
    pub uses: u64,
    /// Of these, experts that were in a slot.
    pub hits: u64,
    /// Experts that could not be given a slot, as all were in use by the step itself.
    pub bypassed: u64,
}

/// How fast the machine is, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Experts read from storage.
    pub storage: f64,
    /// Weights read from memory to be computed with.
    pub memory: f64,
}

/// Tokens a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// If a step reads first and computes then.
    pub one_after_the_other: f64,
    /// If all reading is hidden behind computing, or all computing behind reading.
    pub overlapped: f64,
}

impl Replay {
    /// A policy that has seen nothing yet.
    pub fn new(kind: PolicyKind, slots: usize, header: &TraceHeader) -> Replay {
        let units = header.units.count().unwrap_or(0);
        Replay { kind, slots, policy: kind.build(slots, units), counts: Counts::default() }
    }

    /// Which policy.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Over how many slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Replays a step. While a layer is computed all of its experts are pinned.
    pub fn step(&mut self, header: &TraceHeader, step: &Step) {
        self.counts.tokens += u64::from(step.tokens);
        for (layer, experts) in &step.layers {
            let unit = |expert: &u32| header.units.unit(ExpertId { layer: *layer, expert: *expert });
            let units: Vec<Unit> = experts.iter().filter_map(unit).collect();
            let (hits, misses): (Vec<Unit>, Vec<Unit>) =
                units.iter().copied().partition(|unit| self.policy.contains(*unit));
            self.counts.uses += units.len() as u64;
            self.counts.hits += hits.len() as u64;
            hits.iter().for_each(|unit| self.policy.touch(*unit));
            for miss in misses {
                let pinned = |other| units.binary_search(&other).is_ok();
                if self.policy.admit(miss, &pinned).is_none() {
                    self.counts.bypassed += 1;
                }
            }
        }
    }
}

impl Counts {
    /// The share of uses that were hits; `None` if nothing was used.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.uses > 0).then(|| self.hits as f64 / self.uses as f64)
    }

    /// Bytes that are read from storage for a token.
    pub fn bytes_per_token(&self, header: &TraceHeader) -> Option<f64> {
        let missed = self.uses.saturating_sub(self.hits) as f64 * header.expert_bytes as f64;
        (self.tokens > 0).then(|| missed / self.tokens as f64)
    }

    /// How fast that would have been. Reading weights is all that a step is taken to cost, from storage and from memory: a
    /// step reads the weights that are not experts' once, however many tokens it computes, which is close for one token.
    pub fn predict(&self, header: &TraceHeader, rates: Rates) -> Option<Prediction> {
        let storage = self.bytes_per_token(header)? / rates.storage;
        let experts = self.uses as f64 * header.expert_bytes as f64 / self.tokens as f64;
        let memory = (experts + header.other_bytes as f64) / rates.memory;
        let sound = storage.is_finite() && memory.is_finite() && memory > 0.0;
        sound.then(|| Prediction {
            one_after_the_other: 1.0 / (storage + memory),
            overlapped: 1.0 / storage.max(memory),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Units;
    use super::*;

    fn header() -> TraceHeader {
        let units = Units { layers: 2, experts: 8 };
        TraceHeader { model: String::new(), units, used: 2, expert_bytes: 1000, other_bytes: 2000 }
    }

    #[test]
    fn hits_and_bytes_are_counted_and_a_rate_follows() {
        let header = header();
        let mut replay = Replay::new(PolicyKind::Lru, 4, &header);
        let step = Step { tokens: 1, layers: vec![(0, vec![1, 2]), (1, vec![1, 2])] };
        for _ in 0..4 {
            replay.step(&header, &step);
        }
        let counts = replay.counts();
        assert_eq!(counts, Counts { tokens: 4, uses: 16, hits: 12, bypassed: 0 });
        assert_eq!(counts.hit_rate(), Some(0.75));
        assert_eq!(counts.bytes_per_token(&header), Some(1000.0));
        // A token reads 1000 bytes from storage, and 4 experts and 2000 other bytes from memory.
        let rates = Rates { storage: 1000.0, memory: 3000.0 };
        let prediction = counts.predict(&header, rates).unwrap();
        assert!((prediction.one_after_the_other - 1.0 / 3.0).abs() < 1e-12);
        assert!((prediction.overlapped - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_step_that_uses_more_experts_than_there_are_slots_bypasses_them() {
        let header = header();
        let mut replay = Replay::new(PolicyKind::S3Fifo, 3, &header);
        replay.step(&header, &Step { tokens: 5, layers: vec![(0, (0..8).collect())] });
        assert_eq!(replay.counts().bypassed, 5);
        assert_eq!(Counts::default().hit_rate(), None);
        assert_eq!(Counts::default().predict(&header, Rates { storage: 1.0, memory: 1.0 }), None);
    }
}
