//! A request being computed.

use std::time::Duration;

use unfazed_wire::{RequestId, Sampling, Submit, Timings};

use crate::clock::milliseconds;
use crate::pages::Pages;
use crate::sampling::Occurrences;
use crate::sampling::adjust::penalises;

/// A request: its tokens so far, how many of them have keys and values, and its place.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: RequestId,
    /// The prompt, then what was generated.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// Positions whose keys and values are in the pages.
    pub(crate) computed: usize,
    /// Most tokens to generate: what was asked for, at most what the context leaves.
    pub(crate) max_new: usize,
    pub(crate) sampling: Sampling,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) logprobs: Option<u32>,
    pub(crate) prompt_logprobs: Option<u32>,
    /// Kept up to date if a penalty asks for it.
    pub(crate) occurrences: Occurrences,
    /// The pages of all positions that it may reach, from admission on.
    pub(crate) pages: Option<Pages>,
    /// Number of the last step that it had a row in.
    pub(crate) last_step: u64,
    pub(crate) submitted: Duration,
    pub(crate) admitted: Duration,
    pub(crate) prompt_done: Duration,
}

impl Sequence {
    pub(crate) fn new(submit: Submit, context: usize, now: Duration) -> Sequence {
        let prompt_len = submit.prompt.len();
        let occurrences = match penalises(&submit.sampling.penalties) {
            true => Occurrences::of_prompt(&submit.prompt),
            false => Occurrences::default(),
        };
        Sequence {
            request: submit.request,
            tokens: submit.prompt,
            prompt_len,
            computed: 0,
            max_new: submit.max_tokens.min(context.saturating_sub(prompt_len)),
            sampling: submit.sampling,
            stop_tokens: submit.stop_tokens,
            logprobs: submit.logprobs,
            prompt_logprobs: submit.prompt_logprobs,
            occurrences,
            pages: None,
            last_step: 0,
            submitted: now,
            admitted: now,
            prompt_done: now,
        }
    }

    /// Most positions that will ever have keys and values: the last generated token needs none.
    pub(crate) fn positions(&self) -> usize {
        self.prompt_len + self.max_new.saturating_sub(1)
    }

    pub(crate) fn prefilling(&self) -> bool {
        self.computed < self.prompt_len
    }

    /// Tokens that have no keys and values yet: the rest of the prompt, or the token just generated.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Whether the row at `position` must give logits: to choose the next token, or for the log probability of a
    /// prompt token.
    pub(crate) fn wants_logits(&self, position: usize) -> bool {
        match position + 1 < self.prompt_len {
            true => self.prompt_logprobs.is_some(),
            false => self.max_new > 0,
        }
    }

    /// A token was chosen and belongs to the answer.
    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
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
