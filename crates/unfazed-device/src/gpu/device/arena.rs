//! Activations of a step's rows of one mode, laid out once for the largest step.

use std::num::NonZeroU64;

use unfazed_kernels::vector::RopeFrequencies;

use super::Shape;
use super::rows::Side;
use crate::gpu::kernels::attend_prompt::BLOCK_ROWS;
use crate::gpu::kernels::step::{StepCounts, StepData, StepShape};
use crate::gpu::memory::{Bound, Buffer, Memory, Ready};
use crate::gpu::queue::Queue;
use crate::{Batch, BatchRow, DeviceError};

/// Buffers of activations, each `[rows, width]`. A step of fewer rows uses the front of each.
pub(super) struct Arena {
    /// What kernels know of the step.
    pub(super) step: Ready<Buffer>,
    pub(super) residual: Ready<Buffer>,
    /// Queries of all rows, then keys, then values: see [`Arena::place`].
    pub(super) heads: Ready<Buffer>,
    /// Where each of the three begins, in numbers.
    pub(super) starts: [u64; 3],
    pub(super) context: Ready<Buffer>,
    /// `[rows, experts]`
    pub(super) router: Ready<Buffer>,
    /// Chosen experts, `[rows, used]`.
    pub(super) ids: Ready<Buffer>,
    /// And their weights.
    pub(super) weights: Ready<Buffer>,
    /// `[rows * used, feed_forward]`
    pub(super) inner: Ready<Buffer>,
    /// Which rows want logits.
    pub(super) listed: Ready<Buffer>,
    /// `[logit rows, vocab]`
    pub(super) logits: Ready<Buffer>,
    /// The present step's.
    pub(super) counts: StepCounts,
    data: StepData,
    batch: Batch,
    uploads: u32,
}

/// Bytes of 32-bit numbers.
pub(super) fn words(count: usize, width: usize) -> u64 {
    4 * count as u64 * width as u64
}

impl Arena {
    pub(super) fn new(memory: &Memory, shape: &Shape) -> Result<Arena, DeviceError> {
        let Shape { hidden, vocab, feed_forward, max_rows, max_logit_rows, pages, .. } = *shape;
        let (experts, used) = shape.experts.map_or((1, 1), |experts| (experts.count, experts.used));
        let (query, kv) = (shape.query(), shape.kv());
        let scratch = |label, width: usize| memory.scratch(label, words(max_rows, width));
        // A binding begins on such a boundary.
        let aligned = |width: usize| (max_rows as u64 * width as u64).next_multiple_of(64);
        let starts = [0, aligned(query), aligned(query) + aligned(kv)];
        let page_tokens = shape.layout.page_tokens();
        let data = StepData::new(StepShape { page_tokens, pages, block_rows: BLOCK_ROWS });
        let step = StepData::most_words(max_rows, pages, shape.rope.dimensions);
        Ok(Arena {
            step: memory.scratch("the step", words(step, 1))?,
            residual: scratch("the residual", hidden)?,
            heads: memory.scratch("heads", 4 * (starts[2] + aligned(kv)))?,
            starts,
            context: scratch("contexts", query)?,
            router: scratch("router outputs", experts)?,
            ids: scratch("chosen experts", used)?,
            weights: scratch("experts' weights", used)?,
            inner: scratch("gated rows", used * feed_forward)?,
            listed: scratch("rows with logits", 1)?,
            logits: memory.scratch("logits", words(max_logit_rows, vocab))?,
            counts: StepCounts::default(),
            data,
            batch: Batch::default(),
            uploads: 0,
        })
    }

    /// Queries, keys or values (0, 1, 2), to be written by a product.
    pub(super) fn place(&self, which: usize) -> Bound<'_> {
        let start = self.starts.get(which).copied().unwrap_or(0);
        let end = self.starts.get(which + 1).map_or(self.heads.bytes(), |next| 4 * next);
        match NonZeroU64::new(end.saturating_sub(4 * start)) {
            Some(bytes) => Bound::part(&self.heads, 4 * start, bytes),
            None => Bound::from(&self.heads),
        }
    }

    /// Sends what kernels need to know of the rows of one mode.
    pub(super) fn send_step(
        &mut self,
        queue: &mut Queue,
        frequencies: &RopeFrequencies,
        batch: &Batch,
        side: &Side,
    ) -> Result<(), DeviceError> {
        self.counts = StepCounts::default();
        if side.len() == 0 {
            return Ok(());
        }
        self.batch.rows.clear();
        self.batch.rows.extend(side.rows.iter().filter_map(|row| batch.rows.get(*row)).copied());
        self.narrow_sequences(batch);
        self.uploads = self.uploads.wrapping_add(1);
        self.counts = self.data.pack(self.uploads, &self.batch, std::slice::from_ref(frequencies))?;
        queue.write(&self.step, 0, self.data.bytes());
        if !side.logits.is_empty() {
            queue.write(&self.listed, 0, bytemuck::cast_slice(&side.logits));
        }
        Ok(())
    }

    /// The sequences of the own rows, numbered anew.
    fn narrow_sequences(&mut self, batch: &Batch) {
        self.batch.sequences.clear();
        let mut last = None;
        for BatchRow { sequence, .. } in &mut self.batch.rows {
            if last != Some(*sequence) {
                last = Some(*sequence);
                self.batch.sequences.push(batch.sequences.get(*sequence).cloned().unwrap_or_default());
            }
            *sequence = self.batch.sequences.len() - 1;
        }
    }
}

/// What only prompts need: rows as matrices want them, lists of experts' rows, and their outputs.
pub(super) struct PromptArena {
    /// For each expert its entries, `[experts, rows]`.
    pub(super) lists: Ready<Buffer>,
    /// How many each has.
    pub(super) counts: Ready<Buffer>,
    /// `[rows * used, hidden]`
    pub(super) outputs: Ready<Buffer>,
}

impl PromptArena {
    pub(super) fn new(memory: &Memory, shape: &Shape) -> Result<PromptArena, DeviceError> {
        let (experts, used) = shape.experts.map_or((1, 0), |experts| (experts.count, experts.used));
        Ok(PromptArena {
            lists: memory.scratch("experts' rows", words(experts, shape.max_rows))?,
            counts: memory.scratch("numbers of experts' rows", words(experts, 1))?,
            outputs: memory.scratch("experts' outputs", words(shape.max_rows * used, shape.hidden))?,
        })
    }
}
