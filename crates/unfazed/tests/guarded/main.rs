//! `unfazed guard run`: other servers, guarded.
//!
//! | module | what |
//! |---|---|
//! | [`made_up`] | a server that acts like others do, and fails like they do |
//! | [`guard`] | a guard that runs, and answers read from it |
//! | `faults` | servers that die, hang and fail in the ways that users report |
//! | `streams` | streams that go on, of each kind |
//! | `door` | who may come in, health, queues, errors |
//! | `ends` | how guards and servers end, and that no server outlives its guard |
//! | `own` | our own server, guarded |
//! | `real` | a real llama-server, where there is one |

#![cfg(target_os = "linux")]
// A test ends by panicking; clippy's exemption covers test functions only, not what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod door;
mod ends;
mod faults;
mod guard;
mod made_up;
mod own;
#[path = "../program/processes.rs"]
mod processes;
mod real;
mod streams;
#[path = "../program/support.rs"]
mod support;
