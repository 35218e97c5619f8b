//! Finds the first rule of which all words are in one line.

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, MatchKind};

use super::patterns::Rule;
use crate::Class;

/// A word of a rule: whether it must begin or end its line, but for space around it.
struct Word {
    begins: bool,
    ends: bool,
}

/// All rules at once.
pub(super) struct Matcher {
    finder: AhoCorasick,
    words: Vec<Word>,
    /// Of each rule its class and the indices of its words.
    rules: Vec<(Class, Vec<usize>)>,
}

/// A rule that matched.
pub(super) struct Hit<'a> {
    pub(super) rule: usize,
    pub(super) class: Class,
    pub(super) line: &'a str,
    /// Where in the line the rule's first word is.
    pub(super) at: usize,
}

impl Matcher {
    /// `None` if the rules cannot be built, which no text can bring about.
    pub(super) fn new(rules: &[Rule]) -> Option<Matcher> {
        let mut known: Vec<&str> = Vec::new();
        let mut index = |word: &'static str| {
            known.iter().position(|other| *other == word).unwrap_or_else(|| {
                known.push(word);
                known.len() - 1
            })
        };
        let rules = rules.iter().map(|(class, words)| (*class, words.iter().map(|w| index(w)).collect()));
        let rules: Vec<(Class, Vec<usize>)> = rules.collect();
        let words =
            known.iter().map(|w| Word { begins: w.starts_with('^'), ends: w.ends_with('$') }).collect();
        let plain = known.iter().map(|word| word.trim_matches(['^', '$']));
        let finder = AhoCorasickBuilder::new()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            .build(plain)
            .ok()?;
        Some(Matcher { finder, words, rules })
    }

    /// The earliest rule that matches a line of the text, and the first line that it matches.
    pub(super) fn first<'a>(&self, text: &'a str) -> Option<Hit<'a>> {
        let mut best: Option<Hit<'a>> = None;
        // Where each word was first seen in the line.
        let mut seen: Vec<Option<usize>> = vec![None; self.words.len()];
        for line in text.split(['\n', '\r']) {
            if !self.look(line, &mut seen) {
                continue;
            }
            let limit = best.as_ref().map_or(self.rules.len(), |hit| hit.rule);
            for (rule, (class, words)) in self.rules.iter().enumerate().take(limit) {
                let mut places = words.iter().map(|word| seen.get(*word).copied().flatten());
                let first = places.next().flatten();
                if let Some(at) = first
                    && places.all(|place| place.is_some())
                {
                    best = Some(Hit { rule, class: *class, line, at });
                    break;
                }
            }
            seen.fill(None);
        }
        best
    }

    /// Notes the words that are in a line. Whether there are any.
    fn look(&self, line: &str, seen: &mut [Option<usize>]) -> bool {
        let begin = line.len() - line.trim_start().len();
        let end = line.trim_end().len();
        let mut any = false;
        for found in self.finder.find_overlapping_iter(line) {
            let index = found.pattern().as_usize();
            let (Some(word), Some(place)) = (self.words.get(index), seen.get_mut(index)) else { continue };
            let stands = (!word.begins || found.start() == begin) && (!word.ends || found.end() == end);
            if stands && place.is_none() {
                *place = Some(found.start());
                any = true;
            }
        }
        any
    }
}
