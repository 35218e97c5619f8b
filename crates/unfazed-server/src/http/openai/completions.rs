//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use unfazed_tokenizer::SpecialText;
use unfazed_wire::{FinishReason, Submit};

use super::super::error::ApiError;
use super::super::router::{App, AppState};
use super::admission::Endpoint;
use super::answer::{self, Prepared, Shape};
use super::choice::{Echo, Script};
use super::fields::Fields;
use super::logprobs;
use super::prepare::{self, Wanted};
use super::prompts::{self, Prompt, Prompts};
use super::response::finish_reason;
use super::settings::{MAX_TOP_LOGPROBS, Settings};
use crate::answer::Piece;
use crate::model::Model;

/// `max_tokens` where the request does not say: OpenAI's.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Handles the request.
pub(crate) async fn post(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    answer::answer(&app, request, prepare, Endpoint::Completions).await
}

/// Makes sequences of a body.
fn prepare(app: &AppState, body: &[u8]) -> Result<Prepared, ApiError> {
    let model = &app.model;
    let Parsed { settings, logprobs, echo, prompts } = Parsed::read(body, model.vocab)?;
    prepare::sequences(app, prompts.len(), settings.choices)?;
    let maker = Maker::new(model, &settings, echo, logprobs);
    let (mut sequences, mut prompt_tokens) = (Vec::new(), 0);
    for prompt in prompts {
        let prompt = Tokens::new(model, prompt)?;
        prompt_tokens += prompt.tokens.len();
        for choice in 0..settings.choices {
            sequences.push(maker.sequence(sequences.len(), choice, &prompt)?);
        }
    }
    prepare::check_logprobs(settings.stream, sequences.iter().map(|(submit, _)| submit))?;
    Ok(Prepared { settings, sequences, prompt_tokens, scored: logprobs.is_some() })
}

/// What a request's body says.
pub(super) struct Parsed {
    settings: Settings,
    logprobs: Option<u32>,
    echo: bool,
    prompts: Vec<Prompt>,
}

impl Parsed {
    /// Reads and checks a body for a model whose token ids are below `vocab`.
    pub(super) fn read(body: &[u8], vocab: usize) -> Result<Parsed, ApiError> {
        let fields = Fields::parse(body)?;
        let settings = Settings::read(&fields, vocab)?;
        refuse_unsupported(&fields)?;
        let logprobs = fields.integer("logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|top| top as u32);
        let echo = fields.flag("echo")?.unwrap_or(false);
        let prompts: Option<Prompts> = fields.large("prompt", prompts::EXPECTED)?;
        let missing = || format!("prompt is missing: {} is expected", prompts::EXPECTED);
        let Prompts(prompts) = prompts.ok_or_else(|| ApiError::field("prompt", missing()))?;
        Ok(Parsed { settings, logprobs, echo, prompts })
    }
}

/// Fields whose answers would be wrong if they were ignored.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ApiError> {
    let suffix: Option<String> = fields.get("suffix", "a string")?;
    if suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "suffix is not supported"));
    }
    match fields.integer("best_of", 0..=u64::MAX)? {
        None | Some(1) => Ok(()),
        Some(best_of) => {
            let message = format!("best_of is {best_of}: only 1 is supported (n gives several choices)");
            Err(ApiError::unsupported("best_of", message))
        }
    }
}

/// A prompt's tokens, and its text where the client sent text.
struct Tokens {
    tokens: Vec<u32>,
    text: Option<String>,
    /// The first token is a BOS that is not in the text.
    bos_added: bool,
}

