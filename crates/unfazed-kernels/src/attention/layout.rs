//! How a page is laid out.

use std::ops::Range;

use crate::LANES;

/// Layout of a page: `page_tokens` positions of one sequence, all layers.
///
/// ```text
/// page   [layer][kv head] block
/// block  keys   [position / 16][dimension][position % 16]
///        values [position][dimension, filled up with zeros to a multiple of 16]
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
    block_len: usize,
    page_len: usize,
}

impl KvLayout {
    /// A layout, or `None` if `page_tokens` is not a multiple of 16, a size is zero or a page's size overflows.
    pub fn new(layers: usize, kv_heads: usize, head_dim: usize, page_tokens: usize) -> Option<KvLayout> {
        let sizes = [layers, kv_heads, head_dim, page_tokens];
        if sizes.contains(&0) || !page_tokens.is_multiple_of(LANES) {
            return None;
        }
        let width = head_dim.checked_next_multiple_of(LANES)?;
        let block_len = page_tokens.checked_mul(head_dim.checked_add(width)?)?;
        let page_len = block_len.checked_mul(layers)?.checked_mul(kv_heads)?;
        Some(KvLayout { layers, kv_heads, head_dim, page_tokens, block_len, page_len })
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

    /// Elements of a page.
    pub fn page_len(&self) -> usize {
        self.page_len
    }

    /// Elements of a block: the keys and values of one layer and head in a page.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Where in a page the block of a layer and head is.
    pub fn block(&self, layer: usize, head: usize) -> Range<usize> {
        let start = (layer * self.kv_heads + head) * self.block_len;
        start..start + self.block_len
    }

    /// Elements of a value row: `head_dim`, filled up to a multiple of 16.
    pub(super) fn width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Where in a block the key panel of sixteen positions is; `panel` counts within the page.
    pub(super) fn keys(&self, panel: usize) -> Range<usize> {
        let len = self.head_dim * LANES;
        panel * len..(panel + 1) * len
    }

    /// Where in a block the values of sixteen positions are; `panel` counts within the page.
    pub(super) fn values(&self, panel: usize) -> Range<usize> {
        let (start, len) = (self.page_tokens * self.head_dim, self.width() * LANES);
        start + panel * len..start + (panel + 1) * len
    }
}
