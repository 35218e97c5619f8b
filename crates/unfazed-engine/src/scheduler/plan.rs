//! The rows of the next step.

use std::ops::Range;

use unfazed_device::{Batch, BatchRow};

use super::Scheduler;
use super::share::share;
use crate::sequence::Sequence;

/// Part of the chunk that prompts get while answers run. The others wait for a step as long as its prompt rows take.
const PROMPT_PART_BESIDE_ANSWERS: usize = 4;
/// Prompt rows beside answers that are never refused: fewer cost nearly the same, as the weights must be read anyway.
const FEWEST_PROMPT_ROWS: usize = 32;

/// What a step computes for one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Index among the running sequences.
    pub(crate) index: usize,
    /// Positions to compute.
    pub(crate) positions: Range<usize>,
}

impl Scheduler {
    /// The next step: its rows for the device, and whose they are, in the same order. `None` if nothing runs.
    pub(crate) fn plan(&mut self) -> Option<(Batch, Vec<Work>)> {
        self.step += 1;
        let answers = self.answers();
        let prompts = self.prompts(&answers);
        let mut work = Vec::with_capacity(answers.len() + prompts.len());
        work.extend(answers.into_iter().map(|index| (index, 1)));
        work.extend(prompts);
        // Sequences in a fixed order make steps that are easy to follow; the results do not depend on it.
        work.sort_unstable();
        let mut batch = Batch::default();
        let work: Vec<Work> =
            work.into_iter().filter_map(|(index, rows)| self.add(index, rows, &mut batch)).collect();
        (!work.is_empty()).then_some((batch, work))
    }

    /// Running answers that get their row, at most as many as leave prompts their due.
    fn answers(&self) -> Vec<usize> {
        let prompts_wait = self.running.iter().any(Sequence::prefilling);
        let room = self.room_for_answers(self.limits.chunk, prompts_wait);
        let room = room.min(self.room_for_answers(self.limits.logit_rows, prompts_wait));
        let mut answers: Vec<usize> = indices(&self.running, |sequence| !sequence.prefilling()).collect();
        // If not all fit (a chunk smaller than the sequences side by side), those that waited longest come first.
        answers.sort_by_key(|&index| self.running.get(index).map(|sequence| sequence.last_step));
        answers.truncate(room);
        answers
    }

    fn room_for_answers(&self, limit: usize, prompts_wait: bool) -> usize {
        match (prompts_wait, limit) {
            (false, _) => limit,
            // One row a step: answers and prompts take turns.
            (true, 1) => (self.step % 2) as usize,
            (true, _) => limit - (limit / PROMPT_PART_BESIDE_ANSWERS).max(1),
        }
    }

    /// Prompts that get rows, and how many.
    fn prompts(&self, answers: &[usize]) -> Vec<(usize, usize)> {
        let left = self.limits.chunk.saturating_sub(answers.len());
        let answers_run = self.running.iter().any(|sequence| !sequence.prefilling());
        let budget = match answers_run {
            false => left,
            true => left.min((self.limits.chunk / PROMPT_PART_BESIDE_ANSWERS).max(FEWEST_PROMPT_ROWS)),
        };
        let prefilling: Vec<usize> = indices(&self.running, Sequence::prefilling).collect();
        let sequences = || prefilling.iter().filter_map(|&index| self.running.get(index));
        let needs: Vec<usize> = sequences().map(Sequence::pending).collect();
        let mut granted: Vec<(usize, usize)> =
            prefilling.iter().copied().zip(share(budget, &needs)).filter(|(_, rows)| *rows > 0).collect();
        // Prompts that want one row of logits come before those that want many.
        granted.sort_by_key(|&(index, _)| {
            self.running.get(index).is_some_and(|sequence| sequence.prompt_logprobs.is_some())
        });
        let mut logit_rows = self.limits.logit_rows.saturating_sub(answers.len());
        for (index, rows) in &mut granted {
            if let Some(sequence) = self.running.get(*index) {
                *rows = rows_within(sequence, *rows, &mut logit_rows);
            }
        }
        granted.retain(|(_, rows)| *rows > 0);
        granted
    }

    /// Adds the next rows of a sequence to the batch.
    fn add(&mut self, index: usize, rows: usize, batch: &mut Batch) -> Option<Work> {
        let sequence = self.running.get_mut(index)?;
        let positions = sequence.computed..sequence.computed + rows;
        let tokens = sequence.tokens.get(positions.clone())?;
        for (&token, position) in tokens.iter().zip(positions.clone()) {
            let logits = sequence.wants_logits(position);
            let generated = position >= sequence.prompt_len;
            batch.rows.push(BatchRow { token, sequence: batch.sequences.len(), position, logits, generated });
        }
        let pages = sequence.pages.as_ref()?;
        batch.sequences.push(pages.covering(positions.end, self.limits.page_tokens).to_vec());
        sequence.last_step = self.step;
        Some(Work { index, positions })
    }
}

fn indices<'s>(
    sequences: &'s [Sequence],
    which: impl Fn(&Sequence) -> bool + 's,
) -> impl Iterator<Item = usize> + 's {
    sequences.iter().enumerate().filter(move |(_, sequence)| which(sequence)).map(|(index, _)| index)
}

/// The most rows, up to `rows`, that ask for no more than `logit_rows` rows of logits, which are taken off.
fn rows_within(sequence: &Sequence, rows: usize, logit_rows: &mut usize) -> usize {
    for row in 0..rows {
        if sequence.wants_logits(sequence.computed + row) {
            let Some(left) = logit_rows.checked_sub(1) else { return row };
            *logit_rows = left;
        }
    }
    rows
}
