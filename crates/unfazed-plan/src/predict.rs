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
//!
//! Layers on a GPU take their time there, before or after those of the processor: the times add up. A GPU whose rates nobody
//! knows makes no prediction of what is on it.

use serde::{Deserialize, Serialize};
use unfazed_formats::config::ExpertConfig;
use unfazed_wire::{Place, Placement};

use crate::machine::{Gpu, Rates};
use crate::weights::Matrices;
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
    /// What GPUs compute.
    Gpu,
}

impl Bound {
    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Compute => "compute",
            Bound::Memory => "memory",
            Bound::Disk => "disk",
            Bound::Gpu => "gpu",
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
    /// The longest of the four.
    pub bound: Bound,
    /// Seconds of a step for multiply-adds, and in a prompt for packing what was read.
    pub compute_seconds: f64,
    /// Seconds of a step for reading weights from memory.
    pub memory_seconds: f64,
    /// Seconds of a step for reading experts from the disk.
    pub disk_seconds: f64,
    /// Seconds of a step that GPUs compute.
    pub gpu_seconds: f64,
}

/// Which layers are where.
#[derive(Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub(crate) placement: &'a Placement,
    pub(crate) gpus: &'a [Gpu],
    /// GPUs take no time: what comes out is a bound.
    pub(crate) free: bool,
}

/// A model with what is in memory of it, on a machine.
pub(crate) struct Predictor<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) experts: Option<ExpertConfig>,
    pub(crate) rates: Rates,
    /// Bytes a second, if it was measured.
    pub(crate) disk: Option<Bytes>,
    /// `None`: the processor computes alone.
    pub(crate) layout: Option<Layout<'a>>,
}

struct Seconds {
    compute: f64,
    memory: f64,
    disk: f64,
    packing: f64,
    gpu: f64,
}

/// What a step takes of a device.
#[derive(Clone, Copy, Default)]
struct Work {
    macs: f64,
    bytes: f64,
}

impl Work {
    fn add(&mut self, part: &Matrices, rows: usize) {
        self.macs += part.macs as f64 * rows as f64;
        self.bytes += part.packed.0 as f64;
    }

    fn sub(&mut self, part: &Matrices, rows: usize) {
        self.macs -= part.macs as f64 * rows as f64;
        self.bytes -= part.packed.0 as f64;
    }

    /// Seconds on a GPU; `None` where a rate is missing. A few rows are bound by memory on any.
    fn seconds(&self, gpu: &Gpu, rows: usize) -> Option<f64> {
        const FEW_ROWS: usize = 8;
        let memory = self.bytes / (gpu.read_per_second.filter(|rate| rate.0 > 0)?.0 as f64 * READ_SHARE);
        let compute = match gpu.macs_per_second {
            Some(rate) if rate > 0 => self.macs / (rate as f64 * DOT_SHARE),
            _ if rows <= FEW_ROWS => 0.0,
            _ => return None,
        };
        Some(memory.max(compute))
    }
}

