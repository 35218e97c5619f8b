//! The kernels' text: WGSL, made from templates.
//!
//! | file | what |
//! |---|---|
//! | `receipt.rs` | the proof that work ran |

pub mod receipt;

use super::kernel::Kernel;
use super::open::Abilities;

/// Kernels of every kind, as an adapter with these abilities would run them: what tests translate for other platforms.
pub fn all(_abilities: &Abilities) -> Vec<Kernel> {
    vec![receipt::receipt()]
}
