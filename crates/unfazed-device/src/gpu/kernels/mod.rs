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

mod activations;
mod bindings;
pub mod embed;
pub mod experts;
pub mod format;
pub mod matvec;
mod product;
pub mod shard;
mod table;
