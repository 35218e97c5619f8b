//! A model whose layers are computed in several places: on the processor and on GPUs.
//!
//! Where a layer is computed is a value, [`Placement`](unfazed_wire::Placement), that is given when weights are loaded; every
//! handle of a weight says from then on where it is. What moves between places is the *residual*: it is taken to where the next
//! weights are. A GPU is asked to work only when all that it reads is there, and waited for when the processor goes on.
//!
//! | file | what |
//! |---|---|
//! | `device.rs` | the operations: each goes to where its weights are |
//! | `weights.rs` | handles of weights, and loading them |
//! | `settle.rs` | which positions' keys and values have come from a GPU to the pages in shared memory |

mod device;
mod settle;
mod weights;

pub use device::{PlacedConfig, PlacedDevice};
pub use weights::{PlacedExperts, PlacedMatrix, PlacedVector};
