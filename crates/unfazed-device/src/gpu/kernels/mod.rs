//! The kernels' text: WGSL, made from templates.
//!
//! | file | what |
//! |---|---|
//! | `quantise.rs` | RMS norm, activations as int8 or f16 |
//! | `routing.rs` | which experts a row goes through, which rows an expert has |

pub mod quantise;
pub mod routing;
