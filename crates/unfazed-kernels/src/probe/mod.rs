//! What a processor can do, and what kernels make of it: work of known size for one thread, to be timed by the caller.
//!
//! | module | what |
//! |---|---|
//! | [`dot`] | integer dot products alone: the limit of a prompt |
//! | [`read`] | a plain read of memory: the limit of decode |
//! | [`weights`] | matrices of random weights, and rows to multiply them by |

#![allow(unsafe_code)]

pub mod dot;
pub mod read;
pub mod weights;

pub use dot::dot;
pub use read::read;
pub use weights::{Weights, tile};
