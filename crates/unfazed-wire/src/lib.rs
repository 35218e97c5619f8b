//! What front and engine say to each other, over one socket pair.
//!
//! | module | what |
//! |---|---|
//! | [`message`] | the messages, both ways |
//! | [`frame`] | length-prefixed frames, bounded before anything is allocated |
//! | [`link`] | a socket that carries frames, with descriptors beside the first one |
//! | [`placement`] | which device computes which part of a model |
//! | [`memory`] | memory that outlives an engine: made by the front, mapped by one engine after the other |
//!
//! The front is the server: it owns clients, tokenizer and templates. The engine sees token ids only. Both sides treat
//! the other's bytes as untrusted: a frame over [`frame::MAX_BYTES`] or one that does not decode ends the link.

pub mod frame;
pub mod link;
pub mod memory;
pub mod message;
pub mod placement;

pub use message::{
    Failure, FailureKind, FaultReport, FinishReason, GivenUp, LoadFailure, LoadFault,
    MOST_REPEAT_STOP_TOKENS, Penalties, Progress, ReadyInfo, RequestId, Sampling, SandboxInfo, Start,
    StreamedExperts, Submit, Threads, Timings, ToEngine, ToFront, TokenEvent, TokenLogprobs,
};
pub use placement::{GpuAdapter, GpuInUse, Gpus, LayerPlace, Place, Placement};

/// Which build this is: version, profile and a hash of this crate's sources. Front and engine must agree, since a
/// message's encoding is its field order.
pub const BUILD_ID: &str = env!("UNFAZED_BUILD_ID");
