//! `unfazed engine`: the process that computes. The server starts it with a socket as standard input; it ends when
//! that socket does.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use unfazed_engine::EngineError;

use crate::adapters::Answer;
use crate::failure::OutputClosed;
use crate::flags::{LogFlags, SandboxFlags};
use crate::logging;
use crate::stderr::Stderr;

/// What a Rust program ends with whose main thread panicked.
const PANICKED: u8 = 101;

#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Write what GPUs there are as JSON, and end
    #[arg(long)]
    adapters: bool,

    #[command(flatten)]
    log: LogFlags,

    #[command(flatten)]
    sandbox: SandboxFlags,
}

pub(crate) fn run(args: &EngineArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::SERVER, stderr)?;
    if args.adapters {
        let answer = serde_json::to_vec(&Answer::of_drivers())?;
        io::stdout().write_all(&answer).context(OutputClosed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let socket = unfazed_wire::link::from_stdin()?;
    prefer_for_oom_kill();
    let locked = args.sandbox.locked();
    if locked {
        stderr.give_up_files();
    }
    #[cfg(feature = "fault-plan")]
    let ended = unfazed_sim::process::run(socket, locked);
    #[cfg(not(feature = "fault-plan"))]
    let ended = unfazed_engine::process::run(socket, locked);
    match ended {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The server has been told and says it, once.
        Err(EngineError::Load { .. } | EngineError::Device) => Ok(ExitCode::FAILURE),
        // The code of a panic, though this thread has none.
        Err(error @ EngineError::Panicked) => {
            stderr.write(format!("error: the engine failed: {error}\n"));
            Ok(ExitCode::from(PANICKED))
        }
        Err(error) => Err(anyhow::Error::new(error).context("the engine failed")),
    }
}

/// When memory runs out the kernel should take the engine, which can be started again, and not the server, which
/// holds every client's connection. Raising one's own score needs no privilege; where it fails nothing is lost.
fn prefer_for_oom_kill() {
    #[cfg(target_os = "linux")]
    if let Err(error) =
        std::fs::write("/proc/self/oom_score_adj", unfazed_host::oom::ENGINE_SCORE.to_string())
    {
        tracing::debug!(%error, "cannot raise oom_score_adj");
    }
}
