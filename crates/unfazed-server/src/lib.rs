//! The front: everything between a client's connection and the engine's token ids.
//!
//! | module | what |
//! |---|---|
//! | [`serve`] | binds, starts the engine, serves, drains: the entry point |
//! | [`options`] | what a user may ask of the server |
//! | [`events`] | what the server tells machines, as typed values |
//! | `http` | router, keys, Host and Origin, OpenAI's endpoints, health, metrics |
//! | [`chat`] | chat templates |
//! | `answer` | tokens to visible text: detokenising, stop strings, log probabilities |
//! | `journal` | what is known of each request that has not ended |
//! | [`supervisor`] | starts engines, talks to the running one, starts another when it dies |
//!
//! The front never touches tensor data and links none of the crates that do: the engine is another process, reached
//! over a socket with the messages of `unfazed-wire`.

mod answer;
pub mod chat;
mod error;
pub mod events;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod journal;
mod model;
pub mod options;
pub mod serve;
pub mod supervisor;

pub use error::ServerError;
pub use events::{Event, EventSink};
pub use options::{CorsOrigins, ServeOptions};
pub use serve::serve;
pub use supervisor::{EngineProgram, Exit, Launch, Process};
