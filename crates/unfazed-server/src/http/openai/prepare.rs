//! From a request to sequences: tokens counted against the context, settings made into what the engine takes.

use std::sync::Arc;

use axum::extract::Request;
use unfazed_tokenizer::{Segment, TokenizerError};
use unfazed_wire::{RequestId, Sampling, Submit};

use super::super::error::ApiError;
use super::super::router::{App, AppState};
use super::settings::Settings;
use crate::model::Model;

/// Most log probabilities that are held for an answer. Each takes up to 500 bytes.
const MAX_LOGPROBS: usize = 1 << 21;

/// Reads a request's body and makes of it what may be handed to the engine.
pub(crate) async fn receive<T: Send + 'static>(
    app: &App,
    request: Request,
    prepare: impl FnOnce(&AppState, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let body = app.bodies.read(request.into_body()).await?;
    // Where another front makes the answers, that one knows what there is room for.
    if !app.passage.has_moved() {
        app.engine.check(1)?;
    }
    off_the_async_threads(app, move |app| prepare(app, body.bytes())).await
}

/// Runs what may take long (parsing, templates, tokenising) on a thread that may block. Only so many run at a time; a
/// client that leaves gives up its turn, and one whose turn has come keeps it to the end.
async fn off_the_async_threads<T: Send + 'static>(
    app: &App,
    work: impl FnOnce(&AppState) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let turn = Arc::clone(&app.preparing).acquire_owned().await.map_err(|_| ApiError::shutting_down())?;
    let app = Arc::clone(app);
    let task = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work(&app)
    });
    task.await.map_err(|error| {
        tracing::error!(%error, "preparing a request failed");
        ApiError::internal("the server failed to prepare this request; its log has the cause")
    })?
}

/// Tokens of a rendered chat.
pub(crate) fn encode_segments(model: &Model, segments: &[Segment<'_>]) -> Result<Vec<u32>, ApiError> {
    let bytes = segments.iter().map(|segment| segment.text.len()).sum();
    check_bytes(model, "messages", bytes)?;
    let tokens = model.tokenizer.encode_segments(segments);
    tokens.map_err(|error| encoding_error("messages", &error))
}

/// Refuses a text that has more bytes than the longest prompt could have, before it is tokenised.
pub(crate) fn check_bytes(model: &Model, param: &str, bytes: usize) -> Result<(), ApiError> {
    let limit = model.prompt_bytes_limit();
    if bytes > limit { Err(ApiError::too_long_text(param, bytes, limit, model.context)) } else { Ok(()) }
}

/// A tokenizer's error as an answer: most are about the client's text.
pub(crate) fn encoding_error(param: &str, error: &TokenizerError) -> ApiError {
    match error {
        TokenizerError::TextTooLong { .. } | TokenizerError::Inexpressible(_) => {
            ApiError::field(param, format!("{param}: {error}"))
        }
        _ => ApiError::internal(format!("the prompt cannot be tokenised: {error}")),
    }
}

/// How many sequences a request is, refused if that is more than the server can ever hold.
pub(crate) fn sequences(app: &AppState, prompts: usize, choices: usize) -> Result<usize, ApiError> {
    let sequences = prompts.saturating_mul(choices);
    let capacity = app.engine.capacity();
    if sequences <= capacity {
        return Ok(sequences);
    }
    let message = format!(
        "{prompts} prompts with n {choices} are {sequences} sequences: this server holds at most {capacity}"
    );
    Err(ApiError::field("n", message))
}

/// Refuses an answer whose log probabilities would take more memory than an answer should. Those of a stream's tokens
/// are sent as they come, those of a prompt at once.
pub(crate) fn check_logprobs<'a>(
    stream: bool,
    submits: impl IntoIterator<Item = &'a Submit>,
) -> Result<(), ApiError> {
    let count = |positions: usize, top: Option<u32>| {
        top.map_or(0, |top| positions.saturating_mul((top as usize).saturating_add(1)))
    };
    let most = submits.into_iter().fold(0usize, |sum, submit| {
        let tokens = if stream { 0 } else { count(submit.max_tokens, submit.logprobs) };
        sum.saturating_add(tokens).saturating_add(count(submit.prompt.len(), submit.prompt_logprobs))
    });
    if most <= MAX_LOGPROBS {
        return Ok(());
    }
    let message = format!(
        "logprobs: up to {most} log probabilities would be answered with at once, and {MAX_LOGPROBS} are at most: \
         lower max_tokens or their number at each token, or stream"
    );
    Err(ApiError::field("logprobs", message))
}

