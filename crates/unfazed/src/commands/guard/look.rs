//! `status`, `panics`, `breadcrumb`, `mode`: views of one report, with one exit code.

use std::process::ExitCode;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use unfazed_guard::breadcrumb::{self, Tail};
use unfazed_guard::gate::WINDOW;
use unfazed_guard::local_time::plain;
use unfazed_guard::lock::LockFiles;
use unfazed_guard::lock::metal_guard::{self, Holder};
use unfazed_guard::reports::{Event, Panic, Scan, TimeFrom, When, scan};
use unfazed_guard::status::Snapshot;
use unfazed_guard::{Verdict, gate};

use super::{Guard, printable, span};

/// Panics that a status lists.
const SHOWN_PANICS: usize = 5;
/// Breadcrumbs that a status shows.
const SHOWN_LINES: usize = 3;
/// The window in hours, as metal-guard's.
const HOURS: f64 = 72.0;
/// Breadcrumbs, as metal-guard's.
const LINES: usize = 20;

#[derive(Debug, Args)]
pub(super) struct PanicsArgs {
    /// How far to look back
    #[arg(long, value_name = "HOURS", default_value_t = HOURS, value_parser = span)]
    since_hours: f64,
}

#[derive(Debug, Args)]
pub(super) struct BreadcrumbArgs {
    /// How many lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = LINES)]
    lines: usize,
}

/// All that is known.
pub(super) struct Report {
    hours: f64,
    scan: Scan,
    verdict: Verdict,
    lock: Option<Holder>,
    tail: Tail,
    errors: Vec<(&'static str, String)>,
}

impl Report {
    /// Looks at everything.
    pub(super) fn of(guard: &Guard<'_>, hours: f64, lines: usize) -> anyhow::Result<Report> {
        let (places, now) = (guard.places()?, guard.now);
        let before = |span| now.checked_sub(span).unwrap_or(Timestamp::MIN);
        let window = SignedDuration::from_secs_f64(hours * 3600.0);
        let all = scan(places.reports(), before(window.max(WINDOW)), now);
        let verdict = super::gate::judge(guard, places, &all);
        let mut errors = Vec::new();
        let mut told = |part, error: String| errors.push((part, error));
        let gaps = all.gaps();
        if !gaps.is_empty() {
            told("recent_panics", gaps.join("; "));
        }
        let tail = breadcrumb::tail(places.breadcrumbs(), lines).unwrap_or_else(|error| {
            told("breadcrumb", error.to_string());
            Tail::default()
        });
        let lock = LockFiles::metal_guards(Some(places.home()), |name| std::env::var_os(name));
        let lock = lock.and_then(|path| {
            metal_guard::read(&path, now).unwrap_or_else(|error| {
                told("lock", format!("{}: {error}", path.display()));
                None
            })
        });
        if verdict.decision == gate::Decision::Broken {
            told("panic_cooldown", verdict.reason.clone());
        }
        Ok(Report { hours, scan: all.since(before(window)), verdict, lock, tail, errors })
    }

    pub(super) fn snapshot<'a>(&'a self, guard: &'a Guard<'_>) -> Snapshot<'a> {
        Snapshot {
            hours: self.hours,
            scan: &self.scan,
            verdict: &self.verdict,
            lock: self.lock.as_ref(),
            tail: &self.tail,
            settings: &guard.settings,
            errors: self.errors.clone(),
            now: guard.now,
        }
    }

    /// Prints it, and says what to end with.
    fn print(
        &self,
        guard: &Guard<'_>,
        view: impl FnOnce(&Report, &Snapshot<'_>) -> String,
    ) -> anyhow::Result<ExitCode> {
        let snapshot = self.snapshot(guard);
        self.errors.iter().for_each(|(_, error)| guard.warn(error));
        guard.print(|| snapshot.report(env!("CARGO_PKG_VERSION")), || view(self, &snapshot))?;
        Ok(ExitCode::from(snapshot.health().exit_code()))
    }
}

pub(super) fn status(guard: &Guard<'_>) -> anyhow::Result<ExitCode> {
    Report::of(guard, HOURS, LINES)?.print(guard, status_lines)
}

pub(super) fn panics(guard: &Guard<'_>, args: &PanicsArgs) -> anyhow::Result<ExitCode> {
    Report::of(guard, args.since_hours, LINES)?.print(guard, |report, _| panic_lines(report))
}

pub(super) fn breadcrumb(guard: &Guard<'_>, args: &BreadcrumbArgs) -> anyhow::Result<ExitCode> {
    let searched = guard.places()?.breadcrumbs().to_vec();
    Report::of(guard, HOURS, args.lines)?.print(guard, |report, _| match &report.tail.path {
        Some(path) => {
            let lines: String =
                report.tail.lines.iter().map(|line| format!("  {}\n", printable(line))).collect();
            format!("{}  ({} lines)\n{lines}", path.display(), report.tail.lines.len())
        }
        None => {
            let searched: String = searched.iter().map(|path| format!("  - {}\n", path.display())).collect();
            format!("No breadcrumb log found. Searched:\n{searched}")
        }
    })
}

