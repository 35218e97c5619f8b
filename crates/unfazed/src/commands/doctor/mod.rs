//! `unfazed doctor`: what of this machine is as a server needs it, and what changes the rest; how fast the disk is that models are
//! stored on.
//!
//! | module | what |
//! |---|---|
//! | `tried` | what has to be tried out to be known |
//! | `lines` | the audit, for people |
//! | `storage` | a disk measured, and what each model there would get from it |

mod lines;
mod storage;
mod tried;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use unfazed_host::audit::{self, Finding, Verdict};

use self::storage::Storage;
use crate::failure::OutputClosed;
use crate::flags::LogFlags;
use crate::logging;
use crate::stderr::Stderr;

/// Something should be done.
const TO_DO: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  unfazed doctor                          what of this machine should be changed, and how
  unfazed doctor -m model.gguf            and the disk that a model is on: what the model would get from it
  unfazed doctor -m models/               the same for all models of a folder
  unfazed doctor --json | jq '.lines[] | select(.verdict == \"warn\")'

Exit codes: 0 nothing has to be done; 1 something has to (lines marked warn or problem), or the disk cannot be measured; 2 usage.

It changes nothing. What is measured of a disk is kept: loading uses as many reads at a time as the disk needs.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// A model, or a folder with models: measure the disk that it is on too
    #[arg(short = 'm', long, visible_alias = "model", value_name = "PATH")]
    storage: Option<PathBuf>,

    /// Seconds for each measurement of a disk
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,

    /// For programs: one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    log: LogFlags,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let range = "not a number of seconds from 0.01 to 60";
    let seconds: f64 = text.parse().map_err(|_| range.to_owned())?;
    if (0.01..=60.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(range.to_owned())
    }
}

/// What programs get.
#[derive(Serialize)]
struct Json<'a> {
    /// Nothing has to be done.
    ok: bool,
    version: &'static str,
    lines: &'a [Finding],
    storage: Option<storage::Json<'a>>,
}

pub(crate) fn run(args: &DoctorArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::CHAT, stderr)?;
    let storage =
        args.storage.as_deref().map(|path| Storage::measure(path, args.seconds, stderr)).transpose()?;
    let findings = audit::audit(&tried::given(storage.as_ref()));
    let to_do = findings.iter().any(|finding| finding.verdict.calls_for_action());
    show(args.json, &findings, to_do, storage.as_ref()).context(OutputClosed)?;
    Ok(if to_do { ExitCode::from(TO_DO) } else { ExitCode::SUCCESS })
}

fn show(json: bool, findings: &[Finding], to_do: bool, storage: Option<&Storage>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        let version = env!("CARGO_PKG_VERSION");
        let json = Json { ok: !to_do, version, lines: findings, storage: storage.map(Storage::json) };
        serde_json::to_writer_pretty(&mut out, &json)?;
        return writeln!(out);
    }
    for finding in findings {
        let mark = lines::mark(finding.verdict);
        out.write_all(lines::line(&mark, finding).as_bytes())?;
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    writeln!(out, "\n{}", lines::summary(&Verdict::ALL.map(count)))?;
    match storage {
        Some(storage) => {
            writeln!(out)?;
            storage.show(&mut out)
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_a_number_of_a_useful_size() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "61", "NaN", "inf"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_check_is_documented() {
        let docs = include_str!("../../../../../docs/doctor.md");
        for check in audit::CHECKS {
            assert!(docs.contains(&format!("| `{check}` |")), "{check} is not in docs/doctor.md");
        }
    }
}
