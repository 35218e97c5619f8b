//! Vector work between the matrices: one definition each, instantiated per instruction set.
//!
//! Sums over a vector are sixteen partial sums (lane `i` adds elements `i`, `i + 16`, ... in order) and one fixed tree.
//! Values that are not finite pass through to the result; nothing panics on them.
//!
//! | file | what |
//! |---|---|
//! | `scalar.rs` | exp, ln, sin and cos in f64, for tables and single values |
//! | `exponential.rs` | exp of sixteen lanes |
//! | `elementwise.rs` | SiLU, scaled addition |
//! | `norm.rs` | RMS norm |
//! | `softmax.rs` | softmax, log-sum-exp |
//! | `rope.rs` | rotary position embedding |
//! | `router.rs` | choice of experts |

mod elementwise;
pub(crate) mod exponential;
mod norm;
mod rope;
mod router;
pub mod scalar;
mod softmax;

pub use elementwise::{add_scaled, silu_mul};
pub use norm::rms_norm;
pub use rope::{RopeFrequencies, rotate};
pub use router::{Choice, choose_experts};
pub use softmax::{log_sum_exp, softmax};
