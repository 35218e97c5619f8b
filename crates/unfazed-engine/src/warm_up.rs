//! First steps, before the first request: on a GPU they take longer, as kernels are compiled for them.

use unfazed_device::{Batch, BatchRow, Device, PageId};
use unfazed_store::Wait;

use crate::Engine;

/// Rows of the prompt: from so many on kernels for large tiles are used.
const PROMPT: usize = 192;
/// Rows of the answer that are computed together.
const ANSWERS: usize = 2;

impl<D: Device> Engine<D> {
    /// Computes a made-up prompt and answers to it, if the device asks for that. Uses pages that hold nothing; without any it is
    /// left out. What goes wrong does so again in the first step that counts, and is seen to there.
    pub(crate) fn warm_up(&mut self) {
        if !self.device.is_cold() {
            return;
        }
        let limits = self.scheduler.limits();
        let rows = PROMPT.min(limits.chunk).min(limits.context.saturating_sub(ANSWERS + 1)).max(1);
        let needed = (rows + ANSWERS + 1).div_ceil(limits.page_tokens.max(1));
        let kept = self.kept.as_ref();
        let empty =
            (0..limits.pages as u32).map(PageId).filter(|page| !kept.is_some_and(|kept| kept.has(*page)));
        let pages: Vec<PageId> = empty.take(needed).collect();
        if pages.len() < needed {
            return;
        }
        let _wait =
            self.faults.waits.as_deref().map(|waits| Wait::new(waits, "the GPU's kernels".to_owned()));
        let prompt = (0..rows).map(|position| (position, false));
        let answers = (rows + 1..rows + 1 + ANSWERS).map(|position| (position, true));
        for step in [prompt.collect(), vec![(rows, true)], answers.collect()] {
            let batch = batch(step, &pages);
            if let Err(error) = self.model.forward(&mut self.device, &batch) {
                tracing::warn!(%error, "the first step on the GPU failed");
                break;
            }
        }
    }
}

/// Rows at positions that are generated or not; the last one gives logits.
fn batch(positions: Vec<(usize, bool)>, pages: &[PageId]) -> Batch {
    let last = positions.len().saturating_sub(1);
    let row = |(i, (position, generated)): (usize, (usize, bool))| BatchRow {
        token: 0,
        sequence: 0,
        position,
        logits: i == last,
        generated,
    };
    Batch { rows: positions.into_iter().enumerate().map(row).collect(), sequences: vec![pages.to_vec()] }
}
