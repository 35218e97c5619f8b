//! Where experts are in the files, and how one is laid out in a slot.
//!
//! A slot holds an expert's gate, up and down matrices as panels, one behind the other, each from a cache line on. All slots
//! are as large as the largest expert of the model needs.

use std::hash::Hasher;

use twox_hash::XxHash3_64;
use unfazed_formats::Extent;
use unfazed_kernels::LANES;
use unfazed_kernels::panel::{PackedMatrix, PanelLayout, pack_panel};
use unfazed_wire::memory::{SLOT_RECORD_BYTES, mix};

use super::{ExpertId, Unit, Units};
use crate::{Buffer, MatrixSource, StoreError};

/// Parts begin on such a boundary in a slot.
const PART_BOUNDARY: usize = 64;
/// Slots are a multiple of this.
const SLOT_BOUNDARY: usize = 4096;
/// An expert's matrices.
pub const PARTS: usize = 3;

/// The stacks of a layer's experts.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerExperts {
    /// `[experts, width, hidden]`.
    pub gate: MatrixSource,
    /// `[experts, width, hidden]`.
    pub up: MatrixSource,
    /// `[experts, hidden, width]`.
    pub down: MatrixSource,
}

/// One of an expert's matrices, in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    layout: PanelLayout,
    offset: usize,
}

/// How a layer's experts are laid out in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitLayout([Part; PARTS]);

/// A layer that has experts.
struct Layer {
    stacks: [MatrixSource; PARTS],
    layout: UnitLayout,
}

/// All experts of a model.
pub struct ExpertSources {
    layers: Vec<Option<Layer>>,
    units: Units,
    slot_bytes: usize,
    fingerprint: u64,
}

impl ExpertSources {
    /// The experts of each layer; `None` for layers without.
    ///
    /// # Errors
    ///
    /// No layer has experts, layers have different numbers of them, or a matrix cannot be packed.
    pub fn new(layers: Vec<Option<LayerExperts>>) -> Result<ExpertSources, StoreError> {
        let first = layers.iter().flatten().next().map(|layer| layer.gate.parts.len());
        let refused = |reason: String| StoreError::Experts { reason };
        let experts = first.ok_or_else(|| refused("no layer has experts".to_owned()))?;
        let units = Units { layers: layers.len() as u32, experts: experts as u32 };
        if units.count().is_none_or(|count| count == 0) {
            return Err(refused(format!("{} layers of {experts} experts cannot be counted", layers.len())));
        }
        let mut hash = XxHash3_64::new();
        let mut slot_bytes = 0;
        let mut laid_out = Vec::with_capacity(layers.len());
        for layer in layers {
            let Some(LayerExperts { gate, up, down }) = layer else {
                laid_out.push(None);
                continue;
            };
            let stacks = [gate, up, down];
            for stack in &stacks {
                if stack.parts.len() != experts {
                    let (name, found) = (&stack.name, stack.parts.len());
                    return Err(refused(format!("{name} has {found} experts where others have {experts}")));
                }
                // The names of formats and what is in which order are part of what this stands for.
                hash.write(format!("{stack:?}").as_bytes());
            }
            let (layout, bytes) = UnitLayout::new(&stacks)?;
            slot_bytes = bytes.max(slot_bytes);
            laid_out.push(Some(Layer { stacks, layout }));
        }
        Ok(ExpertSources { layers: laid_out, units, slot_bytes, fingerprint: hash.finish() })
    }

    /// Layers, those without experts included, and experts of each.
    pub fn units(&self) -> Units {
        self.units
    }

    /// Layers that have experts; at least one.
    pub fn layers(&self) -> usize {
        self.layers.iter().flatten().count().max(1)
    }

    /// Bytes of a slot, its record included; a slot may be larger.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Stands for the model's experts: their names, shapes, formats and places in the files.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The expert's number, if there is such an expert.
    ///
    /// # Errors
    ///
    /// [`StoreError::Experts`] if there is none.
    pub fn unit(&self, id: ExpertId) -> Result<Unit, StoreError> {
        let known = self.layer(id).and_then(|_| self.units.unit(id));
        known.ok_or_else(|| StoreError::Experts { reason: format!("there is no {id}") })
    }

    /// How an expert is laid out in its slot.
    pub(crate) fn layout(&self, id: ExpertId) -> Option<UnitLayout> {
        self.layer(id).map(|layer| layer.layout)
    }

