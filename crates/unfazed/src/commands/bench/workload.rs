//! What one test computes.

use std::fmt;

/// A prompt, a generation, or both, behind `depth` earlier positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// Prompt tokens of each sequence.
    pub(super) prompt: usize,
    /// Generated tokens of each sequence.
    pub(super) generate: usize,
    /// Positions of each sequence that are computed before the clock starts.
    pub(super) depth: usize,
    /// Sequences at once.
    pub(super) parallel: usize,
}

impl Workload {
    /// Tokens that count, of all sequences.
    pub(super) fn tokens(&self) -> usize {
        self.parallel * (self.prompt + self.generate)
    }

    /// Positions before the first token that is generated: there must be one to start from.
    pub(super) fn start(&self) -> usize {
        (self.depth + self.prompt).max(1)
    }

    /// Longest sequence, where a step has up to `rows` rows.
    pub(super) fn context(&self, rows: usize) -> usize {
        match self.generate {
            0 => self.start(),
            _ => self.start() + self.answer(rows),
        }
    }

    /// Tokens of each answer: those that count, one whose step belongs to the prompt, and those that the first answers get
    /// while prompts of others are still computed. (Beside answers prompts get at least a quarter of a step's rows.)
    pub(super) fn answer(&self, rows: usize) -> usize {
        let others = (self.parallel - 1) * self.start();
        self.generate + 1 + others.div_ceil((rows / 4).max(1)) + if others > 0 { self.parallel } else { 0 }
    }

    /// Steps that count, in order.
    pub(super) fn steps(&self, rows: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let all = self.parallel * self.prompt;
        for done in (0..all).step_by(rows.max(1)) {
            // Sequences are computed at the same time; a position of one is as good as another's.
            let rows = rows.min(all - done);
            let positions = self.depth + (done + rows).div_ceil(self.parallel);
            steps.push(Step { rows, logit_rows: 0, positions });
        }
        let start = self.start();
        let decode = |i| Step {
            rows: self.parallel,
            logit_rows: self.parallel,
            positions: self.parallel * (start + 1 + i),
        };
        steps.extend((0..self.generate).map(decode));
        steps
    }
}

/// One step of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Rows, one a token.
    pub(super) rows: usize,
    /// Rows that ask for logits.
    pub(super) logit_rows: usize,
    /// Positions whose keys and values are read.
    pub(super) positions: usize,
}

impl fmt::Display for Workload {
    /// As llama-bench says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.prompt, self.generate) {
            (prompt, 0) => write!(f, "pp{prompt}")?,
            (0, generate) => write!(f, "tg{generate}")?,
            (prompt, generate) => write!(f, "pp{prompt}+tg{generate}")?,
        }
        if self.parallel > 1 {
            write!(f, " x{}", self.parallel)?;
        }
        if self.depth > 0 {
            write!(f, " @ d{}", self.depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: Workload = Workload { prompt: 1000, generate: 0, depth: 100, parallel: 1 };
    const DECODE: Workload = Workload { prompt: 0, generate: 3, depth: 64, parallel: 4 };

    #[test]
    fn names_are_those_of_llama_bench() {
        assert_eq!(PROMPT.to_string(), "pp1000 @ d100");
        assert_eq!(DECODE.to_string(), "tg3 x4 @ d64");
        let both = Workload { generate: 16, depth: 0, ..PROMPT };
        assert_eq!(both.to_string(), "pp1000+tg16");
    }

    #[test]
    fn steps_have_all_rows_and_see_what_is_before_them() {
        let steps = PROMPT.steps(512);
        assert_eq!(steps.iter().map(|step| step.rows).collect::<Vec<_>>(), [512, 488]);
        assert_eq!(steps[1].positions, 1100);
        let steps = DECODE.steps(512);
        assert_eq!(steps[2], Step { rows: 4, logit_rows: 4, positions: 4 * 67 });
        assert_eq!(DECODE.tokens(), 12);
    }

    #[test]
    fn answers_are_long_enough_for_the_last_sequence_to_begin() {
        assert_eq!(Workload { parallel: 1, ..DECODE }.answer(512), 4);
        assert!(DECODE.answer(512) >= 4 + 3 * 64 / 128);
        assert!(DECODE.answer(4) >= 4 + 3 * 64);
    }
}
