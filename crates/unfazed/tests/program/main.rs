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
//! | `gpu_lock` | one server at a time on a GPU |
//! | `guard` | metal-guard's commands, as its callers use them |
//! | `group` | a memory control group, and processes that take its memory |
//! | `reports` | what users of other servers report, acted out |
//! | `short_memory` | memory that runs out |
//! | `unread` | a server whose output nobody reads |
//! | `memory` | memory that outlives an engine, and who may write it |
//! | `repetition` | answers that say the same again and again |
//! | `run` | the chat in pipes |
//! | `plan` | plans of models of any size, refusals, control groups |
//! | `bench` | measurements and their output |
//! | `doctor` | this machine, audited |
//! | `gpu` | GPUs as they are found, named and planned for |
//! | `service` | what a service manager is told, and `unfazed health` |
//! | `packaging` | units, launch agent and container file fit the program |
//! | `storage` | disks measured, traces replayed |
//! | `faulty_storage` | a model on a file system that is slow, fails and goes away |
//! | `expert_model` | a model of many small experts, servers of it and requests to them |
//! | `streamed_experts` | experts that are read while requests run: the same answers, traces, profiles, killed engines |
//! | `faulty_experts` | the same on a file system that stalls, fails and goes away |
//! | `bad_experts` | experts that cannot be read, or are not what they were |
//! | `damaged` | damaged model files |
//! | `templates` | chat templates that do not end, or grow for ever |
//! | `secrets` | what is in no log, event, metric or file |
//! | `bad_requests` | requests that are wrong, too large, too slow or left, and those that follow them |

// A test ends by panicking; clippy's exemption covers test functions only, not what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(target_os = "linux")]
mod bad_experts;
mod bad_requests;
mod bench;
mod command_line;
mod damaged;
mod doctor;
#[cfg(target_os = "linux")]
mod expert_model;
#[cfg(target_os = "linux")]
mod faulty_experts;
#[cfg(target_os = "linux")]
mod faulty_storage;
#[cfg(target_os = "linux")]
mod front;
mod gpu;
#[cfg(target_os = "linux")]
mod gpu_lock;
#[cfg(target_os = "linux")]
mod group;
mod guard;
#[cfg(target_os = "linux")]
mod journal;
#[cfg(target_os = "linux")]
mod memory;
mod packaging;
mod plan;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod repetition;
#[cfg(target_os = "linux")]
mod reports;
#[cfg(target_os = "linux")]
mod restart;
#[cfg(target_os = "linux")]
mod resumable;
mod run;
#[cfg(target_os = "linux")]
mod secrets;
mod serve;
#[cfg(target_os = "linux")]
mod service;
#[cfg(target_os = "linux")]
mod short_memory;
mod storage;
#[cfg(target_os = "linux")]
mod streamed_experts;
mod streams;
mod support;
#[cfg(target_os = "linux")]
mod templates;
#[cfg(target_os = "linux")]
mod unread;
