//! The engine as the front sees it: a process that may die at any moment.
//!
//! | module | what |
//! |---|---|
//! | [`launch`] | how an engine is started and ended: the program, or a test's own |
//! | `engine` | what the HTTP side holds: submit, follow, leave |
//! | `life` | one engine from its start to its end |
//! | `keeper` | the thread that starts one engine after the other |
//! | `fate` | what becomes of requests when their engine dies |
//! | `backoff` | how long to wait before the next engine |

mod backoff;
mod engine;
mod fate;
mod keeper;
pub mod launch;
mod life;

pub(crate) use engine::{Engine, Fatal, Phase, Refused, Sequence};
pub(crate) use keeper::{Keeper, Orders};
pub use launch::{EngineProgram, Exit, Launch, Process};

use unfazed_wire::{Failure, FinishReason, Timings, TokenEvent, TokenLogprobs};

/// News of a sequence. The last one is `Finished`, `Failed` or `Interrupted`.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// Log probabilities of the next prompt tokens.
    PromptLogprobs(Vec<TokenLogprobs>),
    /// A verified token.
    Token(TokenEvent),
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
    /// The engine died.
    EngineDied(String),
    /// The server ends.
    Shutdown,
}
