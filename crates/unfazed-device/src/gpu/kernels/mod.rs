//! The kernels' text: WGSL, made from templates.
//!
//! | file | what |
//! |---|---|
//! | `step.rs` | what kernels know of a step: rows, pages, tables for rotation |
//! | `kv.rs` | where keys and values are in a layer's buffer, and how they are read |
//! | `heads.rs` | norm and rotation of heads, keys and values into their pages |
//! | `attend_decode.rs` | attention of few rows, each for itself |
//! | `attend_prompt/` | attention of many rows of a sequence, taken together |
//! | `top.rs` | the largest logits of rows |
//! | `receipt.rs` | proof that a command buffer ran, after all before it and on the data that was meant |

pub mod attend_decode;
pub mod attend_prompt;
pub mod heads;
pub mod kv;
pub mod receipt;
pub mod step;
pub mod top;
