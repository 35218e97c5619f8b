//! Model files: what a checkpoint contains and where, without touching tensor data.
//!
//! | module | what |
//! |---|---|
//! | [`source`] | bytes that can be read at an offset: a file, or memory |
//! | [`identity`] | what tells that a file is the one that was opened |
//! | [`tensor`] | extents, shapes and tensor descriptions |
//! | [`block`] | block formats (Q4_0, Q4_K, ...): sizes, layout, dequantisation |
//! | [`gguf`] | GGUF v2 and v3 headers, split files |
//! | [`huggingface`] | `config.json`, safetensors headers, `tokenizer.json` |
//! | [`kv`] | how keys and values are kept |
//! | [`config`] | a model's shape, the same for both layouts |
//! | [`checkpoint`] | a model's files opened and read: the entry point |
//! | [`headers`] | the part of a checkpoint that another process needs to compute the model |
//!
//! Everything here parses bytes from outside: every size and offset is checked before it is used, allocation
//! is bounded by what the file holds, and nothing panics on bad input.

pub mod block;
pub mod checkpoint;
pub mod config;
mod error;
pub mod gguf;
pub mod headers;
pub mod huggingface;
pub mod identity;
pub mod kv;
pub mod source;
pub mod tensor;

pub use block::BlockFormat;
pub use checkpoint::{Checkpoint, TokenizerSource};
pub use config::ModelConfig;
pub use error::FormatError;
pub use headers::Headers;
pub use identity::Identity;
pub use kv::{KvType, KvTypes};
pub use source::ByteSource;
pub use tensor::{Extent, FileId, TensorInfo};
