//! GGUF: versions 2 and 3, little endian.
//!
//! Layout and keys follow the GGUF specification
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).
//!
//! | module | what |
//! |---|---|
//! | `cursor` | primitive values, each checked against the bytes that are left |
//! | [`value`] | the 13 types of metadata values |
//! | [`metadata`] | keys and values with typed getters |
//! | [`ggml_type`] | the ids of tensor types |
//! | [`header`] | a whole header: metadata and tensors, without tensor data |
//! | `tensors` | tensor descriptions and the checks of their extents |
//! | [`split`] | models in several files |
//! | `config` | the model's shape from metadata |
//! | `tokenizer` | `tokenizer.ggml.*` |

mod config;
mod cursor;
pub mod ggml_type;
pub mod header;
pub mod metadata;
pub mod split;
mod tensors;
mod tokenizer;
pub mod value;

pub use config::model_config;
pub use header::{Header, read_header};
pub use metadata::Metadata;
pub use tokenizer::tokenizer;
pub use value::{Array, Value};

pub(crate) use config::{ROPE_FACTORS, rope_factors};
