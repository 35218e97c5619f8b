//! All choices of a request as one body, or as the chunks of a stream.

use serde::Serialize;
use serde_json::Value;
use unfazed_wire::{FinishReason, Timings};

use super::super::error::ApiError;
use super::admission::Admission;
use super::answer::Shape;
use super::choice::News;
use super::response::{Head, TimingsBlock, Totals, Usage};
use crate::answer::Piece;

/// What choices' news are written as.
pub(crate) trait Form: Send {
    /// News of a choice. Texts: events of a stream; the body once it is whole.
    fn write(&mut self, index: usize, news: News) -> Vec<String>;
    /// One choice's error, which is the whole answer's.
    fn fail(&mut self, error: ApiError) -> Vec<String>;
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

fn text(body: &Body<'_>) -> String {
    // Strings, numbers and maps with string keys: nothing that JSON refuses.
    serde_json::to_string(body)
        .unwrap_or_else(|error| ApiError::internal(error.to_string()).body().to_string())
}

/// Writes chunks.
pub(crate) struct Chunks {
    shape: Box<dyn Shape>,
    head: Head,
    totals: Totals,
    include_usage: bool,
    /// Which choices have begun.
    begun: Vec<bool>,
    /// Choices that have not ended.
    left: usize,
}

impl Chunks {
    pub(crate) fn new(admission: &Admission, shape: Box<dyn Shape>) -> Chunks {
        let choices = admission.sequences.len();
        Chunks {
            shape,
            head: admission.head.clone(),
            totals: Totals::new(admission.prompt_tokens),
            include_usage: admission.include_usage,
            begun: vec![false; choices],
            left: choices,
        }
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

impl Form for Chunks {
    fn write(&mut self, index: usize, news: News) -> Vec<String> {
        let mut texts = Vec::new();
        if let Some(begun) = self.begun.get_mut(index).filter(|begun| !**begun) {
            *begun = true;
            texts.extend(self.shape.begin(index).map(|choice| self.chunk(vec![choice], None)));
        }
        match news {
            News::Piece(piece) => texts.push(self.chunk(vec![self.shape.piece(index, &piece)], None)),
            News::End(reason, timings) => {
                self.totals.add(&timings);
                self.left = self.left.saturating_sub(1);
                let last = self.left == 0;
                let timings = Some(self.totals.timings()).filter(|_| last && !self.include_usage);
                texts.push(self.chunk(vec![self.shape.end(index, reason)], timings));
                if last && self.include_usage {
                    texts.push(self.usage_chunk());
                }
            }
        }
        texts
    }

    fn fail(&mut self, error: ApiError) -> Vec<String> {
        vec![error.body().to_string()]
    }
}

/// Gathers one body.
pub(crate) struct Whole {
    shape: Box<dyn Shape>,
    head: Head,
    prompt_tokens: usize,
    choices: Vec<(Piece, Option<(FinishReason, Timings)>)>,
    /// Why there is none.
    pub(crate) error: Option<ApiError>,
}

impl Whole {
    pub(crate) fn new(admission: &Admission, shape: Box<dyn Shape>) -> Whole {
        Whole {
            shape,
            head: admission.head.clone(),
            prompt_tokens: admission.prompt_tokens,
            choices: admission.sequences.iter().map(|_| (Piece::default(), None)).collect(),
            error: None,
        }
    }

    /// The body, once all choices have ended.
    fn body(&self) -> Option<String> {
        let mut totals = Totals::new(self.prompt_tokens);
        let mut choices = Vec::with_capacity(self.choices.len());
        for (index, (piece, end)) in self.choices.iter().enumerate() {
            let (reason, timings) = end.as_ref()?;
            totals.add(timings);
            choices.push(self.shape.whole(index, piece, *reason));
        }
        let (usage, timings) = (Some(Some(totals.usage())), Some(totals.timings()));
        Some(text(&Body { head: &self.head, choices, usage, timings }))
    }
}

impl Form for Whole {
    fn write(&mut self, index: usize, news: News) -> Vec<String> {
        let Some((all, end)) = self.choices.get_mut(index) else { return Vec::new() };
        match news {
            News::Piece(piece) => {
                all.text += &piece.text;
                all.scored.extend(piece.scored);
                return Vec::new();
            }
            News::End(reason, timings) => *end = Some((reason, timings)),
        }
        self.body().into_iter().collect()
    }

    fn fail(&mut self, error: ApiError) -> Vec<String> {
        let body = error.body().to_string();
        self.error = Some(error);
        vec![body]
    }
}
