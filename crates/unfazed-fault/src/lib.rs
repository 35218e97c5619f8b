//! Faults: what they are called, how a text or an exit tells them, and what follows from each. No I/O, no clock, no
//! threads: time is passed in, and decisions are values.
//!
//! | module | what |
//! |---|---|
//! | [`class`] | the classes: name, whose fault, what it means |
//! | [`parser`] | the class of a message, a log or a report |
//! | [`exit`] | the class of an ended process |
//! | [`policy`] | what follows: the table, and the decision for the next attempt |
//! | [`ladder`] | one step down to a smaller placement, and up again after a quiet time |
//! | [`generation`] | an error belongs to one generation of a device |
//! | [`backoff`] | how long to wait before the next engine |

pub mod backoff;
pub mod class;
pub mod exit;
pub mod generation;
pub mod ladder;
pub mod parser;
pub mod policy;

pub use backoff::Backoff;
pub use class::{Class, Hint, Origin, Severity, UnknownName};
pub use exit::{Exit, of_exit};
pub use generation::{Generation, Latch, Unusable};
pub use ladder::{Change, Ladder, Quiet};
pub use parser::{Report, classify};
pub use policy::{Action, Decision, POLICY, Policy};
