//! Settings that cannot be served: the one condition that failed, and the nearest setting that would pass.

use std::fmt;

use serde::{Deserialize, Serialize};
use unfazed_formats::KvType;

use crate::{Bytes, Settings};

/// A part of the memory that a plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartName {
    /// Packed weights that are always in memory.
    Weights,
    /// Slots of experts.
    ExpertSlots,
    /// The ring that experts without a slot pass through.
    Ring,
    /// What is read and not yet packed.
    Staging,
    /// Keys and values.
    KvPages,
    /// Activations and logits of the largest step.
    Scratch,
    /// Kept free for the processes' own code and for what the kernel needs.
    Reserve,
}

impl PartName {
    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            PartName::Weights => "weights",
            PartName::ExpertSlots => "expert slots",
            PartName::Ring => "ring for experts",
            PartName::Staging => "staging of reads",
            PartName::KvPages => "keys and values",
            PartName::Scratch => "activations",
            PartName::Reserve => "reserve",
        }
    }
}

/// A part of the memory and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Which.
    pub part: PartName,
    /// How large.
    pub bytes: Bytes,
}

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// A setting is below anything that works.
    TooSmall {
        /// Its name on the command line.
        setting: &'static str,
        /// What was asked for.
        value: usize,
    },
    /// Keys or values cannot be kept so.
    Cache {
        /// Its name on the command line.
        setting: &'static str,
        /// What was asked for.
        kind: KvType,
        /// Width of the model's heads.
        head_dim: usize,
    },
    /// Fewer experts in memory than there are, and none on disk.
    Contradiction {
        /// Slots that were asked for.
        slots: usize,
        /// Experts that there are.
        experts: usize,
    },
    /// `--strict`, and a setting would be changed.
    Changed {
        /// Its name on the command line.
        setting: &'static str,
        /// The line that says from what to what and why.
        note: String,
    },
    /// The model does not fit.
    Memory {
        /// Bytes needed with the least of everything.
        need: Bytes,
        /// Bytes that there are, under all limits and `--memory`.
        have: Bytes,
        /// The parts of the need.
        parts: Vec<Part>,
    },
}

impl Condition {
    /// A word for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Condition::TooSmall { .. } => "too_small",
            Condition::Cache { .. } => "kv_type",
            Condition::Contradiction { .. } => "contradiction",
            Condition::Changed { .. } => "strict",
            Condition::Memory { .. } => "memory",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::TooSmall { setting, value } => write!(f, "--{setting} {value} is too small"),
            Condition::Cache { setting, kind, head_dim } => {
                write!(f, "--{setting} {kind}: heads of {head_dim} are not whole blocks of 32")
            }
            Condition::Contradiction { slots, experts } => write!(
                f,
                "--stream-experts off keeps all {experts} experts in memory, and --expert-cache asks for {slots}"
            ),
            Condition::Changed { note, .. } => write!(f, "--strict refuses what would be changed: {note}"),
            Condition::Memory { need, have, parts } => {
                write!(f, "the model needs {need} of memory (")?;
                for (i, Part { part, bytes }) in parts.iter().enumerate() {
                    write!(f, "{}{} {bytes}", if i > 0 { ", " } else { "" }, part.text())?;
                }
                write!(f, ") and {have} are free for it")
            }
        }
    }
}

/// What would pass that condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suggestion {
    /// Another value of one setting.
    Setting {
        /// Its name on the command line.
        setting: &'static str,
        /// The value there.
        value: String,
        /// The settings with that value.
        settings: Box<Settings>,
    },
    /// More free memory.
    Free {
        /// So much.
        bytes: Bytes,
        /// The settings, with `--memory` no lower than that.
        settings: Box<Settings>,
    },
}

impl Suggestion {
    /// The settings that would pass.
    pub fn settings(&self) -> &Settings {
        match self {
            Suggestion::Setting { settings, .. } | Suggestion::Free { settings, .. } => settings,
        }
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Suggestion::Setting { setting, value, .. } => write!(f, "--{setting} {value} would pass"),
            Suggestion::Free { bytes, settings } => {
                write!(f, "it would pass with {} free", exact(*bytes))?;
                match settings.memory {
                    Some(memory) => write!(f, " and --memory {}", exact(memory)),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Settings that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{condition}; {suggestion}")]
pub struct Refusal {
    /// The one condition that failed.
    pub condition: Condition,
    /// What would pass it.
    pub suggestion: Suggestion,
}

/// A size as a command line takes it, no smaller than it is: in whole MiB where that is exact.
pub(crate) fn exact(bytes: Bytes) -> String {
    match bytes.0 {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        bytes => format!("{bytes}B"),
    }
}
