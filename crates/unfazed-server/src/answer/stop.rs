//! Finds stop strings in text that comes in pieces. What is shown does not depend on where the pieces are cut: the text
//! ends where, read character by character, a stop string is complete for the first time, and loses that stop string
//! (the longest one, if several are complete there).

/// Stop strings and the text held back because one of them may have begun in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopStrings {
    stops: Vec<String>,
    held: String,
    found: bool,
}

impl StopStrings {
    /// Looks for these; empty ones are never found.
    pub(crate) fn new(stops: Vec<String>) -> StopStrings {
        StopStrings { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), ..Self::default() }
    }

    /// Adds text and returns what may be shown now. After a stop string nothing is.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.found {
            return String::new();
        }
        let mut text = std::mem::take(&mut self.held) + text;
        if let Some(start) = self.first_match(&text) {
            self.found = true;
            text.truncate(start);
            return text;
        }
        self.held = text.split_off(text.len() - self.possible_start(&text));
        text
    }

    /// The text has ended without a stop string: what was held back may be shown.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// A stop string was found.
    pub(crate) fn found(&self) -> bool {
        self.found
    }

    /// Start of the stop string that is complete first, the longest of those that end at the same place.
    fn first_match(&self, text: &str) -> Option<usize> {
        let matches =
            self.stops.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| (at + stop.len(), at)));
        matches.min().map(|(_, start)| start)
    }

    /// Bytes at the end of `text` that may be the beginning of a stop string.
    fn possible_start(&self, text: &str) -> usize {
        let lengths = self.stops.iter().filter_map(|stop| {
            let prefixes = stop.char_indices().map(|(at, _)| at).rev().filter(|at| *at > 0);
            prefixes.into_iter().find(|at| stop.get(..*at).is_some_and(|prefix| text.ends_with(prefix)))
        });
        lengths.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, character by character.
    fn whole(text: &str, stops: &[String]) -> (String, bool) {
        for (at, char) in text.char_indices() {
            let seen = &text[..at + char.len_utf8()];
            let longest =
                stops.iter().filter(|stop| !stop.is_empty() && seen.ends_with(*stop)).map(String::len).max();
            if let Some(len) = longest {
                return (seen[..seen.len() - len].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    fn in_pieces(pieces: &[String], stops: &[String]) -> (String, bool) {
        let mut filter = StopStrings::new(stops.to_vec());
        let mut shown = String::new();
        for piece in pieces {
            shown += &filter.push(piece);
        }
        if !filter.found() {
            shown += &filter.finish();
        }
        (shown, filter.found())
    }

    #[test]
    fn a_stop_string_across_pieces_is_found_and_nothing_of_it_is_shown() {
        let mut filter = StopStrings::new(vec!["END".to_owned()]);
        assert_eq!(filter.push("the E"), "the ");
        assert_eq!(filter.push("N"), "");
        assert_eq!(filter.push("D more"), "");
        assert!(filter.found());
    }

    #[test]
    fn text_that_only_looked_like_a_stop_string_is_shown_after_all() {
        let mut filter = StopStrings::new(vec!["END".to_owned()]);
        assert_eq!(filter.push("E"), "");
        assert_eq!(filter.push("NE"), "EN");
        assert_eq!(filter.push("x"), "Ex");
        assert_eq!(filter.push("EN"), "");
        assert_eq!(filter.finish(), "EN");
    }

    #[test]
    fn the_stop_string_that_is_complete_first_wins() {
        assert_eq!(in_pieces(&["abcd".into()], &["abcd".into(), "bc".into()]), ("a".into(), true));
        assert_eq!(in_pieces(&["xabc".into()], &["c".into(), "abc".into()]), ("x".into(), true));
    }

    proptest! {
        #[test]
        fn any_cut_of_the_text_shows_the_same(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
            stops in proptest::collection::vec("[abé]{1,4}", 0..4),
        ) {
            prop_assert_eq!(in_pieces(&pieces, &stops), whole(&pieces.concat(), &stops));
        }
    }
}
