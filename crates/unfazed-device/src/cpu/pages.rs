//! Keys and values of all sequences, in pages.

#![allow(unsafe_code)]

use std::ops::Range;

use unfazed_formats::{KvType, KvTypes};
use unfazed_kernels::attention::KvLayout;
use unfazed_store::{Buffer, StoreError};

use super::disjoint::Disjoint;
use crate::{KvShape, PageId};

/// All pages.
pub(super) struct Pages {
    pub(super) layout: KvLayout,
    pub(super) memory: Buffer<u8>,
}

impl Pages {
    /// Pages in `given` memory or, without any, zeroed ones; `None` for a shape that cannot be laid out, or not in
    /// that memory. In the test mode with float activations keys and values are floats, in memory of their own.
    pub(super) fn new(
        shape: &KvShape,
        float: bool,
        given: Option<Buffer<u8>>,
    ) -> Option<Result<Pages, StoreError>> {
        let types = if float { KvTypes::both(KvType::F32) } else { shape.types };
        let layout = KvLayout::new(shape.layers, shape.kv_heads, shape.head_dim, shape.page_tokens, types)?;
        let len = layout.page_bytes().checked_mul(shape.pages)?;
        let memory = match given.filter(|_| !float) {
            Some(memory) => (memory.len() == len).then_some(Ok(memory))?,
            None => Buffer::zeroed("KV pages", len),
        };
        Some(memory.map(|memory| Pages { layout, memory }))
    }

    /// The blocks of a layer in a page; empty if there is no such place.
    pub(super) fn layer(&self, layer: usize, page: PageId) -> &[u8] {
        self.memory.get(self.layer_range(layer, page)).unwrap_or_default()
    }

    /// The same, to be written.
    pub(super) fn layer_mut(&mut self, layer: usize, page: PageId) -> &mut [u8] {
        let range = self.layer_range(layer, page);
        self.memory.get_mut(range).unwrap_or_default()
    }

    fn layer_range(&self, layer: usize, page: PageId) -> Range<usize> {
        let (first, last) =
            (self.layout.block(layer, 0), self.layout.block(layer, self.layout.kv_heads() - 1));
        let start = page.0 as usize * self.layout.page_bytes();
        start + first.start..start + last.end
    }

    /// Returns the memory of pages to the system, and its bytes.
    pub(super) fn give_back(&mut self, first: PageId, count: usize) -> std::io::Result<u64> {
        let bytes = self.layout.page_bytes();
        let start = (first.0 as usize).saturating_mul(bytes);
        self.memory.give_back(start..start.saturating_add(count.saturating_mul(bytes)))
    }
}

/// The blocks of one layer, shared by threads.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) layout: &'a KvLayout,
    pub(super) layer: usize,
    pub(super) memory: Disjoint<'a, u8>,
}

impl<'a> Blocks<'a> {
    /// Keys and values of a head in a page, to be written.
    ///
    /// # Safety
    /// While it lives, nobody else has this block.
    pub(super) unsafe fn write(&self, page: usize, head: usize) -> &'a mut [u8] {
        // SAFETY: the caller promises that it is the only one.
        unsafe { self.memory.part(self.range(page, head)) }
    }

    /// Keys and values of a head in a page.
    ///
    /// # Safety
    /// While it lives, nobody writes this block.
    pub(super) unsafe fn read(&self, page: usize, head: usize) -> &'a [u8] {
        // SAFETY: the caller promises that nobody writes.
        unsafe { self.memory.shared(self.range(page, head)) }
    }

    fn range(&self, page: usize, head: usize) -> std::ops::Range<usize> {
        let block = self.layout.block(self.layer, head);
        let start = page * self.layout.page_bytes();
        start + block.start..start + block.end
    }
}
