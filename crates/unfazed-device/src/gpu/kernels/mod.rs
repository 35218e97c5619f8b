//! The kernels' text: WGSL, made from templates.
//!
//! | file | what |
//! |---|---|
//! | `format.rs` | reads weights from packed panels, for every block format |
//! | `table.rs` | looks codes up in small tables, four at a time |
//! | `shard.rs` | parts of a matrix or stack of experts; the scalars of a dispatch |
//! | `embed.rs` | rows of a table by token |
//! | `quantise.rs` | RMS norm, activations as int8 or f16 |
//! | `tile/` | many rows times a matrix |
//! | `routing.rs` | which experts a row goes through, which rows an expert has |
//! | `grouped.rs` | feed-forward networks of many rows |

pub mod embed;
pub mod format;
pub mod grouped;
pub mod quantise;
pub mod routing;
pub mod shard;
mod table;
pub mod tile;
