//! `panic-gate` and `ack`.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use unfazed_guard::reports::{Scan, scan};
use unfazed_guard::state::{self, State};
use unfazed_guard::{Places, Verdict, gate, local_time, status};

use super::{Guard, printable};

/// Never fails: whatever goes wrong is a verdict, and so is what it ends with when nobody reads it.
pub(super) fn run(guard: &Guard<'_>) -> ExitCode {
    let verdict = match &guard.places {
        Ok(places) => {
            let since = guard.now.checked_sub(gate::WINDOW).unwrap_or(guard.now);
            let scan = scan(places.reports(), since, guard.now);
            scan.gaps().iter().for_each(|gap| guard.warn(gap));
            judge(guard, places, &scan)
        }
        Err(error) => Verdict::broken(error.to_string()),
    };
    let printed = guard.print(|| status::verdict(&verdict), || lines(&verdict));
    if let Err(error) = printed {
        guard.warn(&crate::failure::line(&error));
    }
    ExitCode::from(verdict.decision.exit_code())
}

/// The verdict on a scan.
pub(super) fn judge(guard: &Guard<'_>, places: &Places, scan: &Scan) -> Verdict {
    let ack = places.ack().display().to_string();
    gate::evaluate(scan, &State::read(places), &guard.settings.gate, &ack, guard.now)
}

fn lines(verdict: &Verdict) -> String {
    let mut lines = format!(
        "{}  {}\n  24h={} 72h={}",
        verdict.decision.badge(),
        printable(&verdict.reason),
        verdict.panics_24h,
        verdict.panics_72h
    );
    for (name, count) in [
        ("unreadable", verdict.unreadable_72h),
        ("aborts", verdict.aborts_24h),
        ("gpu-events", verdict.gpu_events_24h),
    ] {
        if count > 0 {
            lines.push_str(&format!(" {name}={count}"));
        }
    }
    lines + "\n"
}

pub(super) fn ack(guard: &Guard<'_>) -> anyhow::Result<ExitCode> {
    let places = guard.places()?;
    let path = state::acknowledge(places, guard.now)
        .with_context(|| format!("{} cannot be written", places.ack().display()))?;
    // An acknowledgement does not end what somebody else asked for.
    let sentinel = State::read(places).sentinel.ok().flatten().filter(|until| *until > guard.now);
    guard.print(
        || json!({"ack_path": path, "status": "touched"}),
        || {
            let mut lines = format!(
                "ack written: {}\n  a lockout is over for 24 h, or until the next panic\n",
                path.display()
            );
            if let Some(until) = sentinel {
                let (until, file) = (local_time::plain(until), places.sentinel());
                lines.push_str(&format!(
                    "  the gate stays closed until {until}, as {} says\n",
                    file.display()
                ));
            }
            lines
        },
    )?;
    Ok(ExitCode::SUCCESS)
}
