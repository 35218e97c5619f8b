//! Packed weights.
//!
//! A matrix is cut into panels of 16 rows over all columns; the last panel is filled up with zero weights. Inside
//! a panel a row is a lane: what lies side by side in a row of the file lies 16 lanes apart here, so that one
//! vector instruction does the same step for 16 rows and no sum ever crosses lanes. Most
//! formats have the bits per weight of the file (and up to 63 bytes of padding, so that every panel starts on a cache
//! line); the codebook formats have more, see `layout`.
//!
//! | module | what |
//! |---|---|
//! | `layout` | where everything is, byte by byte |
//! | `pack` | from rows as they are in the file to a panel |
//! | `unpack` | from a panel back to codes, scales and weights: what the bytes mean |
//! | `spec` | what the codes and scales of each format are |
//! | `matrix` | a packed matrix, borrowed |
//! | `buffer` | memory that starts on a cache line |
//! | `half` | floats of 16 and 8 bits to f32, exact |
//!
//! [`Geometry`] and [`Spec`] say all that kernels elsewhere (those of GPUs) need to read the same bytes.

// Some parts serve only kernels of one architecture.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]

mod buffer;
mod half;
mod layout;
mod matrix;
mod pack;
mod spec;
mod unpack;

pub use buffer::PanelBuffer;
pub(crate) use half::{E4M3_FACTOR, bf16_lanes, e4m3_as_f16};
pub use layout::{Geometry, PanelLayout};
pub(crate) use layout::{LINE, SCALES};
pub use matrix::{PackedMatrix, PackedMatrixError, unpack_row};
pub use pack::pack_panel;
pub use spec::{Scales, Spec, Values};
pub(crate) use unpack::{CHUNK, Unpacked, small_float_scales, unpack_columns};
