//! Activations: rounded to int8 once per row, then laid out for the rows that meet one matrix.
//!
//! | module | what |
//! |---|---|
//! | `quantise` | the rounding: what an int8 activation is |
//! | `rows` | rows that are rounded, each by any thread |
//! | `tile` | up to 64 rows laid out block by block for one block format |

// Some parts serve only kernels of one architecture.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]

mod quantise;
mod rows;
mod tile;

pub use quantise::Grain;
pub use rows::{QuantisedRows, RowSlot, SharedRows};
pub use tile::{TILE_ROWS, Tile, tile_parts};
