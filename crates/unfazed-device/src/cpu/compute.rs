//! Sections of work over the pool: by rows, by elements, with each thread's scratch.

#![allow(unsafe_code)]

use unfazed_formats::BlockFormat;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::{Grain, TILE_ROWS};
use unfazed_kernels::attention::AttentionScratch;

use super::disjoint::Disjoint;
use super::pool::Pool;

/// Panels that a thread multiplies at once, and the columns that come out: 256, a superblock.
pub(super) const SLICE_PANELS: usize = 16;
pub(super) const SLICE: usize = SLICE_PANELS * unfazed_kernels::LANES;

/// Queries that are taken through the keys and values together.
pub(super) const QUERY_BLOCK: usize = 32;

/// Sections with less work than this, in elements touched, are done by the caller: a few microseconds.
const SERIAL: usize = 1 << 15;

/// What a thread needs for itself.
pub(super) struct Scratch {
    /// Results of a tile times a slice of panels, `[TILE_ROWS, SLICE]`.
    pub(super) first: Vec<f32>,
    /// The same of a second matrix.
    pub(super) second: Vec<f32>,
    /// Queries of one block, and what comes out.
    pub(super) queries: Vec<f32>,
    pub(super) contexts: Vec<f32>,
    pub(super) positions: Vec<usize>,
    pub(super) attention: AttentionScratch,
}

impl Scratch {
    /// `group` query heads share a key head.
    fn new(group: usize, head_dim: usize) -> Scratch {
        let queries = group.max(QUERY_BLOCK);
        Scratch {
            first: vec![0.0; TILE_ROWS * SLICE],
            second: vec![0.0; TILE_ROWS * SLICE],
            queries: vec![0.0; queries * head_dim],
            contexts: vec![0.0; queries * head_dim],
            positions: Vec::with_capacity(queries),
            attention: AttentionScratch::new(queries, head_dim),
        }
    }

    /// Bytes of one thread's scratch.
    pub(super) fn bytes(group: usize, head_dim: usize) -> usize {
        let queries = group.max(QUERY_BLOCK);
        let floats = 2 * TILE_ROWS * SLICE + 2 * queries * head_dim;
        floats * size_of::<f32>() + queries * size_of::<usize>() + AttentionScratch::bytes(queries, head_dim)
    }
}

/// How this device computes: instruction set, mode, threads and their scratch.
pub(super) struct Compute {
    pub(super) isa: Isa,
    float_activations: bool,
    pool: Pool,
    scratch: Vec<Scratch>,
}

impl Compute {
    pub(super) fn new(
        isa: Isa,
        float_activations: bool,
        pool: Pool,
        group: usize,
        head_dim: usize,
    ) -> Compute {
        let scratch = (0..pool.capacity()).map(|_| Scratch::new(group, head_dim)).collect();
        Compute { isa, float_activations, pool, scratch }
    }

    pub(super) fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Lets so many threads take part in the sections that follow.
    pub(super) fn take_part(&mut self, threads: usize) {
        self.pool.take_part(threads);
    }

    /// What the weights of a format are multiplied by.
    pub(super) fn grain(&self, format: BlockFormat) -> Grain {
        if self.float_activations { Grain::Float } else { Grain::of(format) }
    }

    /// Runs `work` for each row, each of which touches about `elements` numbers.
    pub(super) fn rows(&mut self, rows: usize, elements: usize, work: &(dyn Fn(usize) + Sync)) {
        if rows < 2 || rows.saturating_mul(elements) < SERIAL {
            return (0..rows).for_each(work);
        }
        let at_once = rows.div_ceil(4 * self.threads()).min(16);
        self.pool.run(rows.div_ceil(at_once), &|_, chunk| {
            (chunk * at_once..rows.min((chunk + 1) * at_once)).for_each(work);
        });
    }

    /// Runs `work` for each item, each of which touches about `elements` numbers.
    pub(super) fn items<T: Send + Sync>(
        &mut self,
        items: &mut [T],
        elements: usize,
        work: &(dyn Fn(usize, &mut T) + Sync),
    ) {
        if items.len() < 2 || items.len().saturating_mul(elements) < SERIAL {
            return items.iter_mut().enumerate().for_each(|(i, item)| work(i, item));
        }
        let count = items.len();
        let items = Disjoint::new(items);
        self.pool.run(count, &|_, i| {
            // SAFETY: the pool runs each chunk once, so each item is one thread's.
            unsafe { items.part(i..i + 1) }.iter_mut().for_each(|item| work(i, item));
        });
    }

    /// Runs `work` for each row of `data` (`[rows, width]`). It costs about as much as touching `cost` times as many
    /// numbers as there are in the row.
    pub(super) fn each_row(
        &mut self,
        data: &mut [f32],
        width: usize,
        cost: usize,
        work: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        let rows = data.len() / width.max(1);
        let data = Disjoint::new(data);
        self.rows(rows, cost.saturating_mul(width), &|row| {
            // SAFETY: `rows` hands out each row once.
            work(row, unsafe { data.part(row * width..(row + 1) * width) });
        });
    }

    /// Runs `work` for each unit below `units`, with the scratch of the thread that it runs on.
    pub(super) fn units(&mut self, units: usize, work: &(dyn Fn(&mut Scratch, usize) + Sync)) {
        let scratch = Disjoint::new(&mut self.scratch);
        self.pool.run(units, &|thread, unit| {
            // SAFETY: a thread runs one chunk at a time, and each has a number of its own.
            unsafe { scratch.part(thread..thread + 1) }.iter_mut().for_each(|scratch| work(scratch, unit));
        });
    }
}
