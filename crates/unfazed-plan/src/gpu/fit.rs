//! A number of layers as a placement, what that takes of each GPU, and whether it fits.

use unfazed_formats::ModelConfig;
use unfazed_wire::{LayerPlace, Place, Placement};

use super::{GpuPool, GpuSettings};
use crate::machine::Gpu;
use crate::refusal::{Part, PartName};
use crate::{Bytes, Weights};

/// Kept free on a GPU: what its driver takes for itself.
const RESERVE: Bytes = Bytes(384 << 20);
/// Share of its free memory that is kept free as well, for a display and other programs.
const RESERVE_SHARE: u64 = 32;
/// What is on its way to a GPU.
pub(super) const STAGING: Bytes = Bytes(64 << 20);

/// What a GPU holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) layers: usize,
    /// Weights but for experts.
    dense: Bytes,
    experts: Bytes,
    kv: Bytes,
    scratch: Bytes,
    staging: Bytes,
}

impl Load {
    fn of(parts: &[Bytes]) -> Bytes {
        parts.iter().copied().fold(Bytes(0), Bytes::saturating_add)
    }

    fn weights(&self) -> Bytes {
        self.dense.saturating_add(self.experts)
    }

    pub(super) fn bytes(&self) -> Bytes {
        Load::of(&[self.weights(), self.kv, self.scratch, self.staging])
    }

    /// What of it is not in the processor's pool already, if both are the same memory. Keys and values are there for every
    /// layer, wherever it is. Weights are, unless both have them; experts that are streamed never are.
    fn besides(&self, copy: bool, streams: bool) -> Bytes {
        let dense = if copy { self.dense } else { Bytes(0) };
        let experts = if copy || streams { self.experts } else { Bytes(0) };
        Load::of(&[dense, experts, self.scratch, self.staging])
    }
}

/// A model and the GPUs that its layers may be on.
pub(super) struct Fit<'a> {
    pub(super) model: &'a ModelConfig,
    pub(super) weights: &'a Weights,
    pub(super) gpus: &'a [Gpu],
    pub(super) settings: &'a GpuSettings,
    /// One KV page of one layer.
    pub(super) layer_page: Bytes,
    /// Activations and logits of the largest step.
    pub(super) scratch: Bytes,
    /// Experts are streamed, by the processor's side.
    pub(super) streams: bool,
    /// All experts stay with the processor, whatever the settings say.
    pub(super) experts_stay: bool,
}