    /// What to read for an expert: name, extent.
    pub(crate) fn extents(&self, id: ExpertId) -> Option<[(String, Extent); PARTS]> {
        let layer = self.layer(id)?;
        let extent = |stack: &MatrixSource| {
            let needed = layer_bytes(stack)?;
            let extent = stack.parts.get(id.expert as usize)?.part(0, needed)?;
            Some((format!("{}, expert {}", stack.name, id.expert), extent))
        };
        let [gate, up, down] = &layer.stacks;
        Some([extent(gate)?, extent(up)?, extent(down)?])
    }

    fn layer(&self, id: ExpertId) -> Option<&Layer> {
        self.layers.get(id.layer as usize)?.as_ref()
    }
}

/// Bytes of one matrix of a stack in its file.
fn layer_bytes(stack: &MatrixSource) -> Option<u64> {
    (stack.format.row_bytes(stack.columns)? as u64).checked_mul(stack.rows as u64)
}

impl UnitLayout {
    /// The layout for stacks, and the bytes of a slot for it.
    fn new(stacks: &[MatrixSource; PARTS]) -> Result<(UnitLayout, usize), StoreError> {
        let mut next = Some(0usize);
        let mut part = |stack: &MatrixSource| {
            let refused = |reason| StoreError::Shape {
                tensor: stack.name.clone(),
                shape: format!("{} x {}", stack.rows, stack.columns),
                format: stack.format,
                reason,
            };
            let layout = PanelLayout::new(stack.format, stack.rows, stack.columns)
                .ok_or_else(|| refused("columns must fill whole blocks, and nothing may be empty"))?;
            let offset = next.ok_or_else(|| refused("the size overflows"))?;
            next = offset
                .checked_add(layout.bytes())
                .and_then(|end| end.checked_next_multiple_of(PART_BOUNDARY));
            let needed = layer_bytes(stack).ok_or_else(|| refused("the size overflows"))?;
            match stack.parts.iter().find(|extent| extent.len < needed) {
                None => Ok(Part { layout, offset }),
                Some(extent) => Err(StoreError::Extent {
                    tensor: stack.name.clone(),
                    offset: extent.offset,
                    len: extent.len,
                    needed,
                }),
            }
        };
        let [gate, up, down] = stacks;
        let layout = UnitLayout([part(gate)?, part(up)?, part(down)?]);
        let bytes = next.and_then(|end| end.checked_add(SLOT_RECORD_BYTES));
        let bytes = bytes.and_then(|end| end.checked_next_multiple_of(SLOT_BOUNDARY));
        let refused = || StoreError::Memory { what: gate.name.clone(), bytes: u64::MAX };
        Ok((layout, bytes.ok_or_else(refused)?))
    }

    /// A slot's memory cut up into the places of the three parts and what lies behind them; `None` if it is too small.
    pub(crate) fn split(&self, slot: Buffer<u8>) -> Option<([Buffer<u8>; PARTS], Buffer<u8>)> {
        let [_, up, down] = &self.0;
        let (first, last) = slot.split(down.offset)?;
        let (gate, up) = first.split(up.offset)?;
        let (down, rest) = last.split(down.layout.bytes())?;
        Some(([gate, up, down], rest))
    }

    /// Packs the rows of part `number` into its place, and returns what is there then.
    pub(crate) fn pack<'p>(&self, number: usize, rows: &[u8], place: &'p mut [u8]) -> Option<&'p [u8]> {
        let Part { layout, .. } = self.0.get(number)?;
        let place = place.get_mut(..layout.bytes())?;
        let panels = place.chunks_mut(layout.panel_bytes());
        for (rows, panel) in rows.chunks(LANES * layout.row_bytes()).zip(panels) {
            pack_panel(layout, rows, panel);
        }
        Some(place)
    }

    /// Of the three parts in a slot; `None` if it is too small.
    pub(crate) fn digest(&self, slot: &[u8]) -> Option<u64> {
        let mut digests = [0; PARTS];
        for (digest, Part { layout, offset }) in digests.iter_mut().zip(&self.0) {
            *digest = super::slots::digest(slot.get(*offset..offset.checked_add(layout.bytes())?)?);
        }
        Some(UnitLayout::digest_of(digests))
    }

    /// Of an expert whose parts have these.
    pub(crate) fn digest_of(parts: [u64; PARTS]) -> u64 {
        mix(parts)
    }

    /// Part `number` of a slot: 0 gate, 1 up, 2 down.
    pub(crate) fn matrix<'s>(&self, number: usize, slot: &'s Buffer<u8>) -> PackedMatrix<'s> {
        let Part { layout, offset } = self.0[number];
        #[expect(clippy::expect_used, reason = "slots are laid out by this, and begin on a page")]
        PackedMatrix::new(layout, &slot[offset..offset + layout.bytes()])
            .expect("a part of a slot is as long as its layout says and begins on a cache line")
    }
}
