//! What a user may ask for; `None` leaves the choice to the plan.

use std::fmt;

use serde::{Deserialize, Serialize};
use unfazed_formats::KvTypes;

use crate::{Bytes, GpuSettings, Tokens};

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
    /// All memory that the engine may use.
    pub memory: Option<Bytes>,
    /// Memory for experts.
    pub expert_cache: Option<ExpertCache>,
    /// Whether experts may stay on disk.
    pub stream_experts: StreamExperts,
    /// What GPUs are to do.
    pub gpu: GpuSettings,
    /// A setting that would be changed is refused instead.
    pub strict: bool,
}

/// How many experts are kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpertCache {
    /// Slots in all layers together; a slot holds one expert of one layer.
    Slots(usize),
    /// As many slots as fit into so many bytes.
    Bytes(Bytes),
}

impl fmt::Display for ExpertCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpertCache::Slots(slots) => write!(f, "{slots}"),
            ExpertCache::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Whether experts may stay on disk until they are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamExperts {
    /// If they do not fit into memory.
    #[default]
    Auto,
    /// Even if they fit.
    On,
    /// Never: a model whose experts do not fit is refused.
    Off,
}

impl StreamExperts {
    /// All choices.
    pub const ALL: [StreamExperts; 3] = [StreamExperts::Auto, StreamExperts::On, StreamExperts::Off];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            StreamExperts::Auto => "auto",
            StreamExperts::On => "on",
            StreamExperts::Off => "off",
        }
    }
}

impl fmt::Display for StreamExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
