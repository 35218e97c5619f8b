//! Sequences in pages, for the kernels and for the CPU.

use unfazed_device::gpu::kernels::kv::KvText;
use unfazed_device::gpu::kernels::step::{StepCounts, StepData, StepShape};
use unfazed_device::{Batch, BatchRow, PageId};
use unfazed_formats::KvTypes;
use unfazed_kernels::Isa;
use unfazed_kernels::attention::{HeadRows, KvLayout, store};
use unfazed_kernels::vector::RopeFrequencies;

/// Shape of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) page_tokens: usize,
    pub(crate) types: KvTypes,
}

impl Shape {
    pub(crate) fn text(&self) -> KvText {
        KvText::new(self.kv_heads, self.head_dim, self.page_tokens, self.types).unwrap()
    }

    pub(crate) fn layout(&self) -> KvLayout {
        KvLayout::new(1, self.kv_heads, self.head_dim, self.page_tokens, self.types).unwrap()
    }
}

/// A step of rows of sequences, whose pages lie in no order.
pub(crate) struct Rows {
    pub(crate) batch: Batch,
    pub(crate) pages: usize,
    pub(crate) page_tokens: usize,
}

impl Rows {
    /// For each sequence its first row's position and its rows.
    pub(crate) fn new(page_tokens: usize, sequences: &[(usize, usize)]) -> Rows {
        let counts: Vec<usize> =
            sequences.iter().map(|(start, rows)| (start + rows).div_ceil(page_tokens)).collect();
        let pages: usize = counts.iter().sum();
        // A number that has no factor in common with that of the pages visits all of them.
        let step = (pages / 2 + 1..)
            .find(|step| (2..=*step).all(|f: usize| !step.is_multiple_of(f) || !pages.is_multiple_of(f)))
            .unwrap();
        let mut next = (0..pages).map(|i| PageId(((i * step + 1) % pages) as u32));
        let pages_of = |count: &usize| next.by_ref().take(*count).collect();
        let rows = |(sequence, (start, rows)): (usize, &(usize, usize))| {
            (*start..start + rows).map(move |position| BatchRow {
                token: 0,
                sequence,
                position,
                logits: true,
                generated: false,
            })
        };
        let batch = Batch {
            sequences: counts.iter().map(pages_of).collect(),
            rows: sequences.iter().enumerate().flat_map(|s| rows(s).collect::<Vec<_>>()).collect(),
        };
        Rows { batch, pages, page_tokens }
    }

    /// The step's data.
    pub(crate) fn data(&self, block_rows: usize, ropes: &[RopeFrequencies]) -> (Vec<u8>, StepCounts) {
        let shape = StepShape { page_tokens: self.page_tokens, pages: self.pages, block_rows };
        let mut data = StepData::new(shape);
        let counts = data.pack(1, &self.batch, ropes).unwrap();
        (data.bytes().to_vec(), counts)
    }

    /// Stores keys and values of the rows, `[rows, kv_heads * head_dim]` each, as the CPU does.
    pub(crate) fn store(&self, layout: &KvLayout, pages: &mut [u8], keys: &[f32], values: &[f32]) {
        let (dim, heads) = (layout.head_dim(), layout.kv_heads());
        for (i, row) in self.batch.rows.iter().enumerate() {
            let page = self.batch.sequences[row.sequence][row.position / self.page_tokens].0 as usize;
            let slot = row.position % self.page_tokens;
            for head in 0..heads {
                let at = page * layout.page_bytes() + layout.block(0, head).start;
                let block = &mut pages[at..at + layout.block(0, head).len()];
                let numbers =
                    |all| HeadRows { numbers: numbers(all, (i * heads + head) * dim, dim), stride: dim };
                store(Isa::Reference, layout, block, slot..slot + 1, numbers(keys), numbers(values));
            }
        }
    }

    /// Pages that held something before.
    pub(crate) fn used_pages(&self, layout: &KvLayout) -> Vec<u8> {
        (0..self.pages * layout.page_bytes()).map(|i| (i * 37 % 251) as u8).collect()
    }
}

fn numbers(all: &[f32], at: usize, len: usize) -> &[f32] {
    &all[at..at + len]
}

/// Numbers between -`size` and `size`.
pub(crate) fn noise(seed: u32, len: usize, size: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut next = || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        let x = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
        (x >> 22) ^ x
    };
    (0..len).map(|_| ((next() >> 8) as f32 / (1 << 23) as f32 - 1.0) * size).collect()
}
