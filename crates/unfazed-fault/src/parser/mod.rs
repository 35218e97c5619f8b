//! The class of a text: an error message, the end of a log, a kernel's or a crash's report.
//!
//! Text comes from outside. It may be of any length and hold anything; work is linear in its length, and what is not
//! known is [`Class::Unknown`], never a guess. Rules are tried in the order of `patterns.rs` over the whole text,
//! so a cause wins over what followed from it, whichever came first.

mod matcher;
mod patterns;

use std::sync::LazyLock;

use crate::Class;
use matcher::Matcher;

/// Longest text that is read whole, in bytes. Of a longer one the beginning and the end are read, half of this each:
/// reports begin with what happened, logs end with it.
pub const MAX_TEXT: usize = 1 << 20;
/// Longest evidence, in bytes.
pub const MAX_EVIDENCE: usize = 400;
/// Of a line longer than [`MAX_EVIDENCE`], how much is kept before what was matched, in bytes.
const BEFORE: usize = 120;

static MATCHER: LazyLock<Option<Matcher>> = LazyLock::new(|| Matcher::new(patterns::RULES));

/// What a text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// The class.
    pub class: Class,
    /// The line that tells it, or the part of a long line around what was matched; empty if nothing is known. A part of
    /// the text, at most [`MAX_EVIDENCE`] bytes.
    pub evidence: &'a str,
}

/// The class of a text, and the line that tells it.
pub fn classify(text: &str) -> Report<'_> {
    let (head, tail) = ends(text);
    let found = MATCHER.as_ref().and_then(|matcher| {
        let hits = [matcher.first(head), matcher.first(tail)];
        hits.into_iter().flatten().min_by_key(|hit| hit.rule)
    });
    match found {
        Some(hit) => Report { class: hit.class, evidence: evidence(hit.line, hit.at) },
        None => Report { class: Class::Unknown, evidence: "" },
    }
}

/// The parts of a text that are read.
fn ends(text: &str) -> (&str, &str) {
    if text.len() <= MAX_TEXT {
        return (text, "");
    }
    let head = text.floor_char_boundary(MAX_TEXT / 2);
    let tail = text.ceil_char_boundary(text.len() - MAX_TEXT / 2);
    (text.get(..head).unwrap_or_default(), text.get(tail..).unwrap_or_default())
}

/// The part of a line to show for a match at byte `at`.
fn evidence(line: &str, at: usize) -> &str {
    let shown = if line.len() <= MAX_EVIDENCE {
        line
    } else {
        let start = at.saturating_sub(BEFORE).min(line.len() - MAX_EVIDENCE);
        let start = line.ceil_char_boundary(start);
        let end = line.floor_char_boundary(start.saturating_add(MAX_EVIDENCE));
        line.get(start..end).unwrap_or_default()
    };
    shown.trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_finds_the_text_that_it_is_made_of() {
        for (class, words) in patterns::RULES {
            let text = words.iter().map(|word| word.trim_matches(['^', '$'])).collect::<Vec<_>>().join(" ");
            let report = classify(&text);
            assert_ne!(report.class, Class::Unknown, "{words:?}");
            // An earlier rule may take it, as it is more specific.
            let order = |class| patterns::RULES.iter().position(|(other, _)| *other == class);
            assert!(order(report.class) <= order(*class), "{words:?} is {}", report.class);
        }
    }

    /// Space around a line is no part of its evidence.
    #[test]
    fn words_neither_begin_nor_end_with_space() {
        for (_, words) in patterns::RULES {
            assert!(
                words
                    .iter()
                    .all(|word| word.trim_matches(['^', '$']).trim() == word.trim_matches(['^', '$']))
            );
        }
    }

    #[test]
    fn rules_of_a_class_stand_together() {
        let mut classes: Vec<Class> = patterns::RULES.iter().map(|(class, _)| *class).collect();
        classes.dedup();
        let mut seen = classes.clone();
        seen.sort();
        seen.dedup();
        assert_eq!(classes.len(), seen.len(), "{classes:?}");
    }

    #[test]
    fn of_a_long_text_the_beginning_and_the_end_are_read() {
        let filler = "nothing happened here\n".repeat(MAX_TEXT / 10);
        let hang = "Caused GPU Hang Error";
        assert_eq!(classify(&format!("{hang}\n{filler}")).class, Class::Hang);
        assert_eq!(classify(&format!("{filler}{hang}")).class, Class::Hang);
        assert_eq!(classify(&format!("{filler}{hang}\n{filler}")).class, Class::Unknown);
        let both = format!("Innocent Victim\n{filler}{hang}");
        assert_eq!(classify(&both), Report { class: Class::Hang, evidence: hang });
    }

    #[test]
    fn evidence_of_a_long_line_is_what_was_matched_and_some_of_what_is_around() {
        let line = format!("{}Caused GPU Hang Error{}", "é".repeat(1000), "ü".repeat(1000));
        let report = classify(&line);
        assert!(report.evidence.contains("Caused GPU Hang Error"));
        assert!(report.evidence.starts_with('é') && report.evidence.ends_with('ü'));
        assert!(report.evidence.len() <= MAX_EVIDENCE);
    }
}
