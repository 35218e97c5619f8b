//! The front: everything between a client's connection and the engine's token ids.
//!
//! | module | what |
//! |---|---|
//! | [`serve`] | binds, starts the engine, serves, drains: the entry point |
//! | [`alive`] | signs of life for whoever would start the server anew |
//! | [`options`] | what a user may ask of the server |
//! | [`event_stream`] | server-sent events of other servers |
//! | [`guarding`] | other engines, started, proxied to and started again |
//! | [`events`] | what the server tells machines, as typed values |
//! | `http` | router, keys, Host and Origin, OpenAI's endpoints, health, metrics |
//! | [`chat`] | chat templates |
//! | `answer` | tokens to visible text: detokenising, stop strings, log probabilities |
//! | `journal` | what is known of each request and answer |
//! | [`handover`] | one front after the other, without dropping anything |
//! | [`supervisor`] | starts engines, talks to the running one, starts another when it dies |
//!
//! The front never touches tensor data and links none of the crates that do: the engine is another process, reached
//! over a socket with the messages of `unfazed-wire`.

pub mod alive;
mod answer;
pub mod chat;
mod error;
pub mod event_stream;
pub mod events;
#[doc(hidden)]
pub mod fuzzing;
pub mod guarding;
pub mod handover;
mod http;
mod journal;
mod model;
pub mod options;
pub mod serve;
pub mod supervisor;

pub use alive::Alive;
pub use error::ServerError;
pub use events::{Event, EventSink};
pub use handover::{SuccessorProgram, TakenOver};
pub use options::{CorsOrigins, JournalOptions, ServeOptions};
pub use serve::{Control, Served, serve};
pub use supervisor::{EngineProgram, Exit, Launch, NoAnswer, Process};
