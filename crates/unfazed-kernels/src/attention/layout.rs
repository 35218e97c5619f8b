//! How a page is laid out.

use std::ops::Range;

use unfazed_formats::{KvType, KvTypes};

use crate::LANES;

/// Layout of a page: `page_tokens` positions of one sequence, all layers.
///
/// ```text
/// page    [layer][kv head] block
/// block   keys [position / 16] panel, then values [position / 16] panel
///
/// panels of floats
///   keys    [dimension][position % 16]
///   values  [position % 16][dimension, filled up with zeros to a multiple of 16]
///
/// panels of blocks (Q8_0, Q4_0): scales f16, then codes
///   keys    scales [dimension / 32][position % 16]
///           codes  [dimension][position % 16] i8, or of two dimensions one byte, the first in its low half
///   values  scales [position % 16][dimension / 32]
///           codes  [position % 16][dimension] i8, or of dimensions i and i + 16 of 32 one byte, the first in its low half
/// ```
///
/// A key panel has sixteen positions as lanes, so a score is one lane that walks the dimensions in order and no sum
/// across lanes exists; in the values a dimension is a lane that walks the positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    page_tokens: usize,
    pub(super) keys: Panels,
    pub(super) values: Panels,
    block_bytes: usize,
    page_bytes: usize,
}

/// Panels of keys, or of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panels {
    pub(super) kind: KvType,
    /// Where the first one is in a block.
    start: usize,
    /// Bytes of a panel.
    bytes: usize,
    /// Bytes of scales at its beginning.
    scales: usize,
}

impl Panels {
    /// Where in a block a panel is; `panel` counts within the page.
    pub(super) fn at(&self, panel: usize) -> Range<usize> {
        let start = self.start + panel * self.bytes;
        start..start + self.bytes
    }

    /// Scales (none for floats) and codes of a panel of a block.
    pub(super) fn of<'b>(&self, block: &'b [u8], panel: usize) -> (&'b [u8], &'b [u8]) {
        block[self.at(panel)].split_at(self.scales)
    }

    /// The same, to be written.
    pub(super) fn of_mut<'b>(&self, block: &'b mut [u8], panel: usize) -> (&'b mut [u8], &'b mut [u8]) {
        block[self.at(panel)].split_at_mut(self.scales)
    }
}

impl KvLayout {
    /// A layout, or `None` if `page_tokens` is not a multiple of 16, a head is not whole blocks of `types`, a size is
    /// zero or a page's size overflows.
    pub fn new(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        page_tokens: usize,
        types: KvTypes,
    ) -> Option<KvLayout> {
        let sizes = [layers, kv_heads, head_dim, page_tokens];
        if sizes.contains(&0) || !page_tokens.is_multiple_of(LANES) {
            return None;
        }
        let [key, value] = types.position_bytes(head_dim)?;
        let block_bytes = page_tokens.checked_mul(key.checked_add(value)?)?;
        let page_bytes = block_bytes.checked_mul(layers)?.checked_mul(kv_heads)?;
        let panels = |kind: KvType, start, position: usize| {
            let block = kind.format().block_weights();
            let scales = if block > 1 { LANES * head_dim / block * SCALE } else { 0 };
            Panels { kind, start, bytes: LANES * position, scales }
        };
        let keys = panels(types.keys, 0, key);
        let values = panels(types.values, page_tokens * key, value);
        Some(KvLayout { layers, kv_heads, head_dim, page_tokens, keys, values, block_bytes, page_bytes })
    }

    /// Layers in a page.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Positions in a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// What keys and values are kept as.
    pub fn types(&self) -> KvTypes {
        KvTypes { keys: self.keys.kind, values: self.values.kind }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Where in a page the block of a layer and head is: its keys and values.
    pub fn block(&self, layer: usize, head: usize) -> Range<usize> {
        let start = (layer * self.kv_heads + head) * self.block_bytes;
        start..start + self.block_bytes
    }

    /// Elements of a value row: `head_dim`, filled up to a multiple of 16.
    pub(super) fn width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }
}

/// Bytes of a scale.
pub(super) const SCALE: usize = 2;
