//! Finding an answer that says the same again and again.
//!
//! An answer *repeats* within a window of N tokens if its last N tokens have a period p of at most N / 3: each of them, from the
//! p-th on, is the one p before it. So there is a pattern of p tokens that stands there three times at least, the last time
//! perhaps in part. Only tokens of the answer count, so it is a function of them and of N alone: whoever goes on with an answer
//! finds it at the same token.

use unfazed_wire::MOST_REPEAT_STOP_TOKENS;

/// A pattern must stand in the window so often.
const REPETITIONS: usize = 3;

/// Looks for repetition in an answer as its tokens come.
#[derive(Clone, Debug, Default)]
pub struct Repetition {
    window: usize,
    /// For each period, from 1 on: how many tokens at the end of the answer are the one a period before them.
    runs: Vec<u32>,
}

impl Repetition {
    /// In windows of `window` tokens, [`MOST_REPEAT_STOP_TOKENS`] at most. A window of fewer than three never repeats.
    pub fn new(window: usize) -> Repetition {
        let window = window.min(MOST_REPEAT_STOP_TOKENS);
        Repetition { window, runs: vec![0; window / REPETITIONS] }
    }

    /// The answer has grown by its last token; to be called for each. Whether it repeats now. Takes a comparison for each
    /// period, a third of the window.
    pub fn push(&mut self, answer: &[u32]) -> bool {
        let Some((last, before)) = answer.split_last() else { return false };
        let mut repeats = false;
        // Tokens before the last one, the nearest first, are a period of 1, 2, ... before it.
        let mut before = before.iter().rev();
        for (period, run) in (1usize..).zip(&mut self.runs) {
            *run = if before.next() == Some(last) { run.saturating_add(1) } else { 0 };
            repeats |= *run as usize + period >= self.window;
        }
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition.
    fn repeats(answer: &[u32], window: usize) -> bool {
        let Some(start) = answer.len().checked_sub(window) else { return false };
        let last = &answer[start..];
        (1..=window / 3).any(|period| (period..window).all(|i| last[i] == last[i - period]))
    }

    #[test]
    fn an_answer_repeats_once_a_pattern_fills_the_window_three_times() {
        let first = |window, tokens: &[u32]| {
            let mut repetition = Repetition::new(window);
            (1..=tokens.len()).find(|end| repetition.push(&tokens[..*end]))
        };
        assert_eq!(first(6, &[9, 8, 1, 2, 1, 2, 1, 2, 1]), Some(8));
        assert_eq!(first(7, &[1, 2, 1, 2, 1, 2, 1, 2]), Some(7), "the last time in part");
        assert_eq!(
            first(8, &[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]),
            None,
            "three times three are more than eight"
        );
        assert_eq!(first(9, &[1, 2, 3, 1, 2, 3, 1, 2, 3]), Some(9));
        assert_eq!(first(3, &[5, 5, 4, 5, 5, 5]), Some(6));
        for never in [0, 1, 2] {
            assert_eq!(first(never, &[5; 20]), None);
        }
        assert_eq!(first(usize::MAX, &[5; 5000]), Some(MOST_REPEAT_STOP_TOKENS));
    }

    /// Answers that often begin to repeat, and often stop to.
    fn answers() -> impl Strategy<Value = Vec<u32>> {
        let pattern = (prop::collection::vec(0u32..3, 1..6), 1usize..6);
        let parts = prop::collection::vec(pattern, 1..12);
        parts.prop_map(|parts| parts.into_iter().flat_map(|(part, times)| part.repeat(times)).collect())
    }

    proptest! {
        #[test]
        fn token_by_token_it_is_what_the_definition_says(answer in answers(), window in 0usize..24) {
            let mut repetition = Repetition::new(window);
            for end in 1..=answer.len() {
                let naive = window >= 3 && repeats(&answer[..end], window);
                prop_assert_eq!(repetition.push(&answer[..end]), naive, "{:?}", &answer[..end]);
            }
        }
    }
}