impl Predictor<'_> {
    /// A prompt, computed in steps of so many rows.
    pub(crate) fn prefill(&self, rows: usize, plan: Option<&Experts>) -> Option<Prediction> {
        let seconds = self.seconds(rows, 0, plan)?;
        let seconds = Seconds { compute: seconds.compute + seconds.packing, ..seconds };
        let longest = seconds.compute.max(seconds.memory).max(seconds.disk);
        Some(seconds.prediction(rows, longest + seconds.gpu))
    }

    /// An answer of one sequence.
    pub(crate) fn decode(&self, plan: Option<&Experts>) -> Option<Prediction> {
        let seconds = self.seconds(1, 1, plan)?;
        let sum = seconds.compute.max(seconds.memory) + seconds.disk.max(seconds.packing) + seconds.gpu;
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
        let (mut cpu, mut gpus) = self.dense(rows, logit_rows);
        let mut disk = 0.0;
        if let Some(experts) = self.experts {
            let count = experts.count.max(1) as f64;
            let unused = 1.0 - experts.used as f64 / count;
            let touched = 1.0 - unused.powf(rows as f64);
            for (i, layer) in self.weights.layers.iter().enumerate() {
                let work = Work {
                    macs: experts.used as f64 * layer.expert.macs as f64 * rows as f64,
                    bytes: count * touched * layer.expert.packed.0 as f64,
                };
                if let Some(on_gpu) = self.network(layer.layer).gpu().and_then(|gpu| gpus.get_mut(gpu)) {
                    on_gpu.macs += work.macs;
                    on_gpu.bytes += work.bytes;
                    continue;
                }
                let slots = plan.map_or(experts.count, |plan| self.slots(plan, i));
                cpu.macs += work.macs;
                cpu.bytes += work.bytes;
                disk += experts.count.saturating_sub(slots) as f64 * touched * layer.expert.file.0 as f64;
            }
        }
        let packing = disk / (PACKED_PER_SECOND * self.rates.threads.max(1) as f64);
        let disk = match self.disk {
            _ if disk <= 0.0 => 0.0,
            Some(rate) if rate.0 > 0 => disk / rate.0 as f64,
            _ => return None,
        };
        Some(Seconds {
            compute: cpu.macs / (macs * DOT_SHARE),
            memory: cpu.bytes / (read * READ_SHARE),
            disk,
            packing,
            gpu: self.gpu_seconds(&gpus, rows)?,
        })
    }

    /// What a step takes beside experts: of the processor, and of each GPU.
    fn dense(&self, rows: usize, logit_rows: usize) -> (Work, Vec<Work>) {
        let (mut cpu, mut gpus) = (Work::default(), Vec::new());
        cpu.add(&self.weights.body, rows);
        if let Some(Layout { placement, gpus: all, .. }) = self.layout {
            gpus = vec![Work::default(); all.len()];
            for (at, block) in placement.layers.iter().zip(&self.weights.blocks) {
                for (place, part) in [(at.attention, block.attention), (at.feed_forward, block.feed_forward)]
                {
                    if let Some(gpu) = place.gpu().and_then(|gpu| gpus.get_mut(gpu)) {
                        gpu.add(&part, rows);
                        cpu.sub(&part, rows);
                    }
                }
            }
        }
        if logit_rows > 0 {
            let output = self.layout.map_or(Place::Cpu, |layout| layout.placement.output);
            let at = output.gpu().and_then(|gpu| gpus.get_mut(gpu)).unwrap_or(&mut cpu);
            at.add(&self.weights.output, logit_rows);
        }
        (cpu, gpus)
    }

    /// Where a layer's network or experts are.
    fn network(&self, layer: usize) -> Place {
        let at = self.layout.and_then(|layout| layout.placement.layers.get(layer));
        at.map_or(Place::Cpu, |at| at.feed_forward)
    }

    /// Slots of the `i`th layer with experts. Those of layers on a GPU serve the others.
    fn slots(&self, plan: &Experts, i: usize) -> usize {
        let on_gpu = plan.layers.iter().filter(|layer| self.network(layer.layer).is_gpu()).count();
        match plan.layers.len().checked_sub(on_gpu) {
            Some(layers) if layers > 0 && on_gpu > 0 => (plan.slots() / layers).min(plan.count),
            _ => plan.layers.get(i).map_or(plan.count, |layer| layer.slots),
        }
    }

    fn gpu_seconds(&self, work: &[Work], rows: usize) -> Option<f64> {
        let Some(Layout { gpus, free: false, .. }) = self.layout else { return Some(0.0) };
        let busy = gpus.iter().zip(work).filter(|(_, work)| work.bytes > 0.0);
        busy.map(|(gpu, work)| work.seconds(gpu, rows)).sum()
    }
}

impl Seconds {
    fn prediction(&self, rows: usize, seconds: f64) -> Prediction {
        let cpu = self.memory.max(self.compute).max(self.disk);
        let bound = if self.gpu > cpu {
            Bound::Gpu
        } else if self.disk >= self.memory.max(self.compute) && self.disk > 0.0 {
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
            gpu_seconds: self.gpu,
        }
    }
}
