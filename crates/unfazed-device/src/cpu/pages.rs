//! Keys and values of all sequences, in pages.

#![allow(unsafe_code)]

use half::f16;
use unfazed_kernels::attention::{KvElement, KvLayout};
use unfazed_store::{Buffer, StoreError};

use super::disjoint::Disjoint;
use crate::KvShape;

/// All pages.
pub(super) struct Pages {
    pub(super) layout: KvLayout,
    pub(super) memory: Memory,
}

/// What the elements are.
pub(super) enum Memory {
    /// As shipped.
    Half(Buffer<f16>),
    /// In the test mode with float activations.
    Float(Buffer<f32>),
}

impl Pages {
    /// Pages in `given` memory or, without any, zeroed ones; `None` for a shape that cannot be laid out, or not in
    /// that memory.
    pub(super) fn new(
        shape: &KvShape,
        float: bool,
        given: Option<Buffer<f16>>,
    ) -> Option<Result<Pages, StoreError>> {
        let layout = KvLayout::new(shape.layers, shape.kv_heads, shape.head_dim, shape.page_tokens)?;
        let len = layout.page_len().checked_mul(shape.pages)?;
        let memory = match (float, given) {
            (false, Some(memory)) => (memory.len() == len).then_some(Ok(Memory::Half(memory)))?,
            (false, None) => Buffer::zeroed("KV pages", len).map(Memory::Half),
            (true, _) => Buffer::zeroed("KV pages", len).map(Memory::Float),
        };
        Some(memory.map(|memory| Pages { layout, memory }))
    }
}

/// The blocks of one layer, shared by threads.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a, E> {
    pub(super) layout: &'a KvLayout,
    pub(super) layer: usize,
    pub(super) memory: Disjoint<'a, E>,
}

impl<'a, E: KvElement> Blocks<'a, E> {
    /// Keys and values of a head in a page, to be written.
    ///
    /// # Safety
    /// While it lives, nobody else has this block.
    pub(super) unsafe fn write(&self, page: usize, head: usize) -> &'a mut [E] {
        // SAFETY: the caller promises that it is the only one.
        unsafe { self.memory.part(self.range(page, head)) }
    }

    /// Keys and values of a head in a page.
    ///
    /// # Safety
    /// While it lives, nobody writes this block.
    pub(super) unsafe fn read(&self, page: usize, head: usize) -> &'a [E] {
        // SAFETY: the caller promises that nobody writes.
        unsafe { self.memory.shared(self.range(page, head)) }
    }

    fn range(&self, page: usize, head: usize) -> std::ops::Range<usize> {
        let block = self.layout.block(self.layer, head);
        let start = page * self.layout.page_len();
        start + block.start..start + block.end
    }
}
