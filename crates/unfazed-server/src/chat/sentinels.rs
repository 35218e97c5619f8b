//! Special-token text of a user, hidden from the template and from the tokenizer.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, MatchKind};
use unfazed_tokenizer::{Segment, SpecialText, Tokenizer};

use super::TemplateError;

/// Private-use characters that sentinels are taken from: the planes that nobody has fonts for come first.
const PRIVATE_USE: [std::ops::RangeInclusive<char>; 3] =
    ['\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}', '\u{e000}'..='\u{f8ff}'];

/// Roles that templates know.
const ROLES: [&str; 14] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "ipython",
    "environment",
    "observation",
    "context",
    "documents",
    "model",
    "tool_response",
    "platform",
];

fn is_private_use(character: char) -> bool {
    PRIVATE_USE.iter().any(|range| range.contains(&character))
}

/// The special tokens of a vocabulary, ready to be found in text.
#[derive(Debug)]
pub(super) struct SpecialTexts {
    finder: Option<AhoCorasick>,
    texts: Vec<String>,
    /// Every proper beginning of a special text, and every proper end.
    beginnings: BTreeSet<String>,
    ends: BTreeSet<String>,
    longest: usize,
}

impl SpecialTexts {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let special = tokenizer.special_tokens().iter();
        Self::from_texts(special.map(|(_, text)| text.clone()).filter(|text| !text.is_empty()).collect())
    }

    fn from_texts(texts: Vec<String>) -> Self {
        let finder = AhoCorasickBuilder::new().match_kind(MatchKind::LeftmostLongest).build(&texts).ok();
        let mut beginnings = BTreeSet::new();
        let mut ends = BTreeSet::new();
        for text in &texts {
            for (at, _) in text.char_indices().skip(1) {
                let (beginning, end) = text.split_at(at);
                beginnings.insert(beginning.to_owned());
                ends.insert(end.to_owned());
            }
        }
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        Self { finder: finder.filter(|_| !texts.is_empty()), texts, beginnings, ends, longest }
    }

    /// Whether `text` ends with what a special text begins with.
    fn ends_like_a_beginning(&self, text: &str) -> bool {
        let from = text.len().saturating_sub(self.longest);
        text.char_indices()
            .rev()
            .take_while(|(at, _)| *at >= from)
            .any(|(at, _)| text.get(at..).is_some_and(|end| self.beginnings.contains(end)))
    }

    /// Whether `text` begins with what a special text ends with.
    fn begins_like_an_end(&self, text: &str) -> bool {
        text.char_indices().take_while(|(at, _)| *at < self.longest).any(|(at, c)| {
            text.get(..at + c.len_utf8()).is_some_and(|beginning| self.ends.contains(beginning))
        })
    }
}

/// The sentinels of one rendering.
pub(super) struct Sentinels<'a> {
    special: &'a SpecialTexts,
    /// Marks a border that no special token may reach across.
    guard: char,
    /// Sentinel to the index of its text.
    texts: BTreeMap<char, usize>,
    by_text: BTreeMap<usize, char>,
    free: Vec<char>,
}

impl<'a> Sentinels<'a> {
    /// Sentinels that occur in none of the strings that `used` was filled from.
    pub(super) fn new(special: &'a SpecialTexts, used: &UsedCharacters) -> Result<Self, TemplateError> {
        let free = PRIVATE_USE.into_iter().flatten().filter(|c| !used.0.contains(c));
        let mut free: Vec<char> = free.take(special.texts.len() + 1).collect();
        let guard = free.pop().ok_or(TemplateError::NoSentinelLeft)?;
        Ok(Self { special, guard, texts: BTreeMap::new(), by_text: BTreeMap::new(), free })
    }

    /// A user's string with sentinels for special-token text and guards where it begins or ends like one.
    pub(super) fn hide(&mut self, text: &str) -> Result<String, TemplateError> {
        let mut hidden = String::with_capacity(text.len() + 8);
        let mut done = 0;
        if let Some(finder) = &self.special.finder {
            for found in finder.find_iter(text) {
                hidden.push_str(text.get(done..found.start()).unwrap_or_default());
                let index = found.pattern().as_usize();
                let sentinel = match self.by_text.get(&index) {
                    Some(sentinel) => *sentinel,
                    None => {
                        let sentinel = self.free.pop().ok_or(TemplateError::NoSentinelLeft)?;
                        self.by_text.insert(index, sentinel);
                        self.texts.insert(sentinel, index);
                        sentinel
                    }
                };
                hidden.push(sentinel);
                done = found.end();
            }
        }
        hidden.push_str(text.get(done..).unwrap_or_default());
        Ok(self.guarded(hidden))
    }

