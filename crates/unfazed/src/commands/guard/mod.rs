//! `unfazed guard`: metal-guard's commands, with its words, files, thresholds and exit codes (`docs/guard.md`).
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the command line, and how it ends |
//! | `gate.rs` | `panic-gate`, `ack` |
//! | `look.rs` | `status`, `panics`, `breadcrumb`, `mode`: one report, four views |
//! | `orphans.rs` | `orphan-scan` |
//! | `bundle.rs` | `postmortem` |
//! | `write.rs` | `status-write` |
//! | `install.rs` | `install` |
//! | `run.rs` | `run`: another server, guarded |

mod bundle;
mod gate;
mod install;
mod look;
mod orphans;
mod run;
mod write;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::Value;
use unfazed_guard::{NoHome, Places, Settings};

use crate::failure::{self, OutputClosed};
use crate::stderr::Stderr;

/// What usage errors end with here, as for metal-guard: 2 is a verdict.
pub(crate) const USAGE: u8 = 64;
/// A question that cannot be answered: 0, 1 and 2 are answers.
const NO_ANSWER: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  unfazed guard                         what happened on this machine, in short
  unfazed guard panic-gate              may work on the GPU begin? ends with 0, 2, or 3 and more
  unfazed guard ack                     somebody has looked: ends a lockout
  unfazed guard panics --since-hours 24 panics of the last day
  unfazed guard postmortem ./bundle     all about a panic in one folder
  unfazed guard install --print         the block for a shell's profile that asks the gate

In a script that launchd starts:
  unfazed guard panic-gate; code=$?
  case $code in 0) ;; 2) exit 0 ;; *) echo \"panic gate: $code\" >&2 ;; esac
  exec unfazed serve -m model.gguf

Exit codes of status, panics, breadcrumb and mode: 0 nothing happened, 1 a panic or a stale lock, 2 five
panics or more, 3 no answer. Usage errors end with 64 here.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GuardArgs {
    #[command(flatten)]
    common: CommonFlags,

    #[command(subcommand)]
    command: Option<GuardCommand>,
}

/// Flags of all of them, before or behind the command.
#[derive(Debug, Args)]
struct CommonFlags {
    /// Write JSON
    #[arg(long, global = true)]
    json: bool,

    /// Folder with reports of panics, and its Retired [default: those of macOS]
    #[arg(long, global = true, value_name = "DIR", env = "UNFAZED_GUARD_REPORTS")]
    reports: Option<PathBuf>,

    /// Log of breadcrumbs [default: logs/metal_breadcrumb.log here, else in the home folder]
    #[arg(long, global = true, value_name = "FILE")]
    breadcrumbs: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum GuardCommand {
    /// Show all of it in short (also without a command)
    Status,
    /// List panics and what else reports tell
    Panics(look::PanicsArgs),
    /// Show the last lines of the log of breadcrumbs
    Breadcrumb(look::BreadcrumbArgs),
    /// Show which mode METALGUARD_MODE says
    Mode,
    /// Say whether work on the GPU may begin: ends with 0 (yes), 2 (not now), 3 or more (the gate is broken)
    PanicGate,
    /// Collect reports, breadcrumbs and history of a panic in a folder, and close the gate for two hours
    Postmortem(bundle::PostmortemArgs),
    /// Write what is known to a file for other programs, again and again
    StatusWrite(write::StatusWriteArgs),
    /// Find work that began and never ended: ends with 1 if there is some
    OrphanScan(orphans::OrphanScanArgs),
    /// Say that somebody has looked at the panics: ends a lockout
    Ack,
    /// Put a block into the shell's profile that asks the gate before python begins
    Install(install::InstallArgs),
    /// Run another server of OpenAI's API, and start it again when it dies or hangs, without a request lost
    Run(Box<run::RunArgs>),
}

/// What all commands need.
struct Guard<'a> {
    json: bool,
    places: Result<Places, NoHome>,
    settings: Settings,
    now: Timestamp,
    stderr: &'a Stderr,
}

impl Guard<'_> {
    fn places(&self) -> anyhow::Result<&Places> {
        self.places.as_ref().map_err(|error| error.clone().into())
    }

    /// Tells a person what has nothing to do with the answer.
    fn warn(&self, warning: &str) {
        self.stderr.write(format!("unfazed guard: {}\n", printable(warning)));
    }

    /// Writes JSON, or lines for people.
    fn print(&self, json: impl FnOnce() -> Value, lines: impl FnOnce() -> String) -> anyhow::Result<()> {
        let text = if self.json { format!("{:#}\n", json()) } else { lines() };
        let mut stdout = io::stdout();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context(OutputClosed)
    }
}

pub(crate) fn run(args: &GuardArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    let CommonFlags { json, reports, breadcrumbs } = &args.common;
    let guard = Guard {
        json: *json,
        places: Places::new(std::env::home_dir(), reports.clone(), breadcrumbs.clone()),
        settings: Settings::read(|name| std::env::var(name).ok()),
        now: Timestamp::now(),
        stderr,
    };
    guard.settings.warnings.iter().for_each(|warning| guard.warn(warning));
    match &args.command {
        None | Some(GuardCommand::Status) => answer(look::status(&guard), stderr),
        Some(GuardCommand::Panics(args)) => answer(look::panics(&guard, args), stderr),
        Some(GuardCommand::Breadcrumb(args)) => answer(look::breadcrumb(&guard, args), stderr),
        Some(GuardCommand::Mode) => answer(look::mode(&guard), stderr),
        Some(GuardCommand::Run(args)) => run::run(args, stderr),
        Some(GuardCommand::PanicGate) => Ok(gate::run(&guard)),
        Some(GuardCommand::Postmortem(args)) => bundle::run(&guard, args),
        Some(GuardCommand::StatusWrite(args)) => write::run(&guard, args),
        Some(GuardCommand::OrphanScan(args)) => answer(orphans::run(&guard, args), stderr),
        Some(GuardCommand::Ack) => gate::ack(&guard),
        Some(GuardCommand::Install(args)) => install::run(&guard, args),
    }
}

/// Of a command whose exit code is an answer: an error must not look like one.
fn answer(result: anyhow::Result<ExitCode>, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    match result {
        Err(error) if !error.is::<OutputClosed>() => {
            stderr.write(format!("error: {}\n", failure::line(&error)));
            Ok(ExitCode::from(NO_ANSWER))
        }
        result => result,
    }
}

/// Text from files, without what could steer a terminal.
fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "\u{fffd}")
}

/// A number of seconds or hours that makes sense.
fn span(text: &str) -> Result<f64, String> {
    const MOST: f64 = 1e6;
    match text.parse::<f64>() {
        Ok(number) if (0.0..=MOST).contains(&number) => Ok(number),
        _ => Err("not a number from 0 to 1000000".to_owned()),
    }
}
