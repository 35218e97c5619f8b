//! One sequence's tokens as visible text and log probabilities.

use std::collections::VecDeque;
use std::ops::Range;

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
    /// Where in the decoded text stop strings are looked for and nothing is shown: texts of special tokens.
    hidden: VecDeque<Range<usize>>,
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
            hidden: VecDeque::new(),
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

    /// Adds a token whose text is not shown. Stop strings are found in it all the same.
    pub(crate) fn push_hidden(&mut self, token: u32, logprobs: Option<TokenLogprobs>) -> Piece {
        // What was kept back of a character is no part of this token.
        let mut text = self.detokenizer.finish();
        self.take(&text);
        let (start, offset) = (self.decoded, self.characters);
        let own = self.detokenizer.push(token);
        self.decoded += own.len();
        self.hidden.push_back(start..self.decoded);
        self.score(start, offset, logprobs);
        text += &own;
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
        let end = self.shown + text.len();
        let text = self.without_hidden(text);
        self.shown = end;
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

    /// Text that follows what was shown, without what is hidden.
    fn without_hidden(&mut self, text: String) -> String {
        let (from, to) = (self.shown, self.shown + text.len());
        let (mut visible, mut at) = (String::new(), from);
        while let Some(hidden) = self.hidden.front().filter(|hidden| hidden.start < to) {
            // Hidden texts are whole tokens: they begin and end between characters. So does what a stop string ends.
            visible += text.get(at - from..hidden.start.max(at) - from).unwrap_or_default();
            at = hidden.end.min(to);
            if hidden.end > to {
                break;
            }
            self.hidden.pop_front();
        }
        if at == from { text } else { visible + text.get(at - from..).unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unfazed_formats::TokenizerSource;
    use unfazed_formats::checkpoint::GgufTokenizer;
    use unfazed_tokenizer::Tokenizer;

    use super::*;

    /// Tokens 3 and up are the bytes 0 and up.
    const FIRST_BYTE: u32 = 3;

    fn bytes_only() -> Tokenizer {
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let types = (0..tokens.len()).map(|token| [2, 3, 3].get(token).copied().unwrap_or(6)).collect();
        let source = GgufTokenizer {
            file: "bytes.gguf".to_owned(),
            model: "llama".to_owned(),
            scores: vec![0.0; tokens.len()],
            types,
            tokens,
            unknown: Some(0),
            bos: Some(1),
            eos: Some(2),
            ..GgufTokenizer::default()
        };
        Tokenizer::new(&TokenizerSource::Gguf(source), 259).unwrap()
    }

    fn shown(tokenizer: &Tokenizer, text: &[u8], stops: &[String]) -> (Piece, bool) {
        let mut visible = Visible::new(tokenizer.continuing_detokenizer(), stops.to_vec(), 0);
        let mut all = Piece::default();
        let mut add = |piece: Piece| {
            all.text += &piece.text;
            all.scored.extend(piece.scored);
        };
        for byte in text {
            let token = FIRST_BYTE + u32::from(*byte);
            add(visible.push(token, Some(TokenLogprobs { token, logprob: -1.0, top: Vec::new() })));
        }
        add(visible.finish());
        (all, visible.stopped())
    }

    #[test]
    fn a_tokens_score_comes_with_its_text_and_goes_with_it() {
        let tokenizer = bytes_only();
        let (all, stopped) = shown(&tokenizer, "aébSTOPx".as_bytes(), &["STOP".to_owned()]);
        assert!(stopped);
        assert_eq!(all.text, "aéb");
        let offsets: Vec<usize> = all.scored.iter().map(|scored| scored.offset).collect();
        assert_eq!(offsets, [0, 1, 1, 2], "both bytes of a character begin where it does");
    }

    #[test]
    fn a_hidden_token_is_scored_and_not_shown_and_can_be_a_stop_string() {
        let tokenizer = bytes_only();
        let run = |stops: &[&str]| {
            let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
            let mut visible = Visible::new(tokenizer.continuing_detokenizer(), stops, 0);
            let (mut text, mut offsets) = (String::new(), Vec::new());
            let mut add = |piece: Piece| {
                text += &piece.text;
                offsets.extend(piece.scored.iter().map(|scored| (scored.token, scored.offset)));
            };
            let byte = |byte: u8| FIRST_BYTE + u32::from(byte);
            for token in [byte(b'a'), 2, byte(0xc3), 2, byte(b'b'), 1] {
                let logprobs = Some(TokenLogprobs { token, logprob: -1.0, top: Vec::new() });
                add(if token < FIRST_BYTE {
                    visible.push_hidden(token, logprobs)
                } else {
                    visible.push(token, logprobs)
                });
            }
            add(visible.finish());
            (text, offsets, visible.stopped())
        };
        let (a, c, b) = (FIRST_BYTE + 97, FIRST_BYTE + 0xc3, FIRST_BYTE + 98);
        let whole = vec![(a, 0), (2, 1), (c, 1), (2, 2), (b, 2), (1, 3)];
        for stops in [&[][..], &["x"], &["</s>c", "<s>x"]] {
            assert_eq!(run(stops), ("a\u{fffd}b".to_owned(), whole.clone(), false), "{stops:?}");
        }
        assert_eq!(run(&["</s>b"]), ("a\u{fffd}".to_owned(), whole[..3].to_vec(), true));
        assert_eq!(run(&["<s>"]), ("a\u{fffd}b".to_owned(), whole[..5].to_vec(), true));
        assert_eq!(run(&["/s>"]), ("a".to_owned(), whole[..2].to_vec(), true));
    }

    proptest! {
        #[test]
        fn what_is_shown_is_the_text_up_to_the_first_stop_string_however_it_is_cut_into_tokens(
            text in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(0xc3), Just(0xa9), Just(0xff)], 0..24),
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
        ) {
            let tokenizer = bytes_only();
            let whole = String::from_utf8_lossy(&text);
            let mut filter = StopStrings::new(stops.clone());
            let mut expected = filter.push(&whole);
            expected += &filter.finish();
            let (all, stopped) = shown(&tokenizer, &text, &stops);
            prop_assert_eq!(&all.text, &expected);
            prop_assert_eq!(stopped, filter.found());
            if !stopped {
                prop_assert_eq!(all.scored.len(), text.len());
            }
            prop_assert!(all.scored.iter().all(|scored| scored.offset <= expected.chars().count()));
        }
    }
}
