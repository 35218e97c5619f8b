//! The engine as the front sees it: a process that may die at any moment.
//!
//! | module | what |
//! |---|---|
//! | [`launch`] | how an engine is started and ended: the program, or a test's own |
//! | `asked` | questions to the program that may hang or crash it: which GPUs there are |
//! | `engine` | what the HTTP side holds: submit, follow, leave |
//! | `state` | what both sides share: journal, link, news |
//! | `life` | one engine from its start to its end |
//! | `keeper` | the thread that starts one engine after the other |
//! | `files` | the model's files, as each engine gets them |
//! | `memory` | weights and KV pages, which outlive engines |
//! | `watchdog` | when an engine has made no progress for too long |
//! | `pressure` | memory that runs out takes cache first |
//! | `pulse` | whether the keeper is at work |
//! | `cause` | why an engine ended |
//! | `fate` | what becomes of requests when their engine dies |
//! | `quarantine` | how a request that kills engines is found |
//! | `health` | how it goes |
//! | `status` | the same in full, with each request |

mod asked;
mod cause;
mod engine;
mod fate;
mod files;
mod health;
mod keeper;
pub mod launch;
mod life;
mod memory;
mod pressure;
mod pulse;
mod quarantine;
#[cfg(test)]
mod simulation;
mod state;
mod status;
mod troubles;
mod watchdog;

pub use asked::NoAnswer;
pub(crate) use cause::{Cause, Seen};
pub(crate) use engine::{Engine, Fatal, Phase, Refused, Sequence, Unfinished};
pub(crate) use files::ModelFiles;
pub(crate) use health::Health;
pub(crate) use keeper::{Keeper, Orders, chance};
pub(crate) use launch::{ChildProcess, relax};
pub use launch::{EngineProgram, Exit, Launch, Process, RendererProgram};
pub(crate) use memory::{Parts, Sizes};
pub(crate) use pressure::Watched;
pub(crate) use quarantine::Suspicion;
pub(crate) use status::Status;
pub(crate) use troubles::Rungs;
pub(crate) use watchdog::{Limits, Stall, Watchdog};

use serde::{Deserialize, Serialize};
use unfazed_wire::{Failure, FinishReason, Timings, TokenEvent, TokenLogprobs};

/// News of a sequence. The last one is `Finished`, `Failed` or `Interrupted`.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// Log probabilities of the next prompt tokens.
    PromptLogprobs(Vec<TokenLogprobs>),
    /// A verified token.
    Token(TokenEvent),
    /// Another engine goes on with it.
    Resumed,
    /// It ended well.
    Finished(FinishReason, Timings),
    /// The engine failed it.
    Failed(Failure),
    /// It ended with its engine or with the server.
    Interrupted(Interruption),
}

/// Why a sequence ended without a word from its engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Interruption {
    /// It ended engines by itself.
    Quarantined(String),
    /// The server ends.
    Shutdown,
}