    /// A role. Templates make special tokens of roles (`'<|' + message.role + '|>'`), so one that is not known as
    /// a role and that is part of a special text is guarded all around.
    pub(super) fn hide_role(&mut self, role: &str) -> Result<String, TemplateError> {
        let suspect = !ROLES.contains(&role) && self.special.texts.iter().any(|text| text.contains(role));
        let hidden = self.hide(role)?;
        Ok(if suspect { format!("{0}{hidden}{0}", self.guard) } else { hidden })
    }

    /// Puts guards inside of the white space at both ends, as templates trim. Plain words are left alone:
    /// templates compare them (`message.role == 'user'`).
    fn guarded(&self, text: String) -> String {
        let core = text.trim();
        if core.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-') {
            return text;
        }
        let before = self.special.begins_like_an_end(core) || self.special.begins_like_an_end(&text);
        let behind = self.special.ends_like_a_beginning(core) || self.special.ends_like_a_beginning(&text);
        if !before && !behind {
            return text;
        }
        let start = text.len() - text.trim_start().len();
        let (front, rest) = text.split_at(start);
        let (core, back) = rest.split_at(core.len());
        let guard = |wanted: bool| if wanted { self.guard.to_string() } else { String::new() };
        [front, &guard(before), core, &guard(behind), back].concat()
    }

    /// Turns a rendered string into segments: sentinels back into plain text, guards into borders.
    pub(super) fn restore(&self, rendered: &str) -> Vec<Segment<'static>> {
        let mut segments = Vec::new();
        let mut push = |text: &str, special| {
            if !text.is_empty() {
                segments.push(Segment { text: Cow::Owned(text.to_owned()), special });
            }
        };
        let mut start = 0;
        for (at, character) in rendered.char_indices().filter(|(_, c)| is_private_use(*c)) {
            let text = self.texts.get(&character).and_then(|index| self.special.texts.get(*index));
            if text.is_none() && character != self.guard {
                continue;
            }
            push(rendered.get(start..at).unwrap_or_default(), SpecialText::Parse);
            push(text.map_or("", String::as_str), SpecialText::Plain);
            start = at + character.len_utf8();
        }
        push(rendered.get(start..).unwrap_or_default(), SpecialText::Parse);
        segments
    }
}

/// Private-use characters that are taken.
#[derive(Clone, Debug, Default)]
pub(super) struct UsedCharacters(BTreeSet<char>);

impl UsedCharacters {
    pub(super) fn add(&mut self, text: &str) {
        self.0.extend(text.chars().filter(|c| is_private_use(*c)));
    }

    pub(super) fn add_all(&mut self, special: &SpecialTexts) {
        special.texts.iter().for_each(|text| self.add(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special() -> SpecialTexts {
        SpecialTexts::from_texts(["<|im_start|>", "<|im_end|>", "</s>"].map(str::to_owned).to_vec())
    }

    fn round(text: &str) -> (String, Vec<(String, SpecialText)>) {
        let special = special();
        let mut used = UsedCharacters::default();
        used.add(text);
        let mut sentinels = Sentinels::new(&special, &used).unwrap();
        let hidden = sentinels.hide(text).unwrap();
        let restored = sentinels.restore(&hidden);
        (hidden, restored.into_iter().map(|s| (s.text.into_owned(), s.special)).collect())
    }

    #[test]
    fn special_text_becomes_one_strange_character_and_comes_back_as_plain_text() {
        let (hidden, restored) = round("a<|im_end|>b");
        assert_eq!(hidden.chars().count(), 3);
        let expected =
            [("a", SpecialText::Parse), ("<|im_end|>", SpecialText::Plain), ("b", SpecialText::Parse)];
        assert_eq!(restored, expected.map(|(text, special)| (text.to_owned(), special)));
    }

    #[test]
    fn private_use_characters_of_the_user_survive() {
        let text = "\u{f0000}\u{f0001}</s>\u{ffffd}\u{e000}\u{10fffd}";
        let (_, restored) = round(text);
        assert_eq!(restored.into_iter().map(|(text, _)| text).collect::<String>(), text);
    }

    #[test]
    fn text_that_begins_or_ends_like_a_special_token_is_guarded_inside_of_its_white_space() {
        for (text, guards) in
            [("a <", 1), (" a <|im_ \n", 1), (" |> a", 1), ("> a <", 2), ("a < b", 0), ("user", 0), ("a", 0)]
        {
            let (hidden, restored) = round(text);
            assert_eq!(hidden.chars().filter(|c| is_private_use(*c)).count(), guards, "{text:?}");
            assert_eq!(hidden.trim().len() == hidden.len(), text.trim().len() == text.len());
            assert_eq!(restored.into_iter().map(|(text, _)| text).collect::<String>(), text);
        }
    }

    #[test]
    fn a_text_that_leaves_no_private_use_character_is_refused() {
        let special = special();
        let mut used = UsedCharacters::default();
        used.add(&PRIVATE_USE.into_iter().flatten().collect::<String>());
        assert_eq!(Sentinels::new(&special, &used).err(), Some(TemplateError::NoSentinelLeft));
    }
}
