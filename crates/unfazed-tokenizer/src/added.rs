//! Finding added tokens in text.
//!
//! Added tokens are found before anything else is done to the text: the leftmost first, the longest of several
//! that begin at the same place. Special ones are looked for only in text that may contain them, and never
//! across the border of such text: a user's text can't complete what a template began.

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, Input, MatchKind};

use crate::TokenizerError;

/// A token that is found in text as it stands.
#[derive(Clone, Debug)]
pub(crate) struct AddedToken {
    pub(crate) token: u32,
    pub(crate) text: String,
    pub(crate) special: bool,
    /// Only between characters that are not of a word.
    pub(crate) single_word: bool,
    /// Takes the white space before it along.
    pub(crate) strip_left: bool,
    /// Takes the white space behind it along.
    pub(crate) strip_right: bool,
}

impl AddedToken {
    pub(crate) fn new(token: u32, text: impl Into<String>, special: bool) -> Self {
        let text = text.into();
        Self { token, text, special, single_word: false, strip_left: false, strip_right: false }
    }
}

/// A part of a text: an added token, or ordinary text (`token` is `None`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) range: Range<usize>,
    pub(crate) token: Option<u32>,
}

/// All added tokens of a vocabulary, ready to be found.
#[derive(Debug, Default)]
pub(crate) struct AddedTokens {
    special: Option<Finder>,
    ordinary: Option<Finder>,
}

#[derive(Debug)]
struct Finder {
    automaton: AhoCorasick,
    tokens: Vec<AddedToken>,
}

impl Finder {
    fn new(file: &str, tokens: Vec<AddedToken>) -> Result<Option<Self>, TokenizerError> {
        let tokens: Vec<_> = tokens.into_iter().filter(|t| !t.text.is_empty()).collect();
        if tokens.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasickBuilder::new()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|t| &t.text))
            .map_err(|error| TokenizerError::Invalid {
                file: file.to_owned(),
                field: "added tokens",
                what: error.to_string(),
            })?;
        Ok(Some(Self { automaton, tokens }))
    }

    fn find(&self, text: &str, range: Range<usize>) -> Option<Found<'_>> {
        let found = self.automaton.find(Input::new(text).range(range))?;
        let token = self.tokens.get(found.pattern().as_usize())?;
        Some(Found { range: found.range(), token })
    }
}

#[derive(Clone)]
struct Found<'a> {
    range: Range<usize>,
    token: &'a AddedToken,
}

impl AddedTokens {
    pub(crate) fn new(
        file: &str,
        tokens: impl IntoIterator<Item = AddedToken>,
    ) -> Result<Self, TokenizerError> {
        let (special, ordinary) = tokens.into_iter().partition(|t: &AddedToken| t.special);
        Ok(Self { special: Finder::new(file, special)?, ordinary: Finder::new(file, ordinary)? })
    }

    /// Splits `text` into added tokens and what is between them. Special tokens are looked for in the ranges
    /// `parsed`, which ascend, don't overlap, and lie on borders of characters.
    pub(crate) fn split(&self, text: &str, parsed: &[Range<usize>]) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut search = Search { added: self, text, parsed, special: None, ordinary: None };
        let mut done = 0;
        let mut from = 0;
        while let Some(found) = search.next(from) {
            from = found.range.end;
            let Some(range) = widen(text, &found, done) else { continue };
            if done < range.start {
                parts.push(Part { range: done..range.start, token: None });
            }
            done = range.end;
            from = from.max(done);
            parts.push(Part { range, token: Some(found.token.token) });
        }
        if done < text.len() {
            parts.push(Part { range: done..text.len(), token: None });
        }
        parts
    }
}

/// Both finders on one text; each remembers its next match so that the text is passed over once.
struct Search<'a> {
    added: &'a AddedTokens,
    text: &'a str,
    parsed: &'a [Range<usize>],
    special: Option<Option<Found<'a>>>,
    ordinary: Option<Option<Found<'a>>>,
}

