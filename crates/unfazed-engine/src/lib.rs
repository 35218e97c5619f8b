//! The engine process: scheduler, sequences, KV pages and sampling.
//!
//! | module | what |
//! |---|---|
//! | [`process`] | the whole `unfazed engine` process: from its socket to its end |
//! | `load` | from the front's `Start` to an engine that computes |
//! | [`engine`] | the loop without a socket: messages in, steps, messages out |
//! | [`scheduler`] | who is computed in a step: admission, chunked prefill mixed with decodes |
//! | `sequence` | a request being computed |
//! | `advance` | what a step's logits mean for a sequence |
//! | `outcome` | what a step has to tell the front |
//! | [`pages`] | KV pages: reserved at admission, given back at the end |
//! | [`sampling`] | from logits to a token, and to log probabilities |
//! | [`clock`] | time, injected |
//!
//! A request's tokens are a function of the model, its prompt, its settings and its seed: of nothing that the scheduler
//! decides. The scheduler may therefore follow load and arrival as it likes.

mod advance;
pub mod clock;
pub mod engine;
mod error;
mod load;
mod outcome;
pub mod pages;
pub mod process;
pub mod sampling;
pub mod scheduler;
mod sequence;

pub use clock::{Clock, MonotonicClock};
pub use engine::Engine;
pub use error::EngineError;
pub use process::run;
pub use scheduler::Limits;
