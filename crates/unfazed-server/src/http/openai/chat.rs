//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use unfazed_wire::FinishReason;

use super::super::error::ApiError;
use super::super::router::{App, AppState};
use super::admission::Endpoint;
use super::answer::{self, Prepared, Shape};
use super::choice::Script;
use super::fields::Fields;
use super::prepare::{self, Wanted};
use super::response::finish_reason;
use super::settings::{MAX_TOP_LOGPROBS, Settings};
use super::{logprobs, messages};
use crate::answer::Piece;
use crate::chat::{RenderOptions, TemplateError};
use crate::model::Model;

/// Handles the request.
pub(crate) async fn post(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    answer::answer(&app, request, prepare, Endpoint::Chat).await
}

/// Makes sequences of a body.
fn prepare(app: &AppState, body: &[u8]) -> Result<Prepared, ApiError> {
    let model = &app.model;
    let Parsed { settings, logprobs, messages, options } = Parsed::read(body, model.vocab)?;
    prepare::sequences(app, 1, settings.choices)?;
    let prompt = render(model, messages, &options)?;
    let stop_tokens = if settings.ignore_eos { Vec::new() } else { model.tokenizer.end_tokens().to_vec() };
    let wanted = Wanted { default_max_tokens: usize::MAX, logprobs, prompt_logprobs: None, stop_tokens };
    let sequence = |index| {
        let script = Script {
            index,
            prompt_tokens: prompt.len(),
            stops: settings.stops.clone(),
            echo: None,
            scored_ends: Vec::new(),
        };
        Ok((prepare::submit(model, "messages", &prompt, index, &settings, &wanted)?, script))
    };
    let sequences: Vec<_> = (0..settings.choices).map(sequence).collect::<Result<_, ApiError>>()?;
    prepare::check_logprobs(settings.stream, sequences.iter().map(|(submit, _)| submit))?;
    Ok(Prepared { settings, sequences, prompt_tokens: prompt.len(), scored: logprobs.is_some() })
}

/// What a request's body says.
pub(super) struct Parsed {
    settings: Settings,
    logprobs: Option<u32>,
    messages: Vec<Value>,
    options: RenderOptions,
}

impl Parsed {
    /// Reads and checks a body for a model whose token ids are below `vocab`.
    pub(super) fn read(body: &[u8], vocab: usize) -> Result<Parsed, ApiError> {
        let fields = Fields::parse(body)?;
        Ok(Parsed {
            settings: Settings::read(&fields, vocab)?,
            logprobs: top_logprobs(&fields)?,
            messages: messages::read(&fields)?,
            options: RenderOptions {
                add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
                tools: tools(&fields)?,
                kwargs: template_kwargs(&fields)?,
            },
        })
    }
}

/// `logprobs` and `top_logprobs`.
fn top_logprobs(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (fields.flag("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(top)) => Err(ApiError::field(
            "top_logprobs",
            format!("top_logprobs is {top}: it needs logprobs to be true"),
        )),
    }
}

/// Renders the chat template and counts its tokens.
fn render(model: &Model, messages: Vec<Value>, options: &RenderOptions) -> Result<Vec<u32>, ApiError> {
    prepare::check_bytes(model, "messages", messages::text_bytes(&messages))?;
    let template = model.template.as_ref().map_err(rendering_error)?;
    let segments =
        template.render(&Value::Array(messages), options).map_err(|error| rendering_error(&error))?;
    prepare::encode_segments(model, &segments)
}

/// A rendering that failed: by the messages' or the template's fault, or by the machine's or ours.
fn rendering_error(error: &TemplateError) -> ApiError {
    if error.is_of_the_machine() {
        ApiError::internal(error.to_string())
    } else {
        ApiError::template(error.to_string())
    }
}

fn tools(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    let tools: Option<Vec<Map<String, Value>>> = fields.tree("tools", "a list of objects")?;
    match fields.get::<Value>("tool_choice", "a string or an object")? {
        None => {}
        Some(Value::String(choice)) if choice == "auto" => {}
        Some(Value::String(choice)) if choice == "none" => return Ok(None),
        Some(choice) => {
            let message = format!("tool_choice is {choice}: only \"auto\" and \"none\" are supported");
            return Err(ApiError::unsupported("tool_choice", message));
        }
    }
    Ok(tools.filter(|tools| !tools.is_empty()).map(|tools| json!(tools)))
}

/// Values for the template: `chat_template_kwargs`, and `enable_thinking` by itself as other servers take it.
fn template_kwargs(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs: Map<String, Value> =
        fields.tree("chat_template_kwargs", "an object")?.unwrap_or_default();
    if let Some(thinking) = fields.flag("enable_thinking")? {
        kwargs.insert("enable_thinking".to_owned(), thinking.into());
    }
    Ok(kwargs)
}

/// OpenAI's chat objects.
pub(super) struct ChatShape {
    pub(super) model: Arc<Model>,
    pub(super) scored: bool,
}

impl ChatShape {
    fn logprobs(&self, piece: &Piece) -> Value {
        if self.scored { logprobs::chat(&self.model.tokenizer, &piece.scored) } else { Value::Null }
    }
}

impl Shape for ChatShape {
    fn whole(&self, index: usize, piece: &Piece, reason: FinishReason) -> Value {
        json!({
            "index": index,
            "message": {"role": "assistant", "content": piece.text, "refusal": null},
            "logprobs": self.logprobs(piece),
            "finish_reason": finish_reason(reason),
        })
    }

    fn begin(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        Some(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null}))
    }

    fn piece(&self, index: usize, piece: &Piece) -> Value {
        json!({
            "index": index,
            "delta": {"content": piece.text},
            "logprobs": self.logprobs(piece),
            "finish_reason": null,
        })
    }

    fn end(&self, index: usize, reason: FinishReason) -> Value {
        json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": finish_reason(reason)})
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn what_no_repetition_mends_is_a_400_and_a_thread_that_is_missing_is_a_500() {
        let refused = TemplateError::Refused { line: 3, message: "no".to_owned() };
        let endless = TemplateError::Endless { limit: std::time::Duration::from_secs(5) };
        for error in [refused, endless, TemplateError::NoTemplate] {
            assert_eq!(rendering_error(&error), ApiError::template(error.to_string()));
            assert_eq!(rendering_error(&error).status, StatusCode::BAD_REQUEST);
        }
        let ours = TemplateError::NoThread("out of memory".to_owned());
        assert_eq!(rendering_error(&ours).status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
