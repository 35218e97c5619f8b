//! The kernels' text: WGSL, made from templates.
//!
//! | file | what |
//! |---|---|
//! | `format.rs` | reads weights from packed panels, for every block format |
//! | `table.rs` | looks codes up in small tables, four at a time |
//! | `shard.rs` | parts of a matrix or stack of experts; the scalars of a dispatch |
//! | `embed.rs` | rows of a table by token |
//! | `activations.rs` | rows on their way into products: RMS norm, rounding to int8 |
//! | `product.rs` | matrices times few rows: the loop that the decode kernels share |
//! | `bindings.rs` | bindings of a kernel, declared and listed in the same order |
//! | `matvec.rs` | matrices times 1 to 8 rows |
//! | `experts.rs` | the feed-forward network: experts that rows chose, or a dense one |
//! | `step.rs` | what kernels know of a step: rows, pages, tables for rotation |
//! | `kv.rs` | where keys and values are in a layer's buffer, and how they are read |
//! | `heads.rs` | norm and rotation of heads, keys and values into their pages |
//! | `attend_decode.rs` | attention of few rows, each for itself |
//! | `quantise.rs` | RMS norm, activations as int8 or f16 |
//! | `tile/` | many rows times a matrix |
//! | `routing.rs` | which experts a row goes through, which rows an expert has |
//! | `grouped.rs` | feed-forward networks of many rows |
//! | `attend_prompt/` | attention of many rows of a sequence, taken together |
//! | `receipt.rs` | the proof that work ran |

mod activations;
pub mod attend_decode;
pub mod attend_prompt;
mod bindings;
pub mod embed;
pub mod experts;
pub mod format;
pub mod grouped;
pub mod heads;
pub mod kv;
pub mod matvec;
mod product;
pub mod quantise;
pub mod receipt;
pub mod routing;
pub mod shard;
pub mod step;
mod table;
pub mod tile;
