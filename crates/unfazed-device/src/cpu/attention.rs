//! Keys and values into pages, and attention over them.

#![allow(unsafe_code)]

use std::ops::Range;

use unfazed_kernels::Isa;
use unfazed_kernels::attention::{
    HeadRows, Queries, SPAN, attend, attend_span, join_spans, partial_len, store,
};

use super::compute::{Compute, Scratch};
use super::disjoint::Disjoint;
use super::pages::Blocks;
use super::step::{Block, Span, Step};

/// A step of fewer rows times key heads than this for each thread is cut up by positions too.
const UNITS_A_THREAD: usize = 4;

/// Most parts of softmaxes (one query, one span) that a step is cut up into. A step that would have more is not.
pub(super) const PARTIALS: usize = 1024;

/// What attention in one layer reads and writes.
pub(super) struct Attention<'a> {
    pub(super) step: &'a Step,
    pub(super) blocks: Blocks<'a>,
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

impl Attention<'_> {
    /// One section if no sequence has several rows, else one for storing and one for attention. `partials` is room for
    /// [`PARTIALS`] of them.
    pub(super) fn run(&self, compute: &mut Compute, partials: &mut [f32]) {
        let isa = compute.isa;
        let heads = self.blocks.layout.kv_heads();
        let Step { blocks, spans, .. } = self.step;
        if self.step.single() {
            let pieces = self.spans();
            if pieces > 1 && spans.len() * heads < UNITS_A_THREAD * compute.threads() {
                return self.run_spans(compute, pieces, partials);
            }
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

    /// Spans of positions that the rows may be cut up into, one row a sequence: as many as the longest sequence has.
    /// 1 if they may not.
    fn spans(&self) -> usize {
        let runs = &self.step.runs;
        let spans = runs.iter().map(|run| run.position / SPAN + 1).max().unwrap_or(1);
        let queries = runs.len() * self.blocks.layout.kv_heads() * self.group;
        // While one thread writes a page, no other looks at it.
        let apart = SPAN.is_multiple_of(self.blocks.layout.page_tokens());
        if apart && queries * spans <= PARTIALS { spans } else { 1 }
    }

    /// Few rows far into their sequences, of few heads: threads share the positions, `pieces` spans of them at most.
    fn run_spans(&self, compute: &mut Compute, pieces: usize, partials: &mut [f32]) {
        let isa = compute.isa;
        let layout = self.blocks.layout;
        let (heads, len) = (layout.kv_heads(), partial_len(layout.head_dim()));
        let Step { blocks, spans, runs, .. } = self.step;
        let out = Disjoint::new(partials);
        compute.units(spans.len() * heads * pieces, &|scratch, unit| {
            let (row, head, span) = (unit / pieces / heads, unit / pieces % heads, unit % pieces);
            let last = runs[row].position / SPAN;
            if span > last {
                return;
            }
            if span == last {
                self.store(isa, &spans[row], head);
            }
            let count = self.take_queries(scratch, &blocks[row], head);
            let place = (unit / pieces * pieces + span) * self.group;
            let queries = Queries {
                positions: &scratch.positions,
                vectors: &scratch.queries[..count * layout.head_dim()],
                // SAFETY: each span of each row and head has a place of its own.
                out: unsafe { out.part(place * len..(place + count) * len) },
            };
            let pages = &self.step.pages[runs[row].pages.clone()];
            // SAFETY: the one page that is written is in the last span, and this head of it was written just now, by this
            // thread; the others belong to no thread.
            let blocks = |index: usize| unsafe { self.blocks.read(pages[index], head) };
            attend_span(isa, layout, &blocks, span, queries, &mut scratch.attention);
        });
        let (contexts, stride) = (heads * self.group, self.group * len);
        for (row, run) in runs.iter().enumerate() {
            for query in 0..contexts {
                let (head, i) = (query / self.group, query % self.group);
                let first = (row * heads + head) * pieces * stride;
                let spans = &mut partials[first + i * len..first + (run.position / SPAN + 1) * stride];
                let at = (row * contexts + query) * layout.head_dim();
                // SAFETY: the section is over, and nobody else has a part.
                let context = unsafe { self.context.part(at..at + layout.head_dim()) };
                join_spans(isa, spans, stride, context);
            }
        }
    }

    /// Puts a head's keys and values of a span into its page.
    fn store(&self, isa: Isa, span: &Span, head: usize) {
        let layout = self.blocks.layout;
        let dim = layout.head_dim();
        // SAFETY: a page that is written has one span, and this head of it one unit; it is read by units of this
        // run and head alone, which come later in this thread or in a later section.
        let block = unsafe { self.blocks.write(span.page, head) };
        let stride = layout.kv_heads() * dim;
        let first = span.rows.start * stride + head * dim;
        let slots = span.slot..span.slot + span.rows.len();
        let keys = HeadRows { numbers: &self.key[first..], stride };
        let values = HeadRows { numbers: &self.value[first..], stride };
        store(isa, layout, block, slots, keys, values);
    }

    /// Attention of the queries of a block of rows that share a key head.
    fn attend(&self, isa: Isa, scratch: &mut Scratch, block: &Block, head: usize) {
        let layout = self.blocks.layout;
        let len = self.take_queries(scratch, block, head) * layout.head_dim();
        let queries = Queries {
            positions: &scratch.positions,
            vectors: &scratch.queries[..len],
            out: &mut scratch.contexts[..len],
        };
        let pages = &self.step.pages[self.step.runs[block.run].pages.clone()];
        // SAFETY: pages that are written in this step are this run's, and this head of them was written before, by
        // this thread or in the section before.
        let blocks = |index: usize| unsafe { self.blocks.read(pages[index], head) };
        attend(isa, layout, &blocks, queries, &mut scratch.attention);
        let width = self.group * layout.head_dim();
        for (row, context) in block.rows.clone().zip(scratch.contexts.chunks(width)) {
            // SAFETY: these heads of the row are this unit's alone.
            unsafe { self.context.part(self.place(row, head)) }.copy_from_slice(context);
        }
    }

    /// Copies the queries of a block of rows that share a key head, with their positions; returns how many they are.
    fn take_queries(&self, scratch: &mut Scratch, block: &Block, head: usize) -> usize {
        let run = &self.step.runs[block.run];
        let width = self.group * self.blocks.layout.head_dim();
        scratch.positions.clear();
        for (row, queries) in block.rows.clone().zip(scratch.queries.chunks_mut(width)) {
            queries.copy_from_slice(&self.query[self.place(row, head)]);
            let position = run.position + (row - run.rows.start);
            scratch.positions.extend(std::iter::repeat_n(position, self.group));
        }
        scratch.positions.len()
    }

    /// Where the query heads of a row that share a key head are: side by side.
    fn place(&self, row: usize, head: usize) -> Range<usize> {
        let width = self.group * self.blocks.layout.head_dim();
        let at = (row * self.blocks.layout.kv_heads() + head) * width;
        at..at + width
    }
}
