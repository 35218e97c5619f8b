//! The ledger: what fits where, decided before anything is allocated. No I/O, no clock, no machine: a pure function
//! of the model's shape, the machine's numbers and the settings.
//!
//! | module | what |
//! |---|---|
//! | [`units`] | bytes and tokens as types |
//! | [`machine`] | the machine's numbers: memory, cores, measured rates |
//! | [`settings`] | what a user may ask for |
//! | [`weights`] | a model's weights: those that stay in memory, and experts |
//! | [`needs`] | what a model needs, in bytes |
//! | [`arena`] | where activations are |
//! | [`experts`] | slots for experts, the ring, the staging of reads |
//! | `ask` | settings with defaults filled in, checked and changed |
//! | `fill` | memory filled goal by goal |
//! | `choose` | which goals, in which order |
//! | [`gpu`] | which layers are on GPUs |
//! | [`predict`] | tokens a second, and what bounds them |
//! | [`refusal`] | the condition that failed, and what would pass |
//! | [`ledger`] | the plan itself |

pub mod arena;
mod ask;
mod choose;
pub mod experts;
mod fill;
pub mod gpu;
pub mod ledger;
pub mod machine;
pub mod needs;
pub mod predict;
pub mod refusal;
pub mod settings;
pub mod units;
pub mod weights;

pub use arena::Arena;
pub use experts::Experts;
pub use gpu::{CpuMoe, GpuLayers, GpuPlan, GpuSettings, HostCopy, Split};
pub use ledger::{Plan, plan};
pub use machine::Machine;
pub use predict::Prediction;
pub use refusal::Refusal;
pub use settings::{ExpertCache, Settings, StreamExperts};
pub use units::{Bytes, Tokens};
pub use weights::Weights;

/// Positions in a KV page: two panels of 16 keys. Small enough that a short request wastes little, large enough that
/// a page table stays short (a context of 128 Ki has 4,096 pages).
pub const PAGE_TOKENS: usize = 32;
