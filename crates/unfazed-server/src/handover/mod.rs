//! One front after the other, without dropping anything: a new process takes over the listening socket, the memory and every
//! answer; the old one stays to pass on what its clients' connections still wait for.
//!
//! | module | what |
//! |---|---|
//! | `message` | what the two fronts say to each other |
//! | `passage` | where answers are made: here, or by a successor |
//! | `old` | the front that was there first: starts its successor, hands over, passes on |
//! | `new` | the front that takes over |
//! | `process` | the successor as a process |
//! | `roster` | who serves now, for the first of them all |
//!
//! Until the successor says that it has everything, nothing is given up: if it fails, the old front goes on as if nothing
//! had been.

mod message;
mod new;
pub(crate) mod old;
mod passage;
pub(crate) mod process;
mod roster;

pub(crate) use message::{Answer, Answered, Key, Offer, PROTOCOL};
pub use new::TakenOver;
pub(crate) use new::{Predecessor, Taken};
pub(crate) use passage::{Followed, Pass, Passage, Relayed, Successor};
pub use process::{SuccessorProgram, is_successor};
