//! `unfazed restart`: a running server starts its program anew and hands everything over.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::chat::client::{self, ClientError};
use crate::chat::endpoint::Endpoint;
use crate::failure::OutputClosed;
use crate::stderr::Stderr;

/// How often the server is asked.
const EVERY: Duration = Duration::from_millis(50);
/// How long it may be silent while one process follows the other.
const SILENCE: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  unfazed restart                                 the server on http://127.0.0.1:8080
  unfazed restart --url http://127.0.0.1:9000     another one on this machine
  kill -USR2 PID                                  the same, without waiting for it

The server starts its program's file again with the same arguments: replace the file first to
update. Running requests go on, clients see a pause at most. If the new program cannot start,
the old one goes on as if nothing had been.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RestartArgs {
    /// The server's address; it must run on this machine
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,

    /// Longest time to wait for the new program, which may have to load a model; 0: do not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    wait: u64,
}

/// Who answers, and how often another one failed to.
struct Front {
    pid: i32,
    failed: u64,
}

pub(crate) fn run(args: &RestartArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    let endpoint = Endpoint::parse(&args.url, None)?;
    if !is_this_machine(endpoint.address().0) {
        bail!("--url {}: a server is restarted on the machine that it runs on", args.url);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the threads of this command")?;
    let before = runtime.block_on(front(&endpoint))?;
    let pid = Pid::from_raw(before.pid).with_context(|| format!("{} names no process", args.url))?;
    kill_process(pid, Signal::USR2).with_context(|| {
        format!("process {} cannot be told: is it another user's, or in a container?", before.pid)
    })?;
    let begun = Instant::now();
    stderr.status(&format!("Waiting for a new front beside process {}", before.pid));
    let after = runtime.block_on(follow(&endpoint, &before, Duration::from_secs(args.wait)));
    stderr.status("");
    let mut out = std::io::stdout().lock();
    match after? {
        Some(after) => {
            let seconds = begun.elapsed().as_secs_f64();
            writeln!(out, "process {} took over from {} after {seconds:.1} s", after.pid, before.pid)
        }
        None => writeln!(out, "process {} was told to start anew", before.pid),
    }
    .context(OutputClosed)?;
    Ok(ExitCode::SUCCESS)
}

fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

async fn front(endpoint: &Endpoint) -> anyhow::Result<Front> {
    let health = client::health(endpoint).await?;
    let pid = health.pointer("/front/pid").and_then(Value::as_i64).and_then(|pid| i32::try_from(pid).ok());
    let failed = health.pointer("/front/failed_restarts").and_then(Value::as_u64);
    let (host, port) = endpoint.address();
    let Some((pid, failed)) = pid.zip(failed) else {
        bail!("what answers at {host}:{port} is no unfazed server that can be restarted");
    };
    Ok(Front { pid, failed })
}

/// The front that took over; `None` if there was no time to wait for it.
async fn follow(endpoint: &Endpoint, before: &Front, limit: Duration) -> anyhow::Result<Option<Front>> {
    let begun = Instant::now();
    let mut heard = begun;
    if limit.is_zero() {
        return Ok(None);
    }
    loop {
        match front(endpoint).await {
            Ok(now) if now.pid != before.pid => return Ok(Some(now)),
            Ok(now) if now.failed > before.failed => {
                bail!("the new program did not take over, and nothing has changed; the server's log says why")
            }
            Ok(_) => heard = Instant::now(),
            // The new front's engine may still have to load.
            Err(error) if heard.elapsed() > limit.max(SILENCE) => return Err(error),
            Err(error) if is_loading(&error) => {}
            Err(error) if heard.elapsed() > SILENCE => return Err(error),
            Err(_) => {}
        }
        if begun.elapsed() > limit {
            bail!("no new front after {} s; the server goes on, its log says why", limit.as_secs());
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// A server that is there and loads its model.
fn is_loading(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::Refused { .. }))
}
