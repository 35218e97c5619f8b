//! The ledger: what fits where, decided before anything is allocated. No I/O, no clock, no machine: a pure function
//! of the model's shape, the machine's numbers and the settings.
//!
//! | module | what |
//! |---|---|
//! | [`units`] | bytes and tokens as types |
//! | [`settings`] | what a user may ask for |
//! | [`needs`] | what a model needs, in bytes |
//! | [`ledger`] | the plan itself and the refusals |

pub mod ledger;
pub mod needs;
pub mod settings;
pub mod units;

pub use ledger::{Machine, Plan, Refusal, plan};
pub use settings::Settings;
pub use units::{Bytes, Tokens};

/// Positions in a KV page: two panels of 16 keys. Small enough that a short request wastes little, large enough that
/// a page table stays short (a context of 128 Ki has 4,096 pages).
pub const PAGE_TOKENS: usize = 32;
