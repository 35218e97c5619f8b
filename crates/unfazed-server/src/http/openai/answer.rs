//! A request from its arrival to its response.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use serde_json::Value;
use unfazed_wire::{FinishReason, Submit};

use super::super::error::ApiError;
use super::super::random_id::RandomId;
use super::super::router::{App, AppState};
use super::super::sse;
use super::super::streams::resume::{self, Keep};
use super::admission::{Admission, Endpoint, now_ms};
use super::choice::Script;
use super::forms::{Chunks, Whole};
use super::making::Making;
use super::prepare;
use super::response::Head;
use super::settings::Settings;
use crate::answer::Piece;
use crate::handover::{Pass, Relayed, Successor};
use crate::journal::Tape;
use crate::supervisor::Sequence;

/// How long a new answer is held back until it is safe in the journal.
const STORE: Duration = Duration::from_secs(10);

/// How an endpoint writes its choices.
pub(crate) trait Shape: Send + Sync {
    /// A whole choice.
    fn whole(&self, index: usize, piece: &Piece, reason: FinishReason) -> Value;
    /// The first chunk of a choice, if it is more than its first piece.
    fn begin(&self, index: usize) -> Option<Value>;
    /// A chunk with a piece.
    fn piece(&self, index: usize, piece: &Piece) -> Value;
    /// The last chunk of a choice.
    fn end(&self, index: usize, reason: FinishReason) -> Value;
}

/// A request that may be handed to the engine.
pub(crate) struct Prepared {
    pub(crate) settings: Settings,
    /// One for each choice.
    pub(crate) sequences: Vec<(Submit, Script)>,
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Log probabilities are asked for.
    pub(crate) scored: bool,
}

/// Answers a request: prepares it, hands it to the engine and sends what comes.
pub(crate) async fn answer(
    app: &App,
    request: Request,
    prepare: impl FnOnce(&AppState, &[u8]) -> Result<Prepared, ApiError> + Send + 'static,
    endpoint: Endpoint,
) -> Result<Response, ApiError> {
    let arrived_ms = now_ms();
    let keep = Keep::wanted(&request)?;
    let prepared = prepare::receive(app, request, prepare).await?;
    let Prepared { settings, sequences, prompt_tokens, scored } = prepared;
    let stream = settings.stream;
    resume::check(keep, stream)?;
    let admission = Admission {
        endpoint,
        head: Head::new(endpoint, stream, &app.model)?,
        stream,
        include_usage: settings.include_usage,
        keep,
        scored,
        prompt_tokens,
        arrived_ms,
        model: app.model.identity,
        sequences,
    };
    if stream { streamed(app, admission).await } else { whole(app, admission).await }
}

async fn streamed(app: &App, admission: Admission) -> Result<Response, ApiError> {
    let id = RandomId::new()?;
    let stored = match app.passage.enter().await {
        Pass::Here(_here) => {
            let opened = app.streams.open(id, admission.keep)?;
            let mut making = Making::new(app, &admission, chunks(app, &admission));
            making.follow(submit(app, &admission)?);
            let (tape, stored) = begin(app, id, &admission);
            tokio::spawn(opened.maker.run(tape, Arc::clone(&app.passage), making.steps()));
            (opened.reader, stored)
        }
        Pass::There(successor) => {
            let opened = app.streams.open(id, admission.keep)?;
            tokio::spawn(opened.maker.relay(successor.adopt(id.number(), json(&admission))));
            (opened.reader, Box::pin(std::future::ready(Ok(()))) as _)
        }
    };
    let (reader, stored) = stored;
    match tokio::time::timeout(STORE, stored).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!("an answer is not in the journal and does not outlive this server: {error}");
        }
        Err(_) => {
            tracing::error!("the journal's disk takes long: an answer goes out before it is safe there")
        }
    }
    Ok(sse::answer(reader, app.keep_alive))
}

async fn whole(app: &App, admission: Admission) -> Result<Response, ApiError> {
    let id = RandomId::new()?;
    let begun = match app.passage.enter().await {
        Pass::Here(_here) => {
            let mut making = Making::new(app, &admission, gathered(app, &admission));
            making.follow(submit(app, &admission)?);
            Ok((making, begin(app, id, &admission).0))
        }
        Pass::There(successor) => Err(successor.adopt(id.number(), json(&admission))),
    };
    let mut followed = match begun {
        Ok((making, tape)) => match make_whole(app, making, &tape).await {
            Ok(answered) => return answered.map(respond),
            Err(successor) => successor.follow(id.number()),
        },
        Err(followed) => followed,
    };
    match followed.next().await {
        Some(Relayed::Whole(answered)) => Ok(answered.into_response()),
        Some(Relayed::Text(_) | Relayed::End) | None => {
            Err(ApiError::internal("the process that had taken this request over is gone"))
        }
    }
}

/// Makes a whole answer, unless another process does before it is whole.
pub(crate) async fn make_whole(
    app: &AppState,
    mut making: Making<Whole>,
    tape: &Tape,
) -> Result<Result<String, ApiError>, Arc<Successor>> {
    loop {
        let step = tokio::select! {
            step = making.step() => step,
            successor = app.passage.moved() => return Err(successor),
        };
        let Some(mut step) = step else {
            return Ok(Err(ApiError::internal("an answer ended without its last word")));
        };
        match app.passage.enter().await {
            Pass::There(successor) => return Err(successor),
            Pass::Here(_here) => {
                if let Some(entry) = step.entry.take() {
                    tape.record(entry, false).await;
                }
            }
        }
        if let Some(body) = step.texts.pop() {
            return Ok(making.form().error.clone().map_or(Ok(body), Err));
        }
    }
}

fn respond(body: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

pub(crate) fn chunks(app: &AppState, admission: &Admission) -> Chunks {
    let shape = admission.endpoint.shape(Arc::clone(&app.model), admission.scored);
    Chunks::new(admission, shape)
}

pub(crate) fn gathered(app: &AppState, admission: &Admission) -> Whole {
    let shape = admission.endpoint.shape(Arc::clone(&app.model), admission.scored);
    Whole::new(admission, shape)
}

fn submit(app: &AppState, admission: &Admission) -> Result<Vec<Sequence>, ApiError> {
    let submits = admission.sequences.iter().map(|(submit, _)| submit.clone());
    Ok(app.engine.submit(submits.collect())?)
}

fn begin(
    app: &AppState,
    id: RandomId,
    admission: &Admission,
) -> (Tape, BoxFuture<'static, Result<(), String>>) {
    app.tapes.begin(id.number(), json(admission), admission.keep.is_some())
}

fn json(admission: &Admission) -> Vec<u8> {
    // Numbers, strings, lists and maps with string keys: nothing that JSON refuses.
    serde_json::to_vec(admission).unwrap_or_default()
}
