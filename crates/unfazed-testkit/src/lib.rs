//! Tiny models, synthetic models and damaged files for tests.
//!
//! | module | what |
//! |---|---|
//! | [`rng`] | random numbers from a seed and a label |
//! | [`shape`] | shapes of models: presets after real ones, and tiny ones |
//! | [`tensors`] | which tensors a model of a shape has |
//! | [`mix`] | which block format each tensor gets |
//! | [`gguf_writer`] | GGUF headers from metadata and tensor descriptions |
//! | [`metadata`] | GGUF metadata from a model's shape |
//! | [`vocabulary`] | a tiny byte-level vocabulary, or a copy of a file's |
//! | [`quantise`] | floats to blocks, plainly |
//! | [`random_blocks`] | random blocks whose weights have a given spread, fast |
//! | [`tiny`] | tiny models in memory, as GGUF files and as Hugging Face directories |
//! | [`router_skew`] | routers that use some experts more than others |
//! | [`synthetic`] | synthetic models of any size, streamed to disk |
//! | `fuse` | a file system that is slow, fails and goes away as it is told to (feature `fuse`, Linux) |
//! | [`damage`] | damaged copies of a GGUF file, one fault each |

pub mod damage;
mod error;
#[cfg(all(feature = "fuse", target_os = "linux"))]
pub mod fuse;
pub mod gguf_writer;
mod huggingface_writer;
pub mod metadata;
pub mod mix;
pub mod quantise;
pub mod random_blocks;
pub mod rng;
pub mod router_skew;
pub mod shape;
pub mod synthetic;
pub mod tensors;
pub mod tiny;
pub mod vocabulary;

pub use error::TestkitError;
pub use mix::Mix;
pub use router_skew::RouterSkew;
pub use synthetic::SyntheticModel;
pub use tiny::TinyModel;
