//! Borders between tokens in what was sent of an answer.
//!
//! A server tells of tokens with their texts, but not one by one: a character of several tokens comes with its last one, and
//! text that may begin a stop string comes when it turned out not to. What is known in the end is a list of spans of text,
//! each with how many tokens it has and with some of their ids.

use super::request::Told;

/// Most tokens of an answer that are remembered.
const MOST_TOKENS: u64 = 1 << 20;

/// Text between two borders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    /// Tokens that it has.
    pub(super) tokens: u64,
    /// Ids that were told, in order: of all of them, or of some.
    pub(super) ids: Vec<u64>,
}

impl Span {
    /// All ids are known.
    pub(super) fn is_known(&self) -> bool {
        self.ids.len() as u64 == self.tokens
    }

    /// Whether these may be its tokens.
    pub(super) fn fits(&self, ids: &[u64]) -> bool {
        ids.len() as u64 == self.tokens && self.ids.last().is_none_or(|last| ids.last() == Some(last))
    }
}

/// What was sent so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Borders {
    spans: Vec<Span>,
    /// Tokens whose text was not sent yet.
    open: Span,
    /// Tokens of all spans and the open one.
    tokens: u64,
    /// Tokens that were not computed by the process which computes now.
    before: u64,
    lost: bool,
}

impl Borders {
    /// A chunk came.
    pub(super) fn add(&mut self, told: Told) {
        let Told { text, id, computed } = told;
        let now = computed.map_or(self.tokens.saturating_add(1), |n| self.before.saturating_add(n));
        let more = now.saturating_sub(self.tokens);
        if text.is_empty() && more == 0 {
            // The end, which repeats what is known.
            return;
        }
        self.tokens = self.tokens.max(now);
        self.lost |= self.tokens > MOST_TOKENS;
        self.open.tokens = self.open.tokens.saturating_add(more);
        self.open.ids.extend(id.filter(|_| more > 0));
        if !text.is_empty() {
            let span = std::mem::take(&mut self.open);
            self.spans.push(Span { text, ..span });
        }
    }

    /// What was sent, if it is all known.
    pub(super) fn spans(&self) -> Option<&[Span]> {
        (!self.lost).then_some(self.spans.as_slice())
    }

    /// Tokens that were computed.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Another process goes on behind these tokens, of which `spans` spans consist; the rest comes again.
    pub(super) fn go_on(&mut self, ids: &[u64], spans: usize) {
        let kept: String = self.spans.iter().take(spans).map(|span| span.text.as_str()).collect();
        let tokens = ids.len() as u64;
        self.spans = vec![Span { text: kept, tokens, ids: ids.to_vec() }];
        self.open = Span::default();
        (self.tokens, self.before) = (tokens, tokens);
    }

    /// Another process begins anew.
    pub(super) fn begin(&mut self) {
        *self = Borders::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, id: u64, computed: u64) -> Told {
        Told { text: text.to_owned(), id: Some(id), computed: Some(computed) }
    }

    fn span(text: &str, tokens: u64, ids: &[u64]) -> Span {
        Span { text: text.to_owned(), tokens, ids: ids.to_vec() }
    }

    #[test]
    fn a_token_with_its_text_is_a_span() {
        let mut borders = Borders::default();
        borders.add(told("a", 1, 1));
        borders.add(told("b", 2, 2));
        borders.add(Told { text: String::new(), id: Some(2), computed: Some(2) });
        assert_eq!(borders.spans().unwrap(), [span("a", 1, &[1]), span("b", 1, &[2])]);
        assert_eq!(borders.tokens(), 2);
    }

    #[test]
    fn a_character_of_several_tokens_comes_with_its_last_one() {
        let mut borders = Borders::default();
        borders.add(told("a", 1, 1));
        borders.add(told("🦀", 9, 4));
        let spans = borders.spans().unwrap();
        assert_eq!(spans, [span("a", 1, &[1]), span("🦀", 3, &[9])]);
        assert!(!spans[1].is_known());
        assert!(spans[1].fits(&[7, 8, 9]) && !spans[1].fits(&[8, 9]) && !spans[1].fits(&[7, 9, 8]));
    }

    #[test]
    fn text_that_was_held_back_comes_with_later_tokens() {
        let mut borders = Borders::default();
        borders.add(told("", 1, 1));
        borders.add(told("", 2, 2));
        assert_eq!(borders.spans().unwrap(), []);
        borders.add(told("abc", 3, 3));
        assert_eq!(borders.spans().unwrap(), [span("abc", 3, &[1, 2, 3])]);
    }

    #[test]
    fn another_process_counts_from_where_it_goes_on() {
        let mut borders = Borders::default();
        borders.add(told("a", 1, 1));
        borders.add(told("b", 2, 2));
        borders.add(told("", 3, 3));
        borders.go_on(&[1, 2], 2);
        borders.add(told("c", 3, 1));
        assert_eq!(borders.spans().unwrap(), [span("ab", 2, &[1, 2]), span("c", 1, &[3])]);
        assert_eq!(borders.tokens(), 3);
    }

    #[test]
    fn without_counts_a_chunk_is_a_token() {
        let mut borders = Borders::default();
        borders.add(Told { text: "a".to_owned(), ..Told::default() });
        assert_eq!(borders.spans().unwrap(), [span("a", 1, &[])]);
    }
}