pub(super) fn mode(guard: &Guard<'_>) -> anyhow::Result<ExitCode> {
    Report::of(guard, HOURS, LINES)?.print(guard, |_, snapshot| {
        let settings = snapshot.settings;
        let said = settings.mode_said.as_deref().map_or("(unset)".to_owned(), printable);
        format!("mode: {}\n  {}\n  METALGUARD_MODE={said}\n", settings.mode.name(), settings.mode.meaning())
    })
}

fn status_lines(report: &Report, snapshot: &Snapshot<'_>) -> String {
    let mut lines =
        vec![format!("unfazed guard {}  {}", env!("CARGO_PKG_VERSION"), snapshot.health().badge())];
    let mut say = |name: &str, text: String| lines.push(format!("  {name:<11} {text}"));
    let Report { scan, verdict, hours, .. } = report;
    say("gate", format!("{}  {}", verdict.decision.badge(), printable(&verdict.reason)));
    say("mode", snapshot.settings.mode.name().to_owned());
    say("panics", format!("{} in last {hours:.0}h", scan.panics.len()));
    for panic in scan.panics.iter().rev().take(SHOWN_PANICS).rev() {
        say("", format!("- {} {}", time(panic.when), panic.signature.name()));
    }
    if !scan.unreadable.is_empty() {
        say("unreadable", format!("{} reports: unfazed guard panics lists them", scan.unreadable.len()));
    }
    if let Some(last) = scan.gpu_events.last() {
        say("gpu events", format!("{} in last {hours:.0}h, the last {}", scan.gpu_events.len(), event(last)));
    }
    if !scan.aborts.is_empty() {
        say("aborts", format!("{} in last {hours:.0}h", scan.aborts.len()));
    }
    say(
        "mlx-lock",
        report.lock.as_ref().map_or("none".to_owned(), |holder| {
            let pid = holder.pid.map_or("?".to_owned(), |pid| pid.to_string());
            let stale = if holder.stale { " (STALE: its process has ended)" } else { "" };
            format!("held by {} pid={pid}{stale}", printable(&holder.label))
        }),
    );
    match &report.tail.path {
        Some(path) => {
            say("breadcrumb", format!("{} ({} recent lines)", path.display(), report.tail.lines.len()))
        }
        None => say("breadcrumb", "no log file found".to_owned()),
    }
    for line in report.tail.lines.iter().rev().take(SHOWN_LINES).rev() {
        say("", printable(&line.chars().take(100).collect::<String>()));
    }
    lines.join("\n") + "\n"
}

fn panic_lines(report: &Report) -> String {
    let Report { scan, hours, .. } = report;
    let mut lines = match scan.panics.len() {
        0 => format!("No panics in last {hours:.0}h.\n"),
        count => format!("{count} panic(s) in last {hours:.0}h:\n"),
    };
    for Panic { when, signature, explanation, pid, file } in &scan.panics {
        let pid = pid.map_or("?".to_owned(), |pid| pid.to_string());
        let counts = if signature.counts() { "" } else { "  (the gate does not count it)" };
        lines.push_str(&format!("  {}  sig={}  pid={pid}{counts}\n", time(*when), signature.name()));
        lines.push_str(&format!(
            "    {}\n    {}\n",
            printable(explanation),
            printable(&file.display().to_string())
        ));
    }
    if !scan.unreadable.is_empty() {
        lines.push_str(&format!("{} report(s) that cannot be read:\n", scan.unreadable.len()));
        for unreadable in &scan.unreadable {
            let at = unreadable.at.map_or("?".to_owned(), plain);
            let file = printable(&unreadable.file.display().to_string());
            lines.push_str(&format!("  {at}  {file}\n    {}\n", printable(&unreadable.reason)));
        }
    }
    if !scan.gpu_events.is_empty() {
        lines.push_str(&format!("{} GPU event(s):\n", scan.gpu_events.len()));
        for found in &scan.gpu_events {
            let file = printable(&found.file.display().to_string());
            lines.push_str(&format!("  {}\n    {file}\n", event(found)));
        }
    }
    if !scan.aborts.is_empty() {
        lines.push_str(&format!("{} process(es) ended by their GPU:\n", scan.aborts.len()));
        for abort in &scan.aborts {
            let process = abort.process.as_deref().unwrap_or("?");
            lines.push_str(&format!("  {}  {} {process}\n", time(abort.when), abort.class));
        }
    }
    lines
}

fn event(event: &Event) -> String {
    let number = |number: Option<i64>| number.map_or("?".to_owned(), |number| number.to_string());
    let (reason, signature) = (number(event.event.restart_reason), number(event.event.signature));
    let words = event.event.description.as_ref().map_or(String::new(), |words| format!(" ({words})"));
    let process = event.event.process.as_ref().map_or(String::new(), |process| format!(", {process}"));
    format!("{}  restart_reason={reason}{words} signature={signature}{process}", time(event.when))
}

/// A time, and that it is only the file's.
fn time(when: When) -> String {
    let only = if when.from == TimeFrom::File { " (time of the file)" } else { "" };
    format!("{}{only}", plain(when.at))
}
