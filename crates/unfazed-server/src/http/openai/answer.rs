//! All choices of a request, as one body or as a stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, BoxStream, SelectAll, select_all};
use futures::{Stream, StreamExt, future};
use serde::Serialize;
use serde_json::Value;
use unfazed_wire::{FinishReason, Submit};

use super::super::error::ApiError;
use super::super::router::{App, AppState};
use super::super::sse;
use super::super::streams::Opened;
use super::super::streams::resume::{self, Keep};
use super::choice::{Choice, News, Script};
use super::prepare;
use super::response::{Head, TimingsBlock, Totals, Usage};
use super::settings::Settings;
use crate::answer::Piece;
use crate::model::Model;

/// How an endpoint writes its choices.
pub(crate) trait Shape: Send + Sync + 'static {
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

/// How an endpoint names its answers.
pub(crate) struct Names {
    /// What ids begin with.
    pub(crate) id: &'static str,
    /// The object that a whole answer is.
    pub(crate) whole: &'static str,
    /// The object that a chunk of a stream is.
    pub(crate) chunk: &'static str,
}

/// Answers a request: prepares it, hands it to the engine and sends what comes. `shape` gets the model, and whether log
/// probabilities are asked for.
pub(crate) async fn answer<S: Shape>(
    app: &App,
    request: Request,
    prepare: impl FnOnce(&AppState, &[u8]) -> Result<Prepared, ApiError> + Send + 'static,
    names: Names,
    shape: impl FnOnce(Arc<Model>, bool) -> S,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let keep = Keep::wanted(&request)?;
    let prepared = prepare::receive(app, request, prepare).await?;
    let Prepared { settings, sequences, prompt_tokens, scored } = prepared;
    let stream = resume::open(&app.streams, keep, settings.stream)?;
    let object = if settings.stream { names.chunk } else { names.whole };
    let head = Head::new(names.id, object, &app.model)?;
    let (submits, scripts): (Vec<_>, Vec<_>) = sequences.into_iter().unzip();
    let sequences = app.engine.submit(submits)?;
    let choices = scripts
        .into_iter()
        .zip(sequences)
        .map(|(script, sequence)| Choice::new(script, sequence, arrived, Arc::clone(&app.metrics)));
    let shape = shape(Arc::clone(&app.model), scored);
    let answer = Answer { shape, head, choices: choices.collect(), prompt_tokens };
    match stream {
        Some(stream) => Ok(answer.stream(settings.include_usage, stream, app.keep_alive)),
        None => answer.whole().await,
    }
}

/// An answer that is being made.
struct Answer<S> {
    shape: S,
    head: Head,
    choices: Vec<Choice>,
    prompt_tokens: usize,
}

/// A body, or a chunk of a stream.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Value>,
    /// Left out, `null` in chunks before the last one where usage was asked for, or there.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<TimingsBlock>,
}

impl<S: Shape> Answer<S> {
    /// Waits for all choices.
    async fn whole(self) -> Result<Response, ApiError> {
        let shape = &self.shape;
        let choices = self.choices.into_iter().map(|choice| async move {
            let (index, mut all) = (choice.index, Piece::default());
            let mut news = std::pin::pin!(choice.news());
            while let Some((_, news)) = news.next().await {
                match news? {
                    News::Piece(piece) => {
                        all.text += &piece.text;
                        all.scored.extend(piece.scored);
                    }
                    News::End(reason, timings) => return Ok((shape.whole(index, &all, reason), timings)),
                }
            }
            Err(ApiError::internal("an answer ended without its last word"))
        });
        let ended = future::try_join_all(choices).await?;
        let mut totals = Totals::new(self.prompt_tokens);
        let mut choices = Vec::with_capacity(ended.len());
        for (choice, timings) in ended {
            totals.add(&timings);
            choices.push(choice);
        }
        let (usage, timings) = (Some(Some(totals.usage())), Some(totals.timings()));
        Ok(Json(Body { head: &self.head, choices, usage, timings }).into_response())
    }

    /// Streams all choices as their tokens come.
    fn stream(self, include_usage: bool, stream: Opened, keep_alive: Duration) -> Response {
        let begun = vec![false; self.choices.len()];
        let writer = Writer {
            left: self.choices.len(),
            shape: self.shape,
            head: self.head,
            totals: Totals::new(self.prompt_tokens),
            include_usage,
            begun,
        };
        let news = select_all(self.choices.into_iter().map(|choice| choice.news().boxed()));
        tokio::spawn(stream.maker.run(chunks(writer, news)));
        sse::answer(stream.reader, keep_alive)
    }
}

type AllNews = SelectAll<BoxStream<'static, (usize, Result<News, ApiError>)>>;

fn chunks<S: Shape>(writer: Writer<S>, news: AllNews) -> impl Stream<Item = String> + Send {
    let steps = stream::unfold(Some((writer, news)), |state| async move {
        let (mut writer, mut news) = state?;
        let (index, item) = news.next().await?;
        Some(match item {
            Ok(item) => (writer.write(index, &item), Some((writer, news))),
            // One choice's error is the whole answer's, as without a stream. The others are left.
            Err(error) => (vec![error.body().to_string()], None),
        })
    });
    steps.flat_map(stream::iter)
}

/// Writes chunks.
struct Writer<S> {
    shape: S,
    head: Head,
    totals: Totals,
    include_usage: bool,
    /// Which choices have begun.
    begun: Vec<bool>,
    /// Choices that have not ended.
    left: usize,
}

impl<S: Shape> Writer<S> {
    fn write(&mut self, index: usize, news: &News) -> Vec<String> {
        let mut texts = Vec::new();
        if let Some(begun) = self.begun.get_mut(index).filter(|begun| !**begun) {
            *begun = true;
            texts.extend(self.shape.begin(index).map(|choice| self.chunk(vec![choice], None)));
        }
        match news {
            News::Piece(piece) => texts.push(self.chunk(vec![self.shape.piece(index, piece)], None)),
            News::End(reason, timings) => {
                self.totals.add(timings);
                self.left = self.left.saturating_sub(1);
                let last = self.left == 0;
                let timings = Some(self.totals.timings()).filter(|_| last && !self.include_usage);
                texts.push(self.chunk(vec![self.shape.end(index, *reason)], timings));
                if last && self.include_usage {
                    texts.push(self.usage_chunk());
                }
            }
        }
        texts
    }

    fn chunk(&self, choices: Vec<Value>, timings: Option<TimingsBlock>) -> String {
        let usage = self.include_usage.then_some(None);
        text(&Body { head: &self.head, choices, usage, timings })
    }

    fn usage_chunk(&self) -> String {
        let (usage, timings) = (Some(Some(self.totals.usage())), Some(self.totals.timings()));
        text(&Body { head: &self.head, choices: Vec::new(), usage, timings })
    }
}

fn text(body: &Body<'_>) -> String {
    // Strings, numbers and maps with string keys: nothing that JSON refuses.
    serde_json::to_string(body)
        .unwrap_or_else(|error| ApiError::internal(error.to_string()).body().to_string())
}