/// What a sequence is made of beside its settings.
pub(crate) struct Wanted {
    /// Most tokens where the request does not say.
    pub(crate) default_max_tokens: usize,
    /// Log probabilities of this many tokens at each generated position.
    pub(crate) logprobs: Option<u32>,
    /// The same at each position of the prompt.
    pub(crate) prompt_logprobs: Option<u32>,
    /// Tokens at which the engine ends the answer.
    pub(crate) stop_tokens: Vec<u32>,
}

/// The sequence of one choice, or a refusal if the prompt leaves no room. `max_tokens` is lowered to the room there is.
pub(crate) fn submit(
    model: &Model,
    param: &str,
    prompt: &[u32],
    choice: usize,
    settings: &Settings,
    wanted: &Wanted,
) -> Result<Submit, ApiError> {
    let max_tokens = settings.max_tokens.unwrap_or(wanted.default_max_tokens);
    if prompt.is_empty() {
        return Err(ApiError::field(param, format!("{param} has no tokens: at least one is needed")));
    }
    if let Some(token) = prompt.iter().find(|token| **token as usize >= model.vocab) {
        let message =
            format!("{param} has the token id {token}: those of this model are below {}", model.vocab);
        return Err(ApiError::field(param, message));
    }
    let room = model.context.saturating_sub(prompt.len());
    if prompt.len() > model.context || (room == 0 && max_tokens > 0) {
        return Err(ApiError::too_long(param, prompt.len(), model.context));
    }
    Ok(Submit {
        // The engine's side of the server numbers it.
        request: RequestId(0),
        prompt: prompt.to_vec(),
        max_tokens: max_tokens.min(room),
        sampling: Sampling { choice: u32::try_from(choice).unwrap_or(u32::MAX), ..settings.sampling.clone() },
        stop_tokens: wanted.stop_tokens.clone(),
        repeat_stop_tokens: settings.repeat_stop_tokens.unwrap_or(model.repeat_stop_tokens),
        logprobs: wanted.logprobs,
        prompt_logprobs: wanted.prompt_logprobs,
        resumed: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(max_tokens: usize, logprobs: Option<u32>, prompt_logprobs: Option<u32>) -> Submit {
        Submit {
            request: RequestId(0),
            prompt: vec![1; 1000],
            max_tokens,
            sampling: Sampling::default(),
            stop_tokens: Vec::new(),
            repeat_stop_tokens: 0,
            logprobs,
            prompt_logprobs,
            resumed: None,
        }
    }

    #[test]
    fn log_probabilities_are_refused_where_an_answer_would_hold_too_many_at_once() {
        let check = |stream, submit: Submit| check_logprobs(stream, &vec![submit; 100]).is_ok();
        assert!(check(false, submit(20_000, Some(0), None)));
        assert!(!check(false, submit(20_000, Some(1), None)));
        assert!(check(true, submit(20_000, Some(20), None)), "a stream sends them as they come");
        assert!(check(true, submit(0, None, Some(19))));
        assert!(!check(true, submit(0, None, Some(20))), "a prompt's are sent at once");
        assert!(check(false, submit(usize::MAX, None, None)));
        assert!(!check(false, submit(usize::MAX, Some(u32::MAX), None)));
    }
}