impl Fit<'_> {
    /// Layers and the output table.
    pub(super) fn most(&self) -> usize {
        self.model.layers.saturating_add(1)
    }

    /// So many of the last layers on GPUs; one more than there are is the output table too.
    pub(super) fn placement(&self, units: usize) -> Placement {
        let mut placement = Placement::cpu(self.model.layers);
        let on_gpu = units.min(self.model.layers);
        let first = self.model.layers - on_gpu;
        let borders = self.borders(on_gpu);
        let mut gpu = 0;
        for (i, layer) in placement.layers.iter_mut().enumerate().skip(first) {
            gpu = borders.iter().position(|border| i - first < *border).unwrap_or(gpu);
            let place = Place::Gpu(gpu);
            let stay = self.has_experts(i) && (self.experts_stay || self.settings.cpu_moe.keeps(i));
            let feed_forward = if stay { Place::Cpu } else { place };
            *layer = LayerPlace { attention: place, feed_forward };
        }
        if units > self.model.layers {
            placement.output = Place::Gpu(gpu);
        }
        placement
    }

    pub(super) fn has_experts(&self, layer: usize) -> bool {
        self.weights.blocks.get(layer).is_some_and(|block| block.experts > Bytes(0))
    }

    /// Where each GPU's layers end, of so many in all.
    fn borders(&self, layers: usize) -> Vec<usize> {
        let shares: Vec<u64> = match &self.settings.split {
            Some(split) => {
                let shares = split.shares().iter().map(|share| u64::from(*share));
                shares.chain(std::iter::repeat(0)).take(self.gpus.len()).collect()
            }
            // In MiB, so that sums do not overflow.
            None => self.gpus.iter().map(|gpu| room(gpu).map_or(1, |room| room.0 >> 20).max(1)).collect(),
        };
        let all = shares.iter().map(|share| u128::from(*share)).sum::<u128>().max(1);
        let mut sum = 0;
        let border = |share: &u64| {
            sum += u128::from(*share);
            let border = (2 * layers as u128 * sum + all) / (2 * all);
            usize::try_from(border).unwrap_or(layers).min(layers)
        };
        shares.iter().map(border).collect()
    }

    /// What each GPU holds, with so many KV pages.
    pub(super) fn loads(&self, placement: &Placement, pages: usize) -> Vec<Load> {
        let mut loads = vec![Load::default(); self.gpus.len()];
        let kv = self.layer_page.saturating_mul(pages as u64);
        for (place, block) in placement.layers.iter().zip(&self.weights.blocks) {
            if let Some(load) = place.attention.gpu().and_then(|gpu| loads.get_mut(gpu)) {
                load.layers += 1;
                load.dense = load.dense.saturating_add(block.attention.packed);
                load.kv = load.kv.saturating_add(kv);
            }
            if let Some(load) = place.feed_forward.gpu().and_then(|gpu| loads.get_mut(gpu)) {
                load.dense = load.dense.saturating_add(block.feed_forward.packed);
                load.experts = load.experts.saturating_add(block.experts);
            }
        }
        if let Some(load) = placement.output.gpu().and_then(|gpu| loads.get_mut(gpu)) {
            load.dense = load.dense.saturating_add(self.weights.output.packed);
        }
        for load in loads.iter_mut().filter(|load| load.layers > 0 || load.dense > Bytes(0)) {
            (load.scratch, load.staging) = (self.scratch, STAGING);
        }
        loads
    }

    /// Whether so many layers fit with so many KV pages, where GPUs that share the processor's memory may take so much more of
    /// it. A GPU whose memory nobody knows holds what it is told to.
    pub(super) fn fits(&self, units: usize, pages: usize, copy: bool, spare: Bytes) -> bool {
        let loads = self.loads(&self.placement(units), pages);
        let mut shared = Bytes(0);
        for (gpu, load) in self.gpus.iter().zip(&loads) {
            if room(gpu).is_some_and(|room| load.bytes() > room) {
                return false;
            }
            if gpu.unified {
                shared = shared.saturating_add(load.besides(copy, self.streams));
            }
        }
        shared <= spare
    }

    /// The GPUs' pools under a placement.
    pub(super) fn pools(&self, placement: &Placement, pages: usize) -> Vec<GpuPool> {
        let pool = |(gpu, load): (&Gpu, Load)| {
            let parts = [
                (PartName::Weights, load.weights()),
                (PartName::KvPages, load.kv),
                (PartName::Scratch, load.scratch),
                (PartName::Staging, load.staging),
                (PartName::Reserve, reserve(gpu)),
            ];
            let parts = parts.into_iter().filter(|(_, bytes)| *bytes > Bytes(0));
            GpuPool {
                number: gpu.number,
                name: gpu.name.clone(),
                software: gpu.software,
                unified: gpu.unified,
                total: gpu.total,
                free: gpu.free,
                layers: load.layers,
                parts: parts.map(|(part, bytes)| Part { part, bytes }).collect(),
            }
        };
        self.gpus.iter().zip(self.loads(placement, pages)).map(pool).collect()
    }
}

/// What is free, or all of it where only that is known.
fn free(gpu: &Gpu) -> Option<Bytes> {
    gpu.free.or(gpu.total)
}

/// What is kept free.
fn reserve(gpu: &Gpu) -> Bytes {
    free(gpu).map_or(Bytes(0), |free| RESERVE.saturating_add(Bytes(free.0 / RESERVE_SHARE)).min(free))
}

/// What may be taken; `None` where nobody knows.
pub(super) fn room(gpu: &Gpu) -> Option<Bytes> {
    free(gpu).map(|free| free.saturating_sub(reserve(gpu)))
}
