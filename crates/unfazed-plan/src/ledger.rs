//! The plan: one value that holds every decision about memory.

use serde::{Deserialize, Serialize};
use unfazed_formats::ModelConfig;

use crate::{Bytes, PAGE_TOKENS, Settings, Tokens};

/// The machine's numbers that a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Memory that the engine may use: free memory under all limits.
    pub available: Bytes,
    /// Cores that this process may use.
    pub cores: usize,
}

/// What was decided. What it accepts can be served: any prompt up to `context`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Longest sequence of one request.
    pub context: Tokens,
    /// Sequences computed side by side.
    pub parallel: usize,
    /// Most rows in one step.
    pub chunk: Tokens,
    /// KV pages of [`PAGE_TOKENS`] positions.
    pub pages: usize,
    /// Compute threads.
    pub threads: usize,
    /// Packed weights.
    pub weight_bytes: Bytes,
    /// All KV pages.
    pub kv_bytes: Bytes,
    /// Activations and logits of the largest step.
    pub scratch_bytes: Bytes,
    /// What was lowered, from what to what and why: one line each.
    pub notes: Vec<String>,
}

/// Settings that cannot be served: the one condition that failed and the number that would pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A setting makes no sense.
    #[error("--{setting} {value}: {reason}")]
    Setting {
        /// Its name on the command line.
        setting: &'static str,
        /// What was asked for.
        value: usize,
        /// Why not, with the number that would pass.
        reason: String,
    },
    /// The model does not fit.
    #[error("{need} of memory are needed ({parts}) and {have} are free")]
    Memory {
        /// Bytes needed at the smallest settings.
        need: Bytes,
        /// Bytes there are.
        have: Bytes,
        /// The parts of the need.
        parts: String,
    },
}

/// Makes the plan. `weights` are the bytes of all tensors.
pub fn plan(model: &ModelConfig, weights: Bytes, machine: &Machine, settings: &Settings) -> Result<Plan, Refusal> {
    let _ = (model, weights, machine, settings, PAGE_TOKENS);
    unimplemented!()
}
