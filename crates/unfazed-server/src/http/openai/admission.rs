//! A request as it was let in: all that its answer is a function of, but for the tokens.
//!
//! It is kept as JSON, so that another build of the program can go on with the answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use unfazed_tokenizer::Detokenizer;
use unfazed_wire::Submit;

use super::super::streams::resume::Keep;
use super::answer::Shape;
use super::chat::ChatShape;
use super::choice::Script;
use super::completions::CompletionShape;
use super::response::Head;
use crate::model::Model;

/// Which of the two a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Endpoint {
    Chat,
    Completions,
}

impl Endpoint {
    /// What ids of its answers begin with.
    pub(crate) fn id_prefix(self) -> &'static str {
        match self {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completions => "cmpl-",
        }
    }

    /// The object that an answer, or a chunk of it, is.
    pub(crate) fn object(self, stream: bool) -> &'static str {
        match (self, stream) {
            (Endpoint::Chat, false) => "chat.completion",
            (Endpoint::Chat, true) => "chat.completion.chunk",
            (Endpoint::Completions, _) => "text_completion",
        }
    }

    /// How it writes its choices; `scored`: log probabilities are asked for.
    pub(super) fn shape(self, model: Arc<Model>, scored: bool) -> Box<dyn Shape> {
        match self {
            Endpoint::Chat => Box::new(ChatShape { model, scored }),
            Endpoint::Completions => Box::new(CompletionShape { model, scored }),
        }
    }

    /// Turns an answer's tokens into text.
    pub(super) fn detokenizer(self, model: &Model) -> Detokenizer {
        match self {
            Endpoint::Chat => model.tokenizer.detokenizer(),
            Endpoint::Completions => model.tokenizer.continuing_detokenizer(),
        }
    }
}

/// The request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Admission {
    pub(crate) endpoint: Endpoint,
    /// What its answer begins with.
    pub(crate) head: Head,
    /// The answer is a stream, which ends with usage if that is asked for.
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// For whom the stream is kept, if it can be resumed.
    pub(crate) keep: Option<Keep>,
    /// Log probabilities are asked for.
    pub(crate) scored: bool,
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// When it arrived, in milliseconds since 1970.
    pub(crate) arrived_ms: u64,
    /// The model's [`Model::identity`]: no other one can go on with it.
    pub(crate) model: u64,
    /// One for each choice.
    pub(crate) sequences: Vec<(Submit, Script)>,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl Admission {
    /// How long ago it arrived.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.arrived_ms))
    }
}
