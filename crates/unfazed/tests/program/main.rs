//! The real program, as people and programs meet it.
//!
//! | module | what |
//! |---|---|
//! | [`support`] | the program started, watched and ended; a plain HTTP client |
//! | `streams` | streamed answers, put together and compared |
//! | `processes` | processes as Linux shows them |
//! | `command_line` | help, usage errors, errors |
//! | `serve` | events, answers, signals, the engine's end |
//! | `front` | the front killed or stopped |
//! | `unread` | a server whose output nobody reads |
//! | `memory` | memory that outlives an engine, and who may write it |
//! | `run` | the chat in pipes |
//! | `plan` | plans of models of any size, refusals, control groups |
//! | `bench` | measurements and their output |
//! | `storage` | measuring disks, replaying traces |
//! | `storage` | disks measured, traces replayed |
//! | `faulty_storage` | a model on a file system that is slow, fails and goes away |
//! | `damaged` | damaged model files |
//! | `bad_requests` | requests that are wrong, too large, too slow or left, and those that follow them |

// A test ends by panicking; clippy's exemption covers test functions only, not what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_requests;
mod bench;
mod command_line;
mod damaged;
#[cfg(target_os = "linux")]
mod faulty_storage;
#[cfg(target_os = "linux")]
mod front;
#[cfg(target_os = "linux")]
mod memory;
mod plan;
#[cfg(target_os = "linux")]
mod processes;
mod run;
mod serve;
mod storage;
mod streams;
mod support;
#[cfg(target_os = "linux")]
mod unread;
