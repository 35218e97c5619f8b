//! The model as the front knows it: its name, its words and its limits. No tensor data.

use std::time::{SystemTime, UNIX_EPOCH};

use twox_hash::XxHash3_64;
use unfazed_formats::{Checkpoint, Headers, Identity};
use unfazed_plan::Plan;
use unfazed_tokenizer::Tokenizer;

use crate::ServerError;
use crate::chat::{ChatTemplate, TemplateError};
use crate::supervisor::RendererProgram;

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
    /// For requests that do not say: tokens within which a repetition ends an answer, 0 for none.
    pub(crate) repeat_stop_tokens: usize,
    /// Stands for its files, whatever they are called and wherever they lie.
    pub(crate) identity: u64,
    /// What an answer is a function of, beside the request: sent as `system_fingerprint`.
    pub(crate) fingerprint: String,
}

impl Model {
    /// Builds tokenizer and template; takes up to a second for a large vocabulary.
    pub(crate) fn new(
        id: String,
        checkpoint: &Checkpoint,
        plan: &Plan,
        renderer: Option<RendererProgram>,
    ) -> Result<Model, ServerError> {
        let vocab = checkpoint.config.vocab;
        let tokenizer = Tokenizer::new(&checkpoint.tokenizer, vocab)
            .map_err(|error| ServerError::Tokenizer(error.to_string()))?;
        let template = ChatTemplate::for_model(checkpoint.chat_template.as_deref(), &tokenizer);
        if let Err(error) = &template {
            tracing::warn!("{}", refused_chats(error));
        }
        let template = template.map(|template| match renderer {
            Some(program) => template.in_processes(program),
            None => template,
        });
        Ok(Model {
            id,
            created: now(),
            tokenizer,
            template,
            context: plan.context.0,
            vocab,
            repeat_stop_tokens: 0,
            identity: identity(checkpoint),
            fingerprint: format!("unfazed-{}", unfazed_wire::BUILD_ID),
        })
    }

    /// Bytes that a prompt of the whole context can have at most.
    pub(crate) fn prompt_bytes_limit(&self) -> usize {
        self.context.saturating_mul(self.tokenizer.longest_token_bytes().max(1))
    }
}

/// Stands for a model's shape and the sizes and times of its files.
fn identity(checkpoint: &Checkpoint) -> u64 {
    let file = |file: &Identity| Identity { inode: 0, ..*file };
    let headers = Headers::from(checkpoint);
    let identities = headers.identities.iter().map(file).collect();
    digest(&Headers { files: Vec::new(), name: String::new(), identities, ..headers })
}

/// Stands for a model's files as they were opened.
pub(crate) fn headers_digest(checkpoint: &Checkpoint) -> u64 {
    digest(&Headers::from(checkpoint))
}

fn digest(headers: &Headers) -> u64 {
    // What cannot be written down is the same as nothing else: 0 fits no other.
    headers.encode().map_or(0, |bytes| XxHash3_64::oneshot(&bytes).max(1))
}

/// The note that a server starts with whose template can't be used.
pub(crate) fn refused_chats(error: &TemplateError) -> String {
    format!("chats are refused: {error}")
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
