//! Where a step's activations are in the scratch memory: laid out once, for the largest step.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use unfazed_formats::ModelConfig;

use crate::Bytes;
use crate::needs::LOGIT_ROWS;

/// Sections begin on a cache line's boundary.
const ALIGN: u64 = 64;
/// A value of a row is kept as f32, and once more as what enters a matrix: int8 with scales, or f32 laid out in tiles.
const VALUE: u64 = 8;

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// The residual stream and its norm.
    Hidden,
    /// Queries, keys and values.
    Projections,
    /// What attention gives.
    Attention,
    /// Inside the dense network, or inside the experts, with the router's outputs.
    Network,
    /// Logits, of [`LOGIT_ROWS`] rows at most.
    Logits,
}

/// A part of the arena: `[rows, row]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// What it holds.
    pub holds: Activations,
    /// Where it begins.
    pub offset: Bytes,
    /// One row.
    pub row: Bytes,
    /// Rows that it has room for.
    pub rows: usize,
}

/// Where activations are. There is one layout, that of the largest step: a step of fewer rows uses the front of each
/// section, so every step up to the largest has its place, and none needs a layout of its own that could fail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arena {
    /// Rows of the largest step.
    pub rows: usize,
    /// All of it.
    pub bytes: Bytes,
    /// Its parts, in order, none over another.
    pub sections: Vec<Section>,
}

impl Arena {
    /// For steps of up to `rows` rows. Saturates where sizes overflow.
    pub fn new(model: &ModelConfig, rows: usize) -> Arena {
        let product = |a: usize, b: usize| (a as u64).saturating_mul(b as u64);
        let hidden = model.hidden as u64;
        let network = match &model.experts {
            Some(experts) => {
                let one = (2 * experts.feed_forward as u64).saturating_add(hidden);
                (experts.used as u64).saturating_mul(one).saturating_add(experts.count as u64)
            }
            None => 2 * model.feed_forward as u64,
        };
        let values = |width: u64| Bytes(width.saturating_mul(VALUE));
        let parts = [
            (Activations::Hidden, values(2 * hidden), rows),
            (
                Activations::Projections,
                values(product(model.heads.saturating_add(2 * model.kv_heads), model.head_dim)),
                rows,
            ),
            (Activations::Attention, values(product(model.heads, model.head_dim)), rows),
            (Activations::Network, values(network), rows),
            (Activations::Logits, Bytes(product(model.vocab, size_of::<f32>())), LOGIT_ROWS.min(rows.max(1))),
        ];
        let mut bytes = Bytes(0);
        let sections = parts.map(|(holds, row, rows)| {
            let offset = bytes;
            let len = row.0.saturating_mul(rows as u64).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
            bytes = bytes.saturating_add(Bytes(len));
            Section { holds, offset, row, rows }
        });
        Arena { rows, bytes, sections: sections.to_vec() }
    }

    /// Where a step of so many rows has its activations: a range of bytes for each section, in order. `None` for no rows
    /// and for more than the arena was made for.
    pub fn places(&self, rows: usize) -> Option<Vec<Range<u64>>> {
        let place = |section: &Section| {
            let start = section.offset.0;
            start..start.saturating_add(section.row.0.saturating_mul(rows.min(section.rows) as u64))
        };
        (1..=self.rows).contains(&rows).then(|| self.sections.iter().map(place).collect())
    }
}
