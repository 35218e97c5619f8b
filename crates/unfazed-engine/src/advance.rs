//! What a step's logits mean for a sequence: progress, log probabilities, the next token, an end.

use std::ops::Range;
use std::slice::ChunksExact;
use std::time::Duration;

use unfazed_device::StepOutput;
use unfazed_fault::{Action, Class};
use unfazed_kernels::Isa;
use unfazed_wire::{FailureKind, FaultReport, FinishReason, TokenEvent};

use crate::outcome::Outcome;
use crate::sampling::select::all_finite;
use crate::sampling::{Sampler, token_logprobs};
use crate::scheduler::plan::Work;
use crate::sequence::Sequence;

/// Carries sequences over a step that was computed.
pub(crate) struct Advance<'a> {
    pub(crate) isa: Isa,
    pub(crate) sampler: &'a mut Sampler,
    pub(crate) outcome: &'a mut Outcome,
    /// When the step was done.
    pub(crate) now: Duration,
}

impl Advance<'_> {
    /// Carries all sequences of a step over it.
    pub(crate) fn step(
        &mut self,
        running: &mut [Sequence],
        work: &[Work],
        output: &StepOutput<'_>,
        vocab: usize,
    ) {
        let mut rows = output.logits.chunks_exact(vocab.max(1));
        for (index, work) in work.iter().enumerate() {
            let Some(sequence) = running.get_mut(work.index) else { continue };
            match output.failures.iter().find(|failure| failure.sequence == index) {
                Some(failure) => self.lost(sequence, &work.positions, &mut rows, &failure.reason),
                None => self.sequence(sequence, &work.positions, &mut rows),
            }
        }
    }

    /// The keys and values of `positions` are in the pages, and the sequence's own rows of logits come next in `rows`.
    fn sequence(
        &mut self,
        sequence: &mut Sequence,
        positions: &Range<usize>,
        rows: &mut ChunksExact<'_, f32>,
    ) {
        let request = sequence.request;
        let wanted: Vec<usize> =
            positions.clone().filter(|&position| sequence.wants_logits(position)).collect();
        // All own rows are taken whatever comes, so that the next sequence finds its own.
        let own: Vec<(usize, &[f32])> = wanted.iter().copied().zip(rows.by_ref()).collect();
        if own.len() < wanted.len() {
            let message = "the device returned fewer logits than it was asked for".to_owned();
            return self.outcome.fail(request, FailureKind::Engine, message);
        }
        if let Some((position, _)) = own.iter().find(|(_, row)| !all_finite(row)) {
            return self.nonfinite(sequence, *position);
        }
        sequence.nonfinite = false;
        if sequence.prefilling() {
            self.prompt(sequence, positions, &own);
        } else {
            sequence.computed = positions.end;
        }
        if !sequence.prefilling() {
            self.answer(sequence, own.last().map(|(_, row)| *row));
        }
    }

    /// What is not finite is computed once more: memory or a device may have failed for a moment. If it comes again it is
    /// the model's doing, and the request ends.
    fn nonfinite(&mut self, sequence: &mut Sequence, position: usize) {
        let message = format!("the model's logits at position {position} are not finite");
        let again = std::mem::replace(&mut sequence.nonfinite, true);
        let action = if again { Action::FailRequest } else { Action::RetryStep };
        self.outcome.fault(FaultReport {
            class: Class::NonFinite,
            evidence: format!("request {}: {message}", sequence.request.0),
            action,
            attempt: 1 + u32::from(again),
            cost_ms: 0.0,
            positions: 0,
        });
        if again {
            self.outcome.fail(sequence.request, FailureKind::NonfiniteLogits, message);
        }
    }

    /// The step brought the sequence nothing, as weights that it needs cannot be read.
    fn lost(
        &mut self,
        sequence: &Sequence,
        positions: &Range<usize>,
        rows: &mut ChunksExact<'_, f32>,
        reason: &str,
    ) {
        let wanted = positions.clone().filter(|&position| sequence.wants_logits(position)).count();
        rows.by_ref().take(wanted).for_each(drop);
        self.outcome.fail(sequence.request, FailureKind::Storage, reason.to_owned());
    }

    fn prompt(&mut self, sequence: &mut Sequence, positions: &Range<usize>, own: &[(usize, &[f32])]) {
        sequence.computed = positions.end;
        if let Some(top) = sequence.prompt_logprobs {
            let wanted = |position: &usize| sequence.wants_prompt_logprobs(*position);
            let next = |position: usize| sequence.tokens.get(position + 1);
            let of_row = |&(position, row): &(usize, &[f32])| {
                Some(position)
                    .filter(wanted)
                    .and_then(next)
                    .map(|&token| token_logprobs(self.isa, row, token, top))
            };
            self.outcome.prompt_logprobs(sequence.request, own.iter().filter_map(of_row).collect());
        }
        self.outcome.prefill(sequence.request, sequence.computed, sequence.given);
        if !sequence.prefilling() {
            sequence.prompt_done = self.now;
        }
    }

    /// All tokens so far are computed: chooses the next one from `row`, or ends.
    fn answer(&mut self, sequence: &mut Sequence, row: Option<&[f32]>) {
        let request = sequence.request;
        let Some(row) = row.filter(|_| sequence.max_new > 0) else {
            return self.outcome.finish(request, FinishReason::Length, sequence.timings(self.now));
        };
        let position = sequence.tokens.len();
        let token = self.sampler.choose(row, &sequence.sampling, &sequence.occurrences, position);
        if sequence.stop_tokens.contains(&token) {
            return self.outcome.finish(request, FinishReason::Stop, sequence.timings(self.now));
        }
        let logprobs = sequence.logprobs.map(|top| token_logprobs(self.isa, row, token, top));
        sequence.push(token);
        self.outcome.token(TokenEvent { request, token, logprobs });
        if let Some(reason) = sequence.complete() {
            self.outcome.finish(request, reason, sequence.timings(self.now));
        }
    }
}
