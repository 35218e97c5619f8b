//! Model families: a forward pass written once against the operations of a device.
//!
//! | module | what |
//! |---|---|
//! | `model` | sources of a checked checkpoint, the loaded model, its forward pass |
//! | `llama` | the family `llama` (SmolLM2) |
//! | `qwen3` | the family `qwen3` |
//! | `qwen3moe` | the family `qwen3moe` |
//! | `attention`, `feed_forward`, `mixture`, `ends` | the pieces that families share |
//! | `names` | what tensors are called in GGUF and Hugging Face files |
//! | `cost` | what a step costs at least |
//! | `catalog` | looking tensors up and checking them against the model's shape |
//!
//! Every piece is a struct over `M` (matrix) and `V` (vector). It is first made of *sources* (where the bytes are; made
//! for all tensors before the first byte is read, so that a file that cannot work is refused at once), then of the
//! device's own types.

mod attention;
mod catalog;
mod cost;
mod decoder;
mod ends;
mod error;
mod feed_forward;
mod llama;
mod mixture;
mod model;
mod names;
mod qwen3;
mod qwen3moe;

pub use cost::{Cost, Matrices};
pub use error::ModelError;
pub use model::{Model, Sources};
