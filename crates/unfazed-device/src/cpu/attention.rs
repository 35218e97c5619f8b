//! Keys and values into pages, and attention over them.

#![allow(unsafe_code)]

use unfazed_kernels::attention::{KvElement, Queries, attend, store};

use super::compute::{Compute, Scratch};
use super::disjoint::Disjoint;
use super::pages::Blocks;
use super::step::{Block, Span, Step};

/// What attention in one layer reads and writes.
pub(super) struct Attention<'a, E> {
    pub(super) step: &'a Step,
    pub(super) blocks: Blocks<'a, E>,
    /// Query heads that share a key head.
    pub(super) group: usize,
    /// `[rows, heads * head_dim]`.
    pub(super) query: &'a [f32],
    /// `[rows, kv_heads * head_dim]`.
    pub(super) key: &'a [f32],
    pub(super) value: &'a [f32],
    /// `[rows, heads * head_dim]`.
    pub(super) context: Disjoint<'a, f32>,
}

impl<E: KvElement> Attention<'_, E> {
    /// One section if no sequence has several rows, else one for storing and one for attention.
    pub(super) fn run(&self, compute: &mut Compute) {
        let isa = compute.isa;
        let heads = self.blocks.layout.kv_heads();
        let Step { blocks, spans, .. } = self.step;
        if self.step.single() {
            // Then there is one span and one block for each row, in the same order.
            compute.units(spans.len() * heads, &|scratch, unit| {
                let (row, head) = (unit / heads, unit % heads);
                self.store(isa, &spans[row], head);
                self.attend(isa, scratch, &blocks[row], head);
            });
            return;
        }
        compute.units(spans.len() * heads, &|_, unit| self.store(isa, &spans[unit / heads], unit % heads));
        compute.units(blocks.len() * heads, &|scratch, unit| {
            // The last rows see the most and are begun first.
            let block = &blocks[blocks.len() - 1 - unit / heads];
            self.attend(isa, scratch, block, unit % heads);
        });
    }

    /// Puts a head's keys and values of a span into its page.
    fn store(&self, isa: unfazed_kernels::Isa, span: &Span, head: usize) {
        let layout = self.blocks.layout;
        let dim = layout.head_dim();
        // SAFETY: a page that is written has one span, and this head of it one unit; it is read by units of this
        // run and head alone, which come later in this thread or in a later section.
        let block = unsafe { self.blocks.write(span.page, head) };
        for (i, row) in span.rows.clone().enumerate() {
            let at = (row * layout.kv_heads() + head) * dim;
            let (key, value) = (&self.key[at..at + dim], &self.value[at..at + dim]);
            store(isa, layout, block, span.slot + i, key, value);
        }
    }

    /// Attention of the queries of a block of rows that share a key head.
    fn attend(&self, isa: unfazed_kernels::Isa, scratch: &mut Scratch, block: &Block, head: usize) {
        let layout = self.blocks.layout;
        let run = &self.step.runs[block.run];
        let pages = &self.step.pages[run.pages.clone()];
        // Query heads of a row lie side by side.
        let width = self.group * layout.head_dim();
        let place = |row: usize| {
            let at = (row * layout.kv_heads() + head) * width;
            at..at + width
        };
        let len = block.rows.len() * width;
        scratch.positions.clear();
        for (row, queries) in block.rows.clone().zip(scratch.queries.chunks_mut(width)) {
            queries.copy_from_slice(&self.query[place(row)]);
            let position = run.position + (row - run.rows.start);
            scratch.positions.extend(std::iter::repeat_n(position, self.group));
        }
        let queries = Queries {
            positions: &scratch.positions,
            vectors: &scratch.queries[..len],
            out: &mut scratch.contexts[..len],
        };
        // SAFETY: pages that are written in this step are this run's, and this head of them was written before, by
        // this thread or in the section before.
        let blocks = |index: usize| unsafe { self.blocks.read(pages[index], head) };
        attend(isa, layout, blocks, queries, &mut scratch.attention);
        for (row, context) in block.rows.clone().zip(scratch.contexts.chunks(width)) {
            // SAFETY: these heads of the row are this unit's alone.
            unsafe { self.context.part(place(row)) }.copy_from_slice(context);
        }
    }
}
