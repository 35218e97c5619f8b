//! The program `unfazed`: commands, flags, and what a person or a machine sees of them.
//!
//! | module | what |
//! |---|---|
//! | [`flags`] | flags that several commands share, each declared once |
//! | [`commands`] | one file a command |
//! | [`chat`] | the chat in the terminal: client, input, session |
//! | [`model`] | opening the model that was named, or the demo model |
//! | [`launch`] | from flags to a running server |
//! | [`report`] | events for machines, progress and greetings for people |
//! | [`logging`] | logs on stderr |
//! | [`failure`] | how the program ends: one line and an exit code |

mod chat;
mod commands;
mod failure;
mod flags;
mod launch;
mod logging;
mod model;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    failure::exit_code(commands::dispatch(std::env::args_os()))
}