impl<'a> Search<'a> {
    fn next(&mut self, from: usize) -> Option<Found<'a>> {
        let stale = |found: &Option<Option<Found<'_>>>| match found {
            None => true,
            Some(None) => false,
            Some(Some(found)) => found.range.start < from,
        };
        if stale(&self.special) {
            self.special = Some(self.find_special(from));
        }
        if stale(&self.ordinary) {
            let whole = from..self.text.len();
            self.ordinary = Some(self.added.ordinary.as_ref().and_then(|f| f.find(self.text, whole)));
        }
        let special = self.special.clone().flatten();
        let ordinary = self.ordinary.clone().flatten();
        match (special, ordinary) {
            (Some(s), Some(o)) => {
                let order = |f: &Found<'_>| (f.range.start, std::cmp::Reverse(f.range.end));
                Some(if order(&o) < order(&s) { o } else { s })
            }
            (s, o) => s.or(o),
        }
    }

    fn find_special(&mut self, from: usize) -> Option<Found<'a>> {
        let finder = self.added.special.as_ref()?;
        while let Some(range) = self.parsed.first() {
            let range = range.start.max(from)..range.end.min(self.text.len());
            if range.start < range.end
                && let Some(found) = finder.find(self.text, range)
            {
                return Some(found);
            }
            self.parsed = self.parsed.get(1..).unwrap_or(&[]);
        }
        None
    }
}

/// The range that a match takes, with white space where its token wants it; `None` if the token must stand
/// alone and doesn't. White space before `done` is taken already.
fn widen(text: &str, found: &Found<'_>, done: usize) -> Option<Range<usize>> {
    let Range { mut start, mut end } = found.range;
    let before = text.get(..start)?;
    let behind = text.get(end..)?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if found.token.single_word
        && (before.chars().next_back().is_some_and(is_word) || behind.chars().next().is_some_and(is_word))
    {
        return None;
    }
    if found.token.strip_left {
        start = before.trim_end().len().max(done);
    }
    if found.token.strip_right {
        end = text.len() - behind.trim_start().len();
    }
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> AddedTokens {
        let mut trimming = AddedToken::new(4, "<mask>", true);
        (trimming.strip_left, trimming.strip_right) = (true, true);
        let mut alone = AddedToken::new(5, "word", false);
        alone.single_word = true;
        let plain = [
            AddedToken::new(0, "<s>", true),
            AddedToken::new(1, "<s>>", true),
            AddedToken::new(2, "  ", false),
            AddedToken::new(3, "</s>", true),
        ];
        AddedTokens::new("test", plain.into_iter().chain([trimming, alone])).unwrap()
    }

    fn split(text: &str, parsed: Range<usize>) -> Vec<(String, Option<u32>)> {
        let parts = tokens().split(text, std::slice::from_ref(&parsed));
        parts.into_iter().map(|p| (text[p.range].to_owned(), p.token)).collect()
    }

    fn ordinary(text: &str) -> (String, Option<u32>) {
        (text.to_owned(), None)
    }

    #[test]
    fn the_leftmost_longest_token_wins() {
        assert_eq!(
            split("a<s>>  b", 0..8),
            [ordinary("a"), ("<s>>".into(), Some(1)), ("  ".into(), Some(2)), ordinary("b")]
        );
    }

    #[test]
    fn special_text_counts_only_where_it_is_parsed_and_ordinary_added_tokens_everywhere() {
        assert_eq!(
            split("<s>  <s></s>", 8..12),
            [ordinary("<s>"), ("  ".into(), Some(2)), ordinary("<s>"), ("</s>".into(), Some(3))]
        );
    }

    #[test]
    fn a_special_token_never_reaches_across_the_border_of_parsed_text() {
        assert_eq!(split("<s>", 0..2), [ordinary("<s>")]);
        assert_eq!(split("<s>", 1..3), [ordinary("<s>")]);
        // The longer `<s>>` would take a character of the user's.
        assert_eq!(split("<s>>", 0..3), [("<s>".into(), Some(0)), ordinary(">")]);
    }

    #[test]
    fn white_space_goes_along_where_a_token_wants_it() {
        assert_eq!(
            split("a \t<mask> \nb", 0..12),
            [ordinary("a"), (" \t<mask> \n".into(), Some(4)), ordinary("b")]
        );
    }

    #[test]
    fn a_token_that_must_stand_alone_is_not_found_inside_of_a_word() {
        assert_eq!(split("swords word", 0..0), [ordinary("swords "), ("word".into(), Some(5))]);
    }
}