impl Tokens {
    fn new(model: &Model, prompt: Prompt) -> Result<Tokens, ApiError> {
        let tokenizer = &model.tokenizer;
        let text = match prompt {
            Prompt::Tokens(tokens) => return Ok(Tokens { tokens, text: None, bos_added: false }),
            Prompt::Text(text) => text,
        };
        prepare::check_bytes(model, "prompt", text.len())?;
        let encode = |bos| tokenizer.encode(&text, SpecialText::Parse, bos);
        let mut tokens = encode(true).map_err(|error| prepare::encoding_error("prompt", &error))?;
        let mut bos_added = tokens.first().is_some_and(|first| Some(*first) == tokenizer.bos())
            && !text.starts_with(tokenizer.bos_text());
        if let (true, Some(bos)) = (tokens.is_empty(), tokenizer.bos().or(tokenizer.eos())) {
            // Of an empty prompt the model predicts a text's beginning, as OpenAI's API does.
            tokens.push(bos);
            bos_added = true;
        }
        Ok(Tokens { tokens, text: Some(text), bos_added })
    }

    /// The prompt as it is shown: a client's own text as it was sent.
    fn echo(&self, model: &Model, scored: bool) -> Echo {
        let mut detokenizer = model.tokenizer.detokenizer();
        let (mut text, mut characters) = (String::new(), 0);
        let mut tokens = Vec::with_capacity(self.tokens.len());
        for (at, &token) in self.tokens.iter().enumerate() {
            tokens.push((token, characters));
            if at == 0 && self.bos_added {
                continue;
            }
            let piece = detokenizer.push(token);
            characters += piece.chars().count();
            text += &piece;
        }
        text += &detokenizer.finish();
        Echo { text: self.text.clone().unwrap_or(text), tokens, scored }
    }
}

/// Makes a prompt's sequences.
struct Maker<'a> {
    model: &'a Arc<Model>,
    settings: &'a Settings,
    wanted: Wanted,
    echo: bool,
    scored_ends: Vec<u32>,
}

impl<'a> Maker<'a> {
    fn new(model: &'a Arc<Model>, settings: &'a Settings, echo: bool, logprobs: Option<u32>) -> Maker<'a> {
        let ends = if settings.ignore_eos { Vec::new() } else { model.tokenizer.end_tokens().to_vec() };
        // Evaluation harnesses echo with one token more than they need and drop its entry, so there must be one, even
        // if the token ends the text.
        let (stop_tokens, scored_ends) =
            if echo && logprobs.is_some() { (Vec::new(), ends) } else { (ends, Vec::new()) };
        let wanted = Wanted {
            default_max_tokens: DEFAULT_MAX_TOKENS,
            logprobs,
            prompt_logprobs: logprobs.filter(|_| echo),
            stop_tokens,
        };
        Maker { model, settings, wanted, echo, scored_ends }
    }

    fn sequence(&self, index: usize, choice: usize, prompt: &Tokens) -> Result<(Submit, Script), ApiError> {
        let submit =
            prepare::submit(self.model, "prompt", &prompt.tokens, choice, self.settings, &self.wanted)?;
        let script = Script {
            index,
            prompt_tokens: prompt.tokens.len(),
            stops: self.settings.stops.clone(),
            echo: self.echo.then(|| prompt.echo(self.model, self.wanted.logprobs.is_some())),
            scored_ends: self.scored_ends.clone(),
        };
        Ok((submit, script))
    }
}

/// OpenAI's completion objects.
pub(super) struct CompletionShape {
    pub(super) model: Arc<Model>,
    pub(super) scored: bool,
}

impl CompletionShape {
    fn choice(&self, index: usize, piece: &Piece, reason: Option<FinishReason>) -> Value {
        let logprobs = if self.scored {
            logprobs::completion(&self.model.tokenizer, &piece.scored)
        } else {
            Value::Null
        };
        json!({
            "index": index,
            "text": piece.text,
            "logprobs": logprobs,
            "finish_reason": reason.map(finish_reason),
        })
    }
}

impl Shape for CompletionShape {
    fn whole(&self, index: usize, piece: &Piece, reason: FinishReason) -> Value {
        self.choice(index, piece, Some(reason))
    }

    fn begin(&self, _index: usize) -> Option<Value> {
        None
    }

    fn piece(&self, index: usize, piece: &Piece) -> Value {
        self.choice(index, piece, None)
    }

    fn end(&self, index: usize, reason: FinishReason) -> Value {
        json!({"index": index, "text": "", "logprobs": null, "finish_reason": finish_reason(reason)})
    }
}
