//! The kernels' text: WGSL, made from templates.
//!
//! | file | what |
//! |---|---|
//! | `receipt.rs` | proof that a command buffer ran, after all before it and on the data that was meant |

pub mod receipt;
