//! `unfazed engine`: the process that computes. The server starts it with a socket as standard input; it ends when
//! that socket does.

use std::process::ExitCode;

use clap::Args;
use unfazed_engine::EngineError;

use crate::flags::LogFlags;
use crate::logging;
use crate::stderr::Stderr;

#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    log: LogFlags,
}

pub(crate) fn run(args: &EngineArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::SERVER, stderr)?;
    let socket = unfazed_wire::link::from_stdin()?;
    prefer_for_oom_kill();
    match unfazed_engine::process::run(socket) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The server has been told and says it, once.
        Err(EngineError::Load { .. }) => Ok(ExitCode::FAILURE),
        Err(error) => Err(anyhow::Error::new(error).context("the engine failed")),
    }
}

/// When memory runs out the kernel should take the engine, which can be started again, and not the server, which
/// holds every client's connection. Raising one's own score needs no privilege; where it fails nothing is lost.
fn prefer_for_oom_kill() {
    #[cfg(target_os = "linux")]
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "800") {
        tracing::debug!(%error, "cannot raise oom_score_adj");
    }
}
