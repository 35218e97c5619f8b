//! A request being computed.

use std::time::Duration;

use unfazed_wire::{FinishReason, RequestId, Sampling, Submit, Timings};

use crate::clock::milliseconds;
use crate::kept::{Account, Found};
use crate::pages::Pages;
use crate::repetition::Repetition;
use crate::sampling::Occurrences;
use crate::sampling::adjust::penalises;

/// A request: its tokens so far, how many of them have keys and values, and its place.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: RequestId,
    /// The prompt, then what was generated.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// Tokens that came with the request: the prompt, and what an earlier engine generated.
    pub(crate) given: usize,
    /// Positions that an earlier engine may have computed and that need not be computed again.
    pub(crate) may_keep: usize,
    /// Positions whose keys and values are in the pages.
    pub(crate) computed: usize,
    /// Most tokens to generate: what was asked for, at most what the context leaves.
    pub(crate) max_new: usize,
    pub(crate) sampling: Sampling,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) logprobs: Option<u32>,
    pub(crate) prompt_logprobs: Option<u32>,
    /// Positions of the prompt of which an earlier engine has told them.
    pub(crate) prompt_logprobs_told: usize,
    /// Of the answer.
    pub(crate) repetition: Repetition,
    /// The answer says the same again and again.
    pub(crate) repeats: bool,
    /// Kept up to date if a penalty asks for it.
    pub(crate) occurrences: Occurrences,
    /// Positions that have records in shared memory; not more than are computed.
    pub(crate) recorded: usize,
    /// What its pages hold, as far as they have records.
    pub(crate) account: Account,
    /// The pages of all positions that it may reach, from admission on.
    pub(crate) pages: Option<Pages>,
    /// Its logits were not finite in its last step.
    pub(crate) nonfinite: bool,
    /// Number of the last step that it had a row in.
    pub(crate) last_step: u64,
    pub(crate) submitted: Duration,
    pub(crate) admitted: Duration,
    pub(crate) prompt_done: Duration,
}

impl Sequence {
    pub(crate) fn new(submit: Submit, context: usize, now: Duration) -> Sequence {
        let prompt_len = submit.prompt.len();
        let max_new = submit.max_tokens.min(context.saturating_sub(prompt_len));
        let told = submit.resumed.as_ref().map_or(0, |progress| progress.prompt_logprobs);
        let may_keep = match (&submit.resumed, submit.prompt_logprobs) {
            (None, _) => 0,
            (Some(_), Some(_)) if told.saturating_add(1) < prompt_len => told,
            (Some(_), _) => usize::MAX,
        };
        let mut sequence = Sequence {
            request: submit.request,
            tokens: submit.prompt,
            prompt_len,
            given: prompt_len,
            may_keep,
            computed: 0,
            max_new,
            sampling: submit.sampling,
            stop_tokens: submit.stop_tokens,
            logprobs: submit.logprobs,
            prompt_logprobs: submit.prompt_logprobs,
            prompt_logprobs_told: told,
            repetition: Repetition::new(submit.repeat_stop_tokens),
            repeats: false,
            occurrences: Occurrences::default(),
            recorded: 0,
            account: Account::default(),
            pages: None,
            nonfinite: false,
            last_step: 0,
            submitted: now,
            admitted: now,
            prompt_done: now,
        };
        if penalises(&sequence.sampling.penalties) {
            sequence.occurrences = Occurrences::of_prompt(&sequence.tokens);
        }
        for token in submit.resumed.map(|progress| progress.tokens).unwrap_or_default() {
            sequence.push(token);
        }
        sequence.given = sequence.tokens.len();
        // The last of them gives the next token's logits.
        sequence.may_keep = sequence.may_keep.min(sequence.given.saturating_sub(1));
        sequence
    }

    /// Only what was found is still in its pages: the rest is computed again, and nothing of it is told again.
    pub(crate) fn rewind(&mut self, found: &Found) {
        self.prompt_logprobs_told = self.prompt_logprobs_told.max(self.computed);
        self.given = self.tokens.len();
        self.stands_at(found);
    }

    /// Its first positions are those that were found.
    pub(crate) fn stands_at(&mut self, found: &Found) {
        (self.computed, self.recorded, self.account) = (found.positions, found.positions, found.account);
    }

    /// Why nothing is left to be computed, if nothing is: the answer is at its end, perhaps by an earlier engine that could not
    /// say so.
    pub(crate) fn complete(&self) -> Option<FinishReason> {
        match self.max_new > 0 && self.generated() >= self.max_new {
            _ if self.repeats => Some(FinishReason::Repetition),
            true => Some(FinishReason::Length),
            false => None,
        }
    }

    /// Most positions that will ever have keys and values: the last generated token needs none.
    pub(crate) fn positions(&self) -> usize {
        self.prompt_len + self.max_new.saturating_sub(1)
    }

    /// Not all tokens that came with the request are computed.
    pub(crate) fn prefilling(&self) -> bool {
        self.computed < self.given
    }

    /// Tokens that have no keys and values yet: the rest of those given, or the token just generated.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Whether the row at `position` must give logits: to choose the next token, or for the log probability of a
    /// prompt token.
    pub(crate) fn wants_logits(&self, position: usize) -> bool {
        match position + 1 < self.given {
            true => self.wants_prompt_logprobs(position),
            false => self.max_new > 0,
        }
    }

    /// Whether the row at `position` gives the log probability of a prompt token that was not told yet.
    pub(crate) fn wants_prompt_logprobs(&self, position: usize) -> bool {
        let told = self.prompt_logprobs_told;
        self.prompt_logprobs.is_some() && position >= told && position + 1 < self.prompt_len
    }

    /// A token was chosen and belongs to the answer.
    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.repeats = self.repetition.push(self.tokens.get(self.prompt_len..).unwrap_or_default());
        if penalises(&self.sampling.penalties) {
            self.occurrences.push(token);
        }
    }

    pub(crate) fn timings(&self, now: Duration) -> Timings {
        Timings {
            queue_ms: milliseconds(self.submitted, self.admitted),
            cached_tokens: 0,
            prompt_tokens: self.prompt_len,
            prompt_ms: milliseconds(self.admitted, self.prompt_done),
            predicted_tokens: self.generated(),
            predicted_ms: milliseconds(self.prompt_done, now),
        }
    }
}
