//! The engine process: scheduler, sequences, KV pages and sampling.
//!
//! | module | what |
//! |---|---|
//! | [`process`] | the whole `unfazed engine` process: from its socket to its end |
//! | `memory` | memory that the front handed over, with what an earlier engine left there |
//! | `beat` | signs of life for the front's watchdog |
//! | `waits` | what is waited for outside this process |
//! | `warm_up` | first steps, before the first request |
//! | `huge_pages` | gathering weights into huge pages, in the background |
//! | `experts` | experts that are read while steps are computed |
//! | `sandbox` | rights that the engine gives up |
//! | `load` | from the front's `Start` to an engine that computes |
//! | [`local`] | an engine in the caller's own process, without a front: for measurements |
//! | [`engine`] | the loop without a socket: messages in, steps, messages out |
//! | [`scheduler`] | who is computed in a step: admission, chunked prefill mixed with decodes |
//! | `sequence` | a request being computed |
//! | `advance` | what a step's logits mean for a sequence |
//! | `outcome` | what a step has to tell the front |
//! | [`pages`] | KV pages: reserved at admission, given back at the end |
//! | [`kept`] | keys and values that outlive this process |
//! | [`pressure`] | giving memory up when it runs out |
//! | [`repetition`] | finding an answer that says the same again and again |
//! | [`sampling`] | from logits to a token, and to log probabilities |
//! | `clock` | times in messages |
//!
//! A request's tokens are a function of the model, its prompt, its settings and its seed: of nothing that the scheduler
//! decides. The scheduler may therefore follow load and arrival as it likes.

mod advance;
mod beat;
mod clock;
pub mod engine;
mod error;
#[cfg(all(feature = "fault-plan", target_os = "linux"))]
mod escape;
mod experts;
mod faults;
pub mod gpus;
mod huge_pages;
pub mod kept;
mod load;
pub mod local;
mod memory;
mod outcome;
pub mod pages;
pub mod parts;
pub mod pressure;
pub mod process;
pub mod repetition;
pub mod sampling;
mod sandbox;
pub mod scheduler;
mod sequence;
mod waits;
mod warm_up;

pub use engine::Engine;
pub use error::EngineError;
pub use parts::{Parts, RealParts};
pub use process::run;
pub use scheduler::Limits;
