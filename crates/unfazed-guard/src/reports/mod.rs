//! Reports that macOS writes: panics, GPU events, ended processes.
//!
//! | module | what |
//! |---|---|
//! | `values` | the values of some keys in JSON that may be torn |
//! | [`parse`] | one report: what it is of, and what it says |
//! | [`when`] | when it was, from its text |
//! | [`signature`] | which panic it is, by metal-guard's names |
//! | [`scan`] | all reports of some folders |

pub mod parse;
pub mod scan;
pub mod signature;
mod values;
pub mod when;

pub use parse::{Crash, Damage, GpuEvent, Kind, Report, parse};
pub use scan::{Abort, Event, Panic, Scan, Unreadable, scan};
pub use signature::Signature;
pub use when::{TimeFrom, When};
