//! A batch, checked and cut up for the sections of a step.

use std::ops::Range;
use std::time::Duration;

use unfazed_kernels::activations::tile_parts;

use super::compute::QUERY_BLOCK;
use crate::{Batch, BatchRow, DeviceError, KvShape, SequenceFailure};

/// What a step may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) rows: usize,
    pub(super) logit_rows: usize,
    pub(super) vocab: usize,
    pub(super) kv: KvShape,
    /// Query heads that share a key head.
    pub(super) group: usize,
}

/// Rows of one sequence.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) rows: Range<usize>,
    /// Where its pages are in [`Step::pages`], as far as its last position.
    pub(super) pages: Range<usize>,
    /// Position of its first row.
    pub(super) position: usize,
}

/// Rows of one run whose positions share a page.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) rows: Range<usize>,
    pub(super) page: usize,
    /// Place of the first row in the page.
    pub(super) slot: usize,
}

/// Rows of one run whose queries are taken together.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) run: usize,
    pub(super) rows: Range<usize>,
}

/// Who writes a page in which step.
#[derive(Clone, Copy, Debug, Default)]
struct Writer {
    step: u64,
    run: usize,
    index: usize,
}

/// The rows of the step in progress. Its vectors keep their memory from step to step.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) rows: Vec<BatchRow>,
    /// Rows that want logits.
    pub(super) logits: Vec<usize>,
    pub(super) pages: Vec<usize>,
    pub(super) runs: Vec<Run>,
    pub(super) spans: Vec<Span>,
    pub(super) blocks: Vec<Block>,
    /// 0, 1, 2, ...: as many as there may be rows.
    pub(super) identity: Vec<usize>,
    /// Tiles of all rows in order.
    pub(super) tiles: Vec<Range<usize>>,
    /// Tiles of the rows that want logits.
    pub(super) logit_tiles: Vec<Range<usize>>,
    /// Sequences that cannot be computed.
    pub(super) failed: Vec<SequenceFailure>,
    /// Time for which weights were waited for.
    pub(super) waited: Duration,
    number: u64,
    writers: Vec<Writer>,
}

impl Step {
    pub(super) fn new(limits: &Limits) -> Step {
        Step {
            identity: (0..limits.rows).collect(),
            writers: vec![Writer::default(); limits.kv.pages],
            ..Step::default()
        }
    }

    /// True if no sequence has more than one row: each row's keys and values are then its own business.
    pub(super) fn single(&self) -> bool {
        self.runs.len() == self.rows.len()
    }

    /// Takes a batch. Leaves an empty step behind if it is refused.
    pub(super) fn begin(&mut self, batch: &Batch, limits: &Limits) -> Result<(), DeviceError> {
        self.clear();
        let result = self.take(batch, limits);
        if result.is_err() {
            self.clear();
        }
        result
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.logits.clear();
        self.pages.clear();
        self.runs.clear();
        self.spans.clear();
        self.blocks.clear();
        self.tiles.clear();
        self.logit_tiles.clear();
        self.failed.clear();
        self.waited = Duration::ZERO;
        self.number += 1;
    }

    fn take(&mut self, batch: &Batch, limits: &Limits) -> Result<(), DeviceError> {
        let refused = |text: String| Err(DeviceError::Batch(text));
        if batch.rows.len() > limits.rows {
            return refused(format!("{} rows, at most {}", batch.rows.len(), limits.rows));
        }
        for (row, BatchRow { token, logits, .. }) in batch.rows.iter().enumerate() {
            if *token as usize >= limits.vocab {
                return refused(format!("row {row} has token {token}, the vocabulary has {}", limits.vocab));
            }
            if *logits {
                self.logits.push(row);
            }
        }
        if self.logits.len() > limits.logit_rows {
            return refused(format!("{} rows want logits, at most {}", self.logits.len(), limits.logit_rows));
        }
        self.rows.extend_from_slice(&batch.rows);
        self.tiles.clear();
        self.tiles.extend(tile_parts(0..self.rows.len()));
        self.logit_tiles.clear();
        self.logit_tiles.extend(tile_parts(0..self.logits.len()));
        let mut start = 0;
        while start < batch.rows.len() {
            let sequence = batch.rows[start].sequence;
            let same = batch.rows[start..].iter().take_while(|row| row.sequence == sequence).count();
            self.add_run(batch, start..start + same, limits)?;
            start += same;
        }
        self.check_writers()
    }

    /// Adds rows of one sequence.
    fn add_run(&mut self, batch: &Batch, rows: Range<usize>, limits: &Limits) -> Result<(), DeviceError> {
        let refused = |text: String| Err(DeviceError::Batch(text));
        let BatchRow { sequence, position, .. } = batch.rows[rows.start];
        for (i, row) in batch.rows[rows.clone()].iter().enumerate() {
            if position.checked_add(i) != Some(row.position) {
                return refused(format!(
                    "sequence {sequence} goes from position {position} to {}",
                    row.position
                ));
            }
        }
        let Some(pages) = batch.sequences.get(sequence) else {
            return refused(format!("sequence {sequence} of {}", batch.sequences.len()));
        };
        let size = limits.kv.page_tokens;
        let Some(end) = position.checked_add(rows.len()) else {
            return refused(format!("sequence {sequence} is at position {position}"));
        };
        let needed = end.div_ceil(size);
        let Some(pages) = pages.get(..needed) else {
            return refused(format!("sequence {sequence} has {} pages, {needed} are needed", pages.len()));
        };
        if let Some(page) = pages.iter().find(|page| page.0 as usize >= limits.kv.pages) {
            return refused(format!("sequence {sequence} has page {} of {}", page.0, limits.kv.pages));
        }
        let run = self.runs.len();
        let first_page = self.pages.len();
        self.pages.extend(pages.iter().map(|page| page.0 as usize));
        self.runs.push(Run { rows: rows.clone(), pages: first_page..self.pages.len(), position });

        let mut row = rows.start;
        while row < rows.end {
            let at = position + (row - rows.start);
            let (index, slot) = (at / size, at % size);
            let page = self.pages[first_page + index];
            let writer = &mut self.writers[page];
            if writer.step == self.number {
                return refused(format!("page {page} is written twice"));
            }
            *writer = Writer { step: self.number, run, index };
            let next = rows.end.min(row + size - slot);
            self.spans.push(Span { rows: row..next, page, slot });
            row = next;
        }
        let at_once = (QUERY_BLOCK / limits.group).max(1);
        let starts = rows.clone().step_by(at_once);
        self.blocks.extend(starts.map(|row| Block { run, rows: row..rows.end.min(row + at_once) }));
        Ok(())
    }

    /// A page that is written belongs to one place of one sequence. Sections rely on it: while one thread writes a
    /// block, nobody else reads it.
    fn check_writers(&self) -> Result<(), DeviceError> {
        for (run, Run { pages, .. }) in self.runs.iter().enumerate() {
            for (index, page) in self.pages[pages.clone()].iter().enumerate() {
                let writer = &self.writers[*page];
                if writer.step == self.number && (writer.run, writer.index) != (run, index) {
                    return Err(DeviceError::Batch(format!("page {page} is written and shared")));
                }
            }
        }
        Ok(())
    }
}
