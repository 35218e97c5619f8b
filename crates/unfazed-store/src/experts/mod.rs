//! Experts that do not all fit into memory.
//!
//! | module | what |
//! |---|---|
//! | [`unit`] | which experts there are |
//! | [`source`] | where they are in the files, and how one is laid out in a slot |
//! | [`slots`] | memory for slots |
//! | [`store`] | experts in slots, read when they are missed |
//! | `state` | what is in which slot, and what is done next |
//! | `fill` | reading and packing one |
//! | [`giving_up`] | giving slots up when memory runs out |
//! | `look_ahead` | how far the next layer's router is to be trusted |
//! | [`supply`] | the experts of a layer for one step, as they come |
//! | `ring` | memory for experts that get no slot |
//! | [`profile`] | how often each was used, kept from run to run |
//! | [`pre_fill`] | filling empty slots at start |
//! | [`keeper`] | saving the profile now and then |
//! | [`policy`] | which expert leaves when another one comes |
//! | [`trace`] | which experts each step used, in a file |
//! | [`replay`] | what a policy would have done with a trace |

mod fill;
pub mod giving_up;
pub mod keeper;
mod look_ahead;
pub mod policy;
pub mod pre_fill;
pub mod profile;
pub mod replay;
mod ring;
pub mod slots;
pub mod source;
mod state;
pub mod store;
pub mod supply;
pub mod trace;
pub mod unit;
mod varint;

pub use giving_up::GivenUp;
pub use keeper::ProfileKeeper;
pub use policy::{Policy, PolicyKind};
pub use profile::{Profile, ProfileKey};
pub use slots::SlotMemory;
pub use source::{ExpertSources, LayerExperts};
pub use state::ExpertCounts;
pub use store::{ExpertConfig, ExpertStore};
pub use supply::{ExpertPin, Order, Supplied, Supply};
pub use unit::{ExpertId, Unit, Units};
