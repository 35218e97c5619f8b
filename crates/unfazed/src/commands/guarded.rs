//! `unfazed guarded`: becomes a guarded server, or ends one whose guard was killed. Started by `unfazed guard run`.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use unfazed_server::guarding;

#[derive(Debug, Args)]
pub(crate) struct GuardedArgs {
    /// Read numbers of process groups, and end the last one at the end of input
    #[arg(long, conflicts_with = "guard")]
    reap: bool,

    /// The guard's process
    #[arg(required_unless_present = "reap")]
    guard: Option<u32>,

    /// The server
    #[arg(last = true, required_unless_present = "reap")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &GuardedArgs) -> anyhow::Result<ExitCode> {
    if args.reap {
        guarding::reap(io::stdin());
        return Ok(ExitCode::SUCCESS);
    }
    let (program, arguments) = args.command.split_first().context("no server was given")?;
    let error = guarding::become_guarded(args.guard.unwrap_or_default(), program, arguments);
    Err(error).with_context(|| program.to_string_lossy().into_owned())
}
