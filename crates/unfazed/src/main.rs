//! The program `unfazed`: commands, flags, and what a person or a machine sees of them.
//!
//! | module | what |
//! |---|---|
//! | [`flags`] | flags that several commands share, each declared once |
//! | [`commands`] | one file a command |
//! | [`chat`] | the chat in the terminal: client, input, session |
//! | [`adapters`] | the GPUs of this machine |
//! | [`machine`] | what this machine is, for plans |
//! | [`model`] | opening the model that was named, or the demo model |
//! | [`launch`] | from flags to a running server |
//! | [`service`] | what the service manager is told |
//! | [`report`] | events for machines, greetings for people |
//! | [`logging`] | logs on stderr |
//! | [`stderr`] | what is seen on stderr: logs, lines for people, the loading bar |
//! | [`output`] | a queue and a thread that writes it, so that nobody waits for a reader |
//! | [`failure`] | how the program ends: one line and an exit code |

mod adapters;
mod chat;
mod commands;
mod failure;
mod flags;
mod launch;
mod logging;
mod machine;
mod model;
mod output;
mod report;
mod service;
mod stderr;

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    match stderr::Stderr::start() {
        Ok(stderr) => failure::exit_code(commands::dispatch(std::env::args_os(), &stderr), &stderr),
        Err(error) => {
            // Nobody is left to tell if stderr is closed.
            let _ = writeln!(io::stderr(), "error: cannot start a thread for stderr: {error}");
            ExitCode::FAILURE
        }
    }
}
