//! `unfazed health`: whether a server answers, for container engines, scripts and people.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use crate::chat::client;
use crate::chat::endpoint::Endpoint;
use crate::failure::OutputClosed;
use crate::flags::LogFlags;
use crate::logging;
use crate::stderr::Stderr;

const EXAMPLES: &str = "\
Examples:
  unfazed health                              the server on this machine's port 8080
  unfazed health --url http://10.0.0.7:9000   another one
  unfazed health --json                       all that /health says
  until unfazed health; do sleep 1; done      wait until a model is loaded

Exit codes: 0 it answers, 1 it does not (stderr says why), 2 usage. It needs no key.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HealthArgs {
    /// The server's address
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,

    /// How long it may take to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,

    /// For programs: the server's own answer, one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    log: LogFlags,
}

pub(crate) fn run(args: &HealthArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::CHAT, stderr)?;
    let endpoint = Endpoint::parse(&args.url, None)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start a client")?;
    let limit = Duration::from_secs(args.timeout);
    let answer = runtime.block_on(async { tokio::time::timeout(limit, client::health(&endpoint)).await });
    let health = match answer {
        Ok(health) => health?,
        Err(_) => bail!("{} gives no answer within {} s", endpoint.authority(), args.timeout),
    };
    show(args.json, &health).context(OutputClosed)?;
    Ok(ExitCode::SUCCESS)
}

fn show(json: bool, health: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        return writeln!(out, "{health}");
    }
    let state = health.get("state").and_then(Value::as_str).unwrap_or("ok");
    let restarts = health.get("restarts").and_then(Value::as_u64).unwrap_or(0);
    // It comes from another program.
    let state: String = state.chars().filter(|c| !c.is_control()).take(40).collect();
    match restarts {
        0 => writeln!(out, "{state}"),
        1 => writeln!(out, "{state}, its engine was started anew once"),
        _ => writeln!(out, "{state}, its engine was started anew {restarts} times"),
    }
}
