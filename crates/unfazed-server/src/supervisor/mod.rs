//! The engine as the front sees it: a process that may die at any moment.
//!
//! | module | what |
//! |---|---|
//! | [`launch`] | how an engine is started and ended: the program, or a test's own |
//! | `engine` | what the HTTP side holds: submit, follow, leave |
//! | `state` | what both sides share: journal, link, news |
//! | `life` | one engine from its start to its end |
//! | `keeper` | the thread that starts one engine after the other |
//! | `memory` | weights and KV pages, which outlive engines |
//! | `watchdog` | when an engine has made no progress for too long |
//! | `cause` | why an engine ended |
//! | `fate` | what becomes of requests when their engine dies |
//! | `quarantine` | how a request that kills engines is found |
//! | `backoff` | how long to wait before the next engine |
//! | `health` | how it goes |

mod backoff;
mod cause;
mod engine;
mod fate;
mod health;
mod keeper;
pub mod launch;
mod life;
mod memory;
mod quarantine;
#[cfg(test)]
mod simulation;
mod state;
mod watchdog;

pub(crate) use engine::{Engine, Fatal, Phase, Refused, Sequence};
pub(crate) use health::Health;
pub(crate) use keeper::{Keeper, Orders};
pub use launch::{EngineProgram, Exit, Launch, Process};
pub(crate) use memory::Sizes;
pub(crate) use quarantine::Suspicion;
pub(crate) use watchdog::Limits;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// It ended engines by itself.
    Quarantined(String),
    /// The server ends.
    Shutdown,
}
