//! Things around an engine that uses a GPU: whether the machine may be used again after a kernel panic, what reports of panics
//! and GPU events say, and the lock that lets one process at a time give work to a GPU.
//!
//! Words, files, thresholds and JSON keys are those of [metal-guard](https://pypi.org/project/metal-guard/), so that its scripts
//! go on working (`docs/guard.md`). Nothing here prints or ends the process; time is passed in.
//!
//! | module | what |
//! |---|---|
//! | [`places`] | where reports and state are |
//! | [`settings`] | what the environment says |
//! | `outside_file` | files that others write |
//! | [`local_time`] | times as metal-guard writes them |
//! | [`reports`] | reports of panics, GPU events and aborts: read, classified, dated |
//! | [`state`] | the sentinel, the acknowledgement, the breaker |
//! | [`gate`] | whether work on a GPU may begin |
//! | [`breadcrumb`] | the log of what was about to be done, and what of it never ended |
//! | [`postmortem`] | everything about a panic in one folder |
//! | [`status`] | what is known, as JSON |
//! | [`shell`] | the block in a shell's profile that asks the gate first |
//! | [`lock`] | one process at a time on a GPU |

pub mod breadcrumb;
pub mod gate;
pub mod local_time;
pub mod lock;
mod outside_file;
pub mod places;
pub mod postmortem;
pub mod reports;
pub mod settings;
pub mod shell;
pub mod state;
pub mod status;

pub use gate::{Verdict, evaluate};
pub use places::{NoHome, Places};
pub use settings::Settings;
