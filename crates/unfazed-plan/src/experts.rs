//! Which experts are in memory, and what streams the others: slots by layer, the ring, the staging of reads.

use serde::{Deserialize, Serialize};
use unfazed_formats::config::ExpertConfig;

use crate::weights::whole_pages;
use crate::{Bytes, Weights, needs};

/// Slots of the ring through which experts that get no slot of their own pass: one is computed with while the next ones
/// are read and packed.
const RING_SLOTS: usize = 8;
/// Reads of experts under way at once that staging has room for.
const READS: u64 = 8;
/// Extents of an expert in a file: gate, up and down.
const EXTENTS: u64 = 3;

/// The slots of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSlots {
    /// The layer's number.
    pub layer: usize,
    /// Experts that memory holds at once.
    pub slots: usize,
    /// One slot: an expert's gate, up and down as packed, and its record, in whole pages.
    pub slot_bytes: Bytes,
    /// One expert in the model's files.
    pub file_bytes: Bytes,
}

/// What was decided about experts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Experts in a layer.
    pub count: usize,
    /// Experts that a token uses in a layer.
    pub used: usize,
    /// Experts are read when they are needed, into slots or through the ring. Otherwise all are in memory as part of the
    /// packed weights, each layer has as many slots as experts, and there are neither ring nor staging.
    pub streaming: bool,
    /// By layer, ascending. Layers without experts are not among them.
    pub layers: Vec<LayerSlots>,
    /// Slots of the ring; each holds an expert of any layer.
    pub ring_slots: usize,
    /// One slot of the ring.
    pub ring_slot_bytes: Bytes,
    /// What is read and not yet packed.
    pub staging_bytes: Bytes,
}

impl Experts {
    /// Slots of all layers.
    pub fn slots(&self) -> usize {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.slots))
    }

    /// Slots with which a token's experts are in memory together, in every layer.
    pub fn least(&self) -> usize {
        self.used.saturating_mul(self.layers.len()).min(self.slots())
    }

    /// Experts of all layers.
    pub fn all(&self) -> usize {
        self.count.saturating_mul(self.layers.len())
    }

    /// All experts in the model's files.
    pub fn file_bytes(&self) -> Bytes {
        let bytes = self.layers.iter().map(|layer| layer.file_bytes.saturating_mul(self.count as u64));
        bytes.fold(Bytes(0), Bytes::saturating_add)
    }

    /// Memory of all layers' slots.
    pub fn slot_bytes(&self) -> Bytes {
        let bytes = self.layers.iter().map(|layer| layer.slot_bytes.saturating_mul(layer.slots as u64));
        bytes.fold(Bytes(0), Bytes::saturating_add)
    }

    /// Memory of the ring.
    pub fn ring_bytes(&self) -> Bytes {
        self.ring_slot_bytes.saturating_mul(self.ring_slots as u64)
    }

    /// Experts in slots, as a share of all.
    pub fn share(&self) -> f64 {
        self.slots() as f64 / self.all().max(1) as f64
    }
}

/// What slots cost for a model with experts.
pub(crate) struct Store<'w> {
    weights: &'w Weights,
    experts: ExpertConfig,
    slot_bytes: Vec<Bytes>,
}

impl<'w> Store<'w> {
    /// `None` for a model without experts.
    pub(crate) fn of(weights: &'w Weights, experts: Option<ExpertConfig>) -> Option<Store<'w>> {
        let experts = experts.filter(|_| !weights.layers.is_empty())?;
        // A slot takes an expert of any layer.
        let largest = weights.layers.iter().map(|layer| weights.slot_bytes(layer)).max()?;
        Some(Store { weights, experts, slot_bytes: vec![largest; weights.layers.len()] })
    }

    /// Slots for all experts.
    pub(crate) fn most(&self) -> usize {
        self.slot_bytes.len().saturating_mul(self.experts.count)
    }

    /// Slots with which a row's experts are in memory together, in every layer.
    pub(crate) fn least(&self) -> usize {
        self.slot_bytes.len().saturating_mul(self.experts.used)
    }

    /// Slots by layer if there are so many in all: the same number in each, and one more in the first ones for the rest.
    pub(crate) fn by_layer(&self, slots: usize) -> impl Iterator<Item = usize> {
        let layers = self.slot_bytes.len().max(1);
        let (each, rest) = (slots / layers, slots % layers);
        let most = self.experts.count;
        (0..self.slot_bytes.len()).map(move |layer| (each + usize::from(layer < rest)).min(most))
    }

    /// Memory of so many slots.
    pub(crate) fn bytes(&self, slots: usize) -> Bytes {
        let layers = self.by_layer(slots).zip(&self.slot_bytes);
        layers.map(|(slots, bytes)| bytes.saturating_mul(slots as u64)).fold(Bytes(0), Bytes::saturating_add)
    }

    /// The most slots that take no more than `bytes`.
    pub(crate) fn within(&self, bytes: Bytes) -> usize {
        crate::fill::largest(0, self.most(), |slots| self.bytes(slots) <= bytes)
    }

    /// Ring and staging: what streaming takes beside slots.
    pub(crate) fn overhead(&self) -> Bytes {
        let plan = self.plan(0);
        plan.ring_bytes().saturating_add(plan.staging_bytes)
    }

    /// A plan that streams with so many slots.
    pub(crate) fn plan(&self, slots: usize) -> Experts {
        let largest = |sizes: &mut dyn Iterator<Item = Bytes>| sizes.max().unwrap_or_default();
        // A direct read begins and ends on a page's boundary, so that each extent may need a page more at either end.
        let unit =
            |file: Bytes| whole_pages(file.saturating_add(needs::MEMORY_PAGE.saturating_mul(2 * EXTENTS)));
        let reads = self.weights.layers.iter().map(|layer| unit(layer.expert.file));
        Experts {
            streaming: true,
            ring_slots: RING_SLOTS.min(self.experts.count.max(2)),
            ring_slot_bytes: largest(&mut self.slot_bytes.iter().copied()),
            staging_bytes: largest(&mut reads.into_iter()).saturating_mul(READS),
            ..self.resident(slots)
        }
    }

    /// A plan that keeps all experts in memory.
    pub(crate) fn whole(&self) -> Experts {
        self.resident(self.most())
    }

    fn resident(&self, slots: usize) -> Experts {
        let layers = self.weights.layers.iter().zip(&self.slot_bytes).zip(self.by_layer(slots));
        let layers = layers.map(|((layer, slot_bytes), slots)| LayerSlots {
            layer: layer.layer,
            slots,
            slot_bytes: *slot_bytes,
            file_bytes: layer.expert.file,
        });
        Experts {
            count: self.experts.count,
            used: self.experts.used,
            streaming: false,
            layers: layers.collect(),
            ring_slots: 0,
            ring_slot_bytes: Bytes(0),
            staging_bytes: Bytes(0),
        }
    }
}
