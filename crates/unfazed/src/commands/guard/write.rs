//! `status-write`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use unfazed_host::cache;

use super::look::Report;
use super::{Guard, printable};

/// After so many writes in a row that failed, pauses are longer.
const FAILURES: u32 = 10;
/// So many times as long.
const LONGER: u32 = 5;

#[derive(Debug, Args)]
pub(super) struct StatusWriteArgs {
    /// File to write [default: ~/.cache/metal-guard/status.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Seconds between writes
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = interval)]
    interval: Duration,

    /// Write once and end: with 1 if that failed
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("not a number of seconds from 0.1 to 86400".to_owned()),
    }
}

pub(super) fn run(guard: &Guard<'_>, args: &StatusWriteArgs) -> anyhow::Result<ExitCode> {
    let out = args.out.clone().map_or_else(|| guard.places().map(|places| places.status()), Ok)?;
    let shown = || printable(&out.display().to_string());
    if args.once {
        write(guard, &out).with_context(|| shown() + " cannot be written")?;
        guard.print(|| json!({"out": out, "mode": "once"}), || format!("wrote snapshot to {}\n", shown()))?;
        return Ok(ExitCode::SUCCESS);
    }
    guard.warn(&format!("status-write: {} every {} s", out.display(), args.interval.as_secs_f64()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot watch for signals")?.block_on(write_again_and_again(
        guard,
        &out,
        args.interval,
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Until Ctrl-C or SIGTERM.
async fn write_again_and_again(guard: &Guard<'_>, out: &Path, interval: Duration) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for signals")?;
    let mut failures = 0;
    loop {
        let now = Guard {
            places: guard.places.clone(),
            settings: guard.settings.clone(),
            now: Timestamp::now(),
            ..*guard
        };
        match write(&now, out) {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                guard.warn(&format!("{} cannot be written ({failures} times): {error}", out.display()));
            }
        }
        let pause = if failures >= FAILURES { interval * LONGER } else { interval };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        }
    }
}

fn write(guard: &Guard<'_>, out: &Path) -> io::Result<()> {
    let report = Report::of(guard, 72.0, 20).map_err(io::Error::other)?;
    cache::write(out, format!("{:#}\n", report.snapshot(guard).file()).as_bytes())
}
