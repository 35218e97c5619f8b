//! `unfazed template`: a process that renders chat templates. The server starts it with a socket as standard input; it ends
//! when that socket does.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use unfazed_host::sandbox::{Calls, Needs, give_up_calls, give_up_files};

use crate::flags::{LogFlags, SandboxFlags};
use crate::logging;
use crate::stderr::Stderr;

/// What tells the local time, which templates may ask for.
const TIME_ZONES: [&str; 4] =
    ["/etc/localtime", "/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    #[command(flatten)]
    log: LogFlags,

    #[command(flatten)]
    sandbox: SandboxFlags,
}

pub(crate) fn run(args: &TemplateArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::SERVER, stderr)?;
    let socket = unfazed_wire::link::from_stdin()?;
    if args.sandbox.locked() {
        stderr.give_up_files();
        lock();
    }
    unfazed_server::chat::render_templates(&socket).context("rendering chat templates failed")?;
    Ok(ExitCode::SUCCESS)
}

/// Gives up what the system lets one give up. The engine has told what is missing here.
fn lock() {
    let read = TIME_ZONES.map(Into::into).to_vec();
    let files = give_up_files(&Needs { read, ..Needs::default() }).map(drop);
    for given_up in [files, give_up_calls(Calls::Outside), give_up_calls(Calls::Rings)] {
        if let Err(error) = given_up {
            tracing::debug!("rights that are kept: {error}");
        }
    }
}
