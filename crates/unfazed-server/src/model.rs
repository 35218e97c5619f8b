//! The model as the front knows it: its name, its words and its limits. No tensor data.

use std::time::{SystemTime, UNIX_EPOCH};

use unfazed_formats::Checkpoint;
use unfazed_plan::Plan;
use unfazed_tokenizer::Tokenizer;

use crate::ServerError;
use crate::chat::{ChatTemplate, TemplateError};

/// What requests are prepared and answers are shown with.
pub(crate) struct Model {
    /// Its name towards clients.
    pub(crate) id: String,
    /// Seconds since 1970 at which the server started with it.
    pub(crate) created: u64,
    pub(crate) tokenizer: Tokenizer,
    /// The template, or why there is none that can be used: chats are answered with it, completions don't need one.
    pub(crate) template: Result<ChatTemplate, TemplateError>,
    /// Longest sequence (prompt and answer), in tokens.
    pub(crate) context: usize,
    /// Token ids are below it.
    pub(crate) vocab: usize,
    /// What an answer is a function of, beside the request: sent as `system_fingerprint`.
    pub(crate) fingerprint: String,
}

impl Model {
    /// Builds tokenizer and template; takes up to a second for a large vocabulary.
    pub(crate) fn new(id: String, checkpoint: &Checkpoint, plan: &Plan) -> Result<Model, ServerError> {
        let vocab = checkpoint.config.vocab;
        let tokenizer = Tokenizer::new(&checkpoint.tokenizer, vocab)
            .map_err(|error| ServerError::Tokenizer(error.to_string()))?;
        let template = ChatTemplate::for_model(checkpoint.chat_template.as_deref(), &tokenizer);
        if let Err(error) = &template {
            tracing::warn!("{}", refused_chats(error));
        }
        Ok(Model {
            id,
            created: now(),
            tokenizer,
            template,
            context: plan.context.0,
            vocab,
            fingerprint: format!("unfazed-{}", unfazed_wire::BUILD_ID),
        })
    }

    /// Bytes that a prompt of the whole context can have at most.
    pub(crate) fn prompt_bytes_limit(&self) -> usize {
        self.context.saturating_mul(self.tokenizer.longest_token_bytes().max(1))
    }
}

/// The note that a server starts with whose template can't be used.
pub(crate) fn refused_chats(error: &TemplateError) -> String {
    format!("chats are refused: {error}")
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
