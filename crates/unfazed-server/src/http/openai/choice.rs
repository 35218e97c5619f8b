//! One sequence from its first token to its end, as its client sees it: a function of what the engine tells.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use unfazed_tokenizer::Detokenizer;
use unfazed_wire::{FinishReason, Timings, TokenEvent, TokenLogprobs};

use super::super::error::ApiError;
use super::super::metrics::Metrics;
use crate::answer::{Piece, Scored, Visible};
use crate::model::Model;
use crate::supervisor::Update;

/// What a choice is made of beside its sequence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Script {
    pub(crate) index: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) stops: Vec<String>,
    /// The prompt is shown in front of the answer.
    pub(crate) echo: Option<Echo>,
    /// Tokens that end the answer and are scored like any other: looked for here, as the engine tells nothing of those
    /// that it ends an answer at.
    pub(crate) scored_ends: Vec<u32>,
}

/// A prompt to be shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Echo {
    pub(crate) text: String,
    /// Its tokens with the characters before each; scored if log probabilities come.
    pub(crate) tokens: Vec<(u32, usize)>,
    /// Log probabilities are asked for.
    pub(crate) scored: bool,
}

/// News of a choice. `End` is the last.
#[derive(Debug)]
pub(crate) enum News {
    Piece(Piece),
    End(FinishReason, Timings),
}

/// A choice that is being made.
pub(crate) struct Choice {
    /// Knows the special tokens, whose text is not shown.
    model: Arc<Model>,
    visible: Visible,
    echo: Option<Echo>,
    prompt_scores: Vec<TokenLogprobs>,
    scored_ends: Vec<u32>,
    ready: VecDeque<News>,
    ended: bool,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// The front's own times, for answers that end here and not in the engine, or that several engines made.
struct Clock {
    arrived: Instant,
    first_token: Option<Instant>,
    /// The last engine knows its own part only.
    resumed: bool,
    prompt_tokens: usize,
    tokens: usize,
}

impl Choice {
    /// `arrived` is when the request did.
    pub(crate) fn new(
        script: Script,
        detokenizer: Detokenizer,
        model: Arc<Model>,
        arrived: Instant,
        metrics: Arc<Metrics>,
    ) -> Choice {
        let offset = script.echo.as_ref().map_or(0, |echo| echo.text.chars().count());
        Choice {
            model,
            visible: Visible::new(detokenizer, script.stops, offset),
            echo: script.echo,
            prompt_scores: Vec::new(),
            scored_ends: script.scored_ends,
            ready: VecDeque::new(),
            ended: false,
            clock: Clock {
                arrived,
                first_token: None,
                resumed: false,
                prompt_tokens: script.prompt_tokens,
                tokens: 0,
            },
            metrics,
        }
    }

    /// It has ended: what its engine tells of it further is of no use.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Takes what its engine told. An error ends it.
    pub(crate) fn take(&mut self, update: Update) -> Result<(), ApiError> {
        match update {
            _ if self.ended => {}
            Update::PromptLogprobs(tokens) => self.prompt_scores.extend(tokens),
            Update::Token(token) => {
                self.show_echo()?;
                self.take_token(token);
            }
            Update::Resumed => self.clock.resumed = true,
            Update::Finished(reason, timings) => {
                self.show_echo()?;
                self.metrics.queued(timings.queue_ms);
                let rest = self.visible.finish();
                let reason = if self.visible.stopped() { FinishReason::Stop } else { reason };
                self.show(rest);
                self.end(reason, self.clock.whole(timings));
            }
            Update::Failed(failure) => return Err(failure.into()),
            Update::Interrupted(interruption) => return Err(interruption.into()),
        }
        Ok(())
    }

    /// What is to be shown of it, in order.
    pub(crate) fn news(&mut self) -> Option<News> {
        self.ready.pop_front()
    }

    fn take_token(&mut self, event: TokenEvent) {
        self.clock.tokens += 1;
        self.metrics.generated_token();
        if self.clock.first_token.is_none() {
            self.clock.first_token = Some(Instant::now());
            self.metrics.first_token(self.clock.arrived.elapsed());
        }
        let ends = self.scored_ends.contains(&event.token);
        if ends {
            self.visible.push_end(event.logprobs);
            let rest = self.visible.finish();
            self.show(rest);
        } else {
            let special = self.model.tokenizer.is_special(event.token);
            let piece = if special {
                self.visible.push_hidden(event.token, event.logprobs)
            } else {
                self.visible.push(event.token, event.logprobs)
            };
            self.show(piece);
        }
        if ends || self.visible.stopped() {
            self.end(FinishReason::Stop, self.clock.timings());
        }
    }

    fn show(&mut self, piece: Piece) {
        if !piece.is_empty() {
            self.ready.push_back(News::Piece(piece));
        }
    }

    fn end(&mut self, reason: FinishReason, timings: Timings) {
        self.metrics.finished(&timings);
        self.ready.push_back(News::End(reason, timings));
        self.ended = true;
    }

    /// Shows the prompt, once, as soon as it was computed.
    fn show_echo(&mut self) -> Result<(), ApiError> {
        let Some(echo) = self.echo.take() else { return Ok(()) };
        let mut scored = Vec::new();
        if echo.scored {
            let scores = std::mem::take(&mut self.prompt_scores);
            let same = scores.iter().map(|score| score.token).eq(echo
                .tokens
                .iter()
                .skip(1)
                .map(|(token, _)| *token));
            if !same {
                return Err(ApiError::internal("the engine's log probabilities are not those of the prompt"));
            }
            let mut tokens = echo.tokens.into_iter();
            let first =
                tokens.next().map(|(token, offset)| Scored { token, logprob: None, top: Vec::new(), offset });
            scored.extend(first);
            scored.extend(tokens.zip(scores).map(|((token, offset), score)| Scored {
                token,
                logprob: Some(score.logprob),
                top: score.top,
                offset,
            }));
        }
        self.show(Piece { text: echo.text, scored });
        Ok(())
    }
}

impl Clock {
    /// The engine's counts and times; of an answer that several engines made, the whole times.
    fn whole(&self, timings: Timings) -> Timings {
        if !self.resumed {
            return timings;
        }
        let Timings { prompt_ms, predicted_ms, .. } = self.timings();
        Timings { prompt_ms, predicted_ms, ..timings }
    }

    fn timings(&self) -> Timings {
        let first = self.first_token.unwrap_or_else(Instant::now);
        Timings {
            queue_ms: 0.0,
            cached_tokens: 0,
            prompt_tokens: self.prompt_tokens,
            prompt_ms: (first - self.arrived).as_secs_f64() * 1e3,
            predicted_tokens: self.tokens,
            predicted_ms: first.elapsed().as_secs_f64() * 1e3,
        }
    }
}
