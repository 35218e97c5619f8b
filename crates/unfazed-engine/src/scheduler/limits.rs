//! What the device was laid out for.

use unfazed_plan::needs::LOGIT_ROWS;

/// Limits of a step and of a sequence. All at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest sequence: prompt and answer.
    pub context: usize,
    /// Sequences computed side by side.
    pub parallel: usize,
    /// Most rows in a step.
    pub chunk: usize,
    /// Most rows with logits in a step.
    pub logit_rows: usize,
    /// KV pages.
    pub pages: usize,
    /// Positions in a page.
    pub page_tokens: usize,
    /// Token ids are below it.
    pub vocab: usize,
}

impl Limits {
    /// The first limit that is zero, by name.
    pub fn zero(&self) -> Option<&'static str> {
        let named = [
            ("context", self.context),
            ("parallel", self.parallel),
            ("chunk", self.chunk),
            ("logit_rows", self.logit_rows),
            ("pages", self.pages),
            ("page_tokens", self.page_tokens),
            ("vocab", self.vocab),
        ];
        named.into_iter().find(|(_, value)| *value == 0).map(|(name, _)| name)
    }

    /// Logit rows to lay a device out for, of the plan's number: logits take `vocab` floats a row, and only prompts
    /// whose log probabilities are wanted have many such rows.
    pub fn logit_rows_for(chunk: usize) -> usize {
        LOGIT_ROWS.min(chunk)
    }
}
