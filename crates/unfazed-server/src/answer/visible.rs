//! One sequence's tokens as visible text and log probabilities.

use std::collections::VecDeque;

use unfazed_tokenizer::Detokenizer;
use unfazed_wire::TokenLogprobs;

use super::StopStrings;

/// What may be shown now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Tokens whose text is shown, in order; empty unless log probabilities were asked for.
    pub(crate) scored: Vec<Scored>,
}

impl Piece {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.scored.is_empty()
    }
}

/// A shown token with its log probabilities.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) token: u32,
    /// `None` for the first token of a prompt, which nothing predicts.
    pub(crate) logprob: Option<f32>,
    /// The most likely tokens, best first.
    pub(crate) top: Vec<(u32, f32)>,
    /// Characters of the sequence's text before it.
    pub(crate) offset: usize,
}

/// Turns a sequence's tokens into pieces. A token's log probabilities are shown with its text, and not at all if a stop
/// string takes all of it.
pub(crate) struct Visible {
    detokenizer: Detokenizer,
    stops: StopStrings,
    /// Bytes of text decoded and shown so far.
    decoded: usize,
    shown: usize,
    /// Characters decoded so far, behind `offset` characters that came before this text.
    characters: usize,
    /// Tokens whose text is not all shown.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    start: usize,
    end: usize,
    scored: Scored,
}

impl Visible {
    /// `offset` is the number of characters in front of the text (an echoed prompt).
    pub(crate) fn new(detokenizer: Detokenizer, stops: Vec<String>, offset: usize) -> Visible {
        Visible {
            detokenizer,
            stops: StopStrings::new(stops),
            decoded: 0,
            shown: 0,
            characters: offset,
            waiting: VecDeque::new(),
        }
    }

    /// Adds a token.
    pub(crate) fn push(&mut self, token: u32, logprobs: Option<TokenLogprobs>) -> Piece {
        let text = self.detokenizer.push(token);
        let (start, offset) = (self.decoded, self.characters);
        self.take(&text);
        self.score(start, offset, logprobs);
        let text = self.stops.push(&text);
        self.release(text)
    }

    /// Adds a token that ends the text and is no part of it.
    pub(crate) fn push_end(&mut self, logprobs: Option<TokenLogprobs>) {
        self.score(self.decoded, self.characters, logprobs);
    }

    /// The sequence has ended: what was held back, unless a stop string was found.
    pub(crate) fn finish(&mut self) -> Piece {
        if self.stopped() {
            return Piece::default();
        }
        let rest = self.detokenizer.finish();
        self.take(&rest);
        let mut text = self.stops.push(&rest);
        if !self.stopped() {
            text += &self.stops.finish();
        }
        self.release(text)
    }

    /// A stop string was found: nothing more will be shown.
    pub(crate) fn stopped(&self) -> bool {
        self.stops.found()
    }

    fn take(&mut self, text: &str) {
        self.decoded += text.len();
        self.characters += text.chars().count();
    }

    fn score(&mut self, start: usize, offset: usize, logprobs: Option<TokenLogprobs>) {
        if let Some(logprobs) = logprobs {
            let TokenLogprobs { token, logprob, top } = logprobs;
            let scored = Scored { token, logprob: Some(logprob), top, offset };
            self.waiting.push_back(Waiting { start, end: self.decoded, scored });
        }
    }

    fn release(&mut self, text: String) -> Piece {
        self.shown += text.len();
        let (shown, stopped) = (self.shown, self.stopped());
        let mut scored = Vec::new();
        while let Some(first) = self.waiting.front() {
            let visible = if stopped { first.start < shown } else { first.end <= shown };
            if !visible {
                break;
            }
            scored.extend(self.waiting.pop_front().map(|waiting| waiting.scored));
        }
        if stopped {
            self.waiting.clear();
        }
        Piece { text, scored }
    }
}
