//! What both endpoints answer with: ids, usage, timings.

use serde::{Deserialize, Serialize};
use unfazed_wire::{FinishReason, Timings};

use super::super::error::ApiError;
use super::super::random_id::RandomId;
use super::admission::Endpoint;
use crate::model::{self, Model};

/// What every body and chunk of one answer begins with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) object: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: String,
}

impl Head {
    /// A new answer's.
    pub(crate) fn new(endpoint: Endpoint, stream: bool, model: &Model) -> Result<Head, ApiError> {
        let id = format!("{}{}", endpoint.id_prefix(), RandomId::new()?);
        let object = endpoint.object(stream).to_owned();
        let (model_id, fingerprint) = (model.id.clone(), model.fingerprint.clone());
        Ok(Head { id, object, created: model::now(), model: model_id, system_fingerprint: fingerprint })
    }
}

/// OpenAI's count of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptTokensDetails,
}

/// Its part about the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PromptTokensDetails {
    pub(crate) cached_tokens: usize,
}

/// llama-server's block of the same name. Of several sequences: sums of tokens, the longest of times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct TimingsBlock {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

/// Counts and times of the sequences that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Tokens of all prompts, each counted once however many choices it has.
    prompt_tokens: usize,
    sum: Timings,
}

impl Totals {
    pub(crate) fn new(prompt_tokens: usize) -> Totals {
        Totals { prompt_tokens, sum: Timings::default() }
    }

    pub(crate) fn add(&mut self, timings: &Timings) {
        // Counts come from the engine: they may be anything.
        let sum = &mut self.sum;
        sum.cached_tokens = sum.cached_tokens.saturating_add(timings.cached_tokens);
        sum.prompt_tokens = sum.prompt_tokens.saturating_add(timings.prompt_tokens);
        sum.predicted_tokens = sum.predicted_tokens.saturating_add(timings.predicted_tokens);
        self.sum.prompt_ms = self.sum.prompt_ms.max(timings.prompt_ms);
        self.sum.predicted_ms = self.sum.predicted_ms.max(timings.predicted_ms);
    }

    pub(crate) fn usage(&self) -> Usage {
        let cached_tokens = self.sum.cached_tokens.min(self.prompt_tokens);
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.sum.predicted_tokens,
            total_tokens: self.prompt_tokens.saturating_add(self.sum.predicted_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }

    pub(crate) fn timings(&self) -> TimingsBlock {
        let sum = &self.sum;
        TimingsBlock {
            cache_n: sum.cached_tokens,
            prompt_n: sum.prompt_tokens,
            prompt_ms: sum.prompt_ms,
            prompt_per_token_ms: ratio(sum.prompt_ms, sum.prompt_tokens as f64),
            prompt_per_second: ratio(sum.prompt_tokens as f64 * 1e3, sum.prompt_ms),
            predicted_n: sum.predicted_tokens,
            predicted_ms: sum.predicted_ms,
            predicted_per_token_ms: ratio(sum.predicted_ms, sum.predicted_tokens as f64),
            predicted_per_second: ratio(sum.predicted_tokens as f64 * 1e3, sum.predicted_ms),
        }
    }
}

/// 0 where there is nothing to divide by: JSON has no infinity.
fn ratio(over: f64, under: f64) -> f64 {
    if under > 0.0 { over / under } else { 0.0 }
}

/// OpenAI's word, but for an end that it does not have.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Repetition => "repetition",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_no_engine_can_mean_are_added_up_all_the_same() {
        let most = Timings {
            cached_tokens: usize::MAX,
            prompt_tokens: usize::MAX,
            predicted_tokens: usize::MAX,
            ..Timings::default()
        };
        let mut totals = Totals::new(7);
        totals.add(&most);
        totals.add(&most);
        let usage = totals.usage();
        assert_eq!((usage.completion_tokens, usage.total_tokens), (usize::MAX, usize::MAX));
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 7);
        assert_eq!(totals.timings().prompt_n, usize::MAX);
    }
}
