//! The kernels' text: WGSL, made from templates.
//!
//! | file | what |
//! |---|---|
//! | `step.rs` | what kernels know of a step: rows, pages, tables for rotation |
//! | `kv.rs` | where keys and values are in a layer's buffer, and how they are read |
//! | `heads.rs` | norm and rotation of heads, keys and values into their pages |
//! | `attend_decode.rs` | attention of few rows, each for itself |
//! | `quantise.rs` | RMS norm, activations as int8 or f16 |
//! | `routing.rs` | which experts a row goes through, which rows an expert has |
//! | `receipt.rs` | the proof that work ran |

pub mod attend_decode;
pub mod heads;
pub mod kv;
pub mod quantise;
pub mod receipt;
pub mod routing;
pub mod step;

use super::kernel::Kernel;
use super::open::Abilities;

/// Kernels of every kind, as an adapter with these abilities would run them: what tests translate for other platforms.
pub fn all(_abilities: &Abilities) -> Vec<Kernel> {
    vec![receipt::receipt()]
}
