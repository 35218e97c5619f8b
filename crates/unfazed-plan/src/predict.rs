//! Predictions: how many tokens a second a plan should give on this machine, and what bounds them.
//!
//! A step has three costs: multiply-adds, bytes of weights read from memory, and bytes of experts read from the disk. Each
//! row chooses `k` of `n` experts in a layer; of those a step of `r` rows touches `n (1 - (1 - k/n)^r)` if each is as likely
//! as any other, and finds as many of them in memory as there are slots for. Real prompts have favourites, so that real hit
//! rates are higher: what is predicted of a plan that streams is a floor.
//!
//! What is read is checked and packed by the threads that compute. In a prompt the ring reads ahead of the layers, so that
//! the disk works beside them, and the longest counts. A single token's missing experts are known only when its router has
//! spoken, so that they come on top. Attention over long contexts, norms and sampling are left out.

use serde::{Deserialize, Serialize};
use unfazed_formats::config::ExpertConfig;

use crate::machine::Rates;
use crate::{Bytes, Experts, Weights};

/// Share of the measured peak of dot products that matrix products of many rows reach (39 to 49 % where they were
/// measured).
const DOT_SHARE: f64 = 0.4;
/// Share of the measured memory read rate that a decode step reaches.
const READ_SHARE: f64 = 0.9;

/// Bytes a second that a thread checks and packs, of Q4_K beside a prompt (1.2 GB/s where it was measured).
const PACKED_PER_SECOND: f64 = 1.2e9;

/// What bounds a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Multiply-adds.
    Compute,
    /// Weights read from memory.
    Memory,
    /// Experts read from the disk.
    Disk,
}

impl Bound {
    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Compute => "compute",
            Bound::Memory => "memory",
            Bound::Disk => "disk",
        }
    }
}

/// What a step should take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Rows of the step.
    pub rows: usize,
    /// Tokens in a second.
    pub tokens_per_second: f64,
    /// The longest of the three.
    pub bound: Bound,
    /// Seconds of a step for multiply-adds, and in a prompt for packing what was read.
    pub compute_seconds: f64,
    /// Seconds of a step for reading weights from memory.
    pub memory_seconds: f64,
    /// Seconds of a step for reading experts from the disk.
    pub disk_seconds: f64,
}

/// A model with what is in memory of it, on a machine.
pub(crate) struct Predictor<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) experts: Option<ExpertConfig>,
    pub(crate) rates: Rates,
    /// Bytes a second, if it was measured.
    pub(crate) disk: Option<Bytes>,
}

struct Seconds {
    compute: f64,
    memory: f64,
    disk: f64,
    packing: f64,
}

impl Predictor<'_> {
    /// A prompt, computed in steps of so many rows.
    pub(crate) fn prefill(&self, rows: usize, plan: Option<&Experts>) -> Option<Prediction> {
        let seconds = self.seconds(rows, 0, plan)?;
        let seconds = Seconds { compute: seconds.compute + seconds.packing, ..seconds };
        let longest = seconds.compute.max(seconds.memory).max(seconds.disk);
        Some(seconds.prediction(rows, longest))
    }

    /// An answer of one sequence.
    pub(crate) fn decode(&self, plan: Option<&Experts>) -> Option<Prediction> {
        let seconds = self.seconds(1, 1, plan)?;
        let sum = seconds.compute.max(seconds.memory) + seconds.disk.max(seconds.packing);
        Some(seconds.prediction(1, sum))
    }

    /// The fewest rows, in even steps, whose multiply-adds take as long as all that the step reads and packs; `most` if there
    /// are none up to it. More rows would make a prompt hardly faster. Without the disk's rate what it reads is not counted.
    pub(crate) fn balanced(&self, least: usize, most: usize, plan: Option<&Experts>) -> usize {
        const STEP: usize = 64;
        let balanced = |rows: &usize| {
            let disk = Predictor { disk: Some(self.disk.unwrap_or(Bytes(u64::MAX))), ..*self };
            let seconds = disk.seconds(*rows, 0, plan);
            seconds.is_none_or(|s| s.compute >= s.memory.max(s.disk) + s.packing)
        };
        (least..most).step_by(STEP).find(balanced).unwrap_or(most)
    }

    /// `None` where a rate is missing.
    fn seconds(&self, rows: usize, logit_rows: usize, plan: Option<&Experts>) -> Option<Seconds> {
        let (macs, read) = (self.rates.macs_per_second as f64, self.rates.read_per_second.0 as f64);
        if macs <= 0.0 || read <= 0.0 {
            return None;
        }
        let output = if logit_rows > 0 { self.weights.output.packed.0 as f64 } else { 0.0 };
        let mut row_macs = self.weights.body.macs as f64;
        let (mut memory, mut disk) = (self.weights.body.packed.0 as f64 + output, 0.0);
        if let Some(experts) = self.experts {
            let count = experts.count.max(1) as f64;
            let unused = 1.0 - experts.used as f64 / count;
            let touched = 1.0 - unused.powf(rows as f64);
            for (i, layer) in self.weights.layers.iter().enumerate() {
                let slots =
                    plan.and_then(|plan| plan.layers.get(i)).map_or(experts.count, |layer| layer.slots);
                row_macs += experts.used as f64 * layer.expert.macs as f64;
                memory += count * touched * layer.expert.packed.0 as f64;
                disk += experts.count.saturating_sub(slots) as f64 * touched * layer.expert.file.0 as f64;
            }
        }
        let macs_in_all = row_macs * rows as f64 + self.weights.output.macs as f64 * logit_rows as f64;
        let packing = disk / (PACKED_PER_SECOND * self.rates.threads.max(1) as f64);
        let disk = match self.disk {
            _ if disk <= 0.0 => 0.0,
            Some(rate) if rate.0 > 0 => disk / rate.0 as f64,
            _ => return None,
        };
        Some(Seconds {
            compute: macs_in_all / (macs * DOT_SHARE),
            memory: memory / (read * READ_SHARE),
            disk,
            packing,
        })
    }
}

impl Seconds {
    fn prediction(&self, rows: usize, seconds: f64) -> Prediction {
        let bound = if self.disk >= self.memory.max(self.compute) && self.disk > 0.0 {
            Bound::Disk
        } else if self.memory >= self.compute {
            Bound::Memory
        } else {
            Bound::Compute
        };
        Prediction {
            rows,
            // A model without matrices takes no time, and no number of tokens a second would be true.
            tokens_per_second: if seconds > 0.0 { rows as f64 / seconds } else { 0.0 },
            bound,
            compute_seconds: self.compute,
            memory_seconds: self.memory,
            disk_seconds: self.disk,
        }
    }
}
