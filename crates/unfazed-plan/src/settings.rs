//! What a user may ask for; `None` leaves the choice to the plan.

use serde::{Deserialize, Serialize};
use unfazed_formats::KvTypes;

use crate::Tokens;

/// Settings that decide memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Longest sequence (prompt and answer) of one request.
    pub context: Option<Tokens>,
    /// Sequences computed side by side.
    pub parallel: Option<usize>,
    /// Most prompt positions computed in one step.
    pub chunk: Option<Tokens>,
    /// Compute threads of a step of one row.
    pub threads: Option<usize>,
    /// Compute threads of a step of more rows.
    pub batch_threads: Option<usize>,
    /// What keys and values are kept as.
    pub cache: KvTypes,
}
