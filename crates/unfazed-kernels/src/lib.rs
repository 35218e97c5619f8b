//! CPU kernels. Every one agrees bit for bit with its scalar definition, on every instruction set, for any batch
//! and any number of threads.
//!
//! | module | what |
//! |---|---|
//! | [`isa`] | which instruction set runs, chosen once at start |
//! | [`panel`] | packed weights: panels of 16 rows, layouts and packing |
//! | [`activations`] | activations rounded to int8 for a block format, gathered into tiles |
//! | [`matmul`] | matrix times tile: a definition, and kernels per instruction set that equal it |
//! | [`lanes`] | sixteen lanes of f32, once per instruction set |
//! | [`vector`] | norms, softmax, rotary embedding, SiLU, exp: one definition, instantiated per instruction set |
//! | [`probe`] | work of known size, to measure the processor and the kernels |
//! | [`attention`] | attention over paged f16 keys and values |

pub mod activations;
pub mod attention;
pub mod isa;
pub mod lanes;
pub mod matmul;
pub mod panel;
pub mod probe;
pub mod vector;

pub use isa::{Isa, IsaError};

/// Rows of a panel, lanes of a vector, partial sums of a reduction.
pub const LANES: usize = 16;
