//! The audit for people: a mark, what was looked at, what was found and why it matters, and below it the command that changes it.

use unfazed_host::audit::{Finding, Verdict};

/// Columns of the terminal that lines are made for.
const WIDTH: usize = 80;
/// Columns of the mark and the gap behind it.
const MARK: usize = 9;
/// Columns of a check's name and the gap behind it.
const NAME: usize = 17;

/// The mark of a verdict, with colour where a person looks.
pub(super) fn mark(verdict: Verdict) -> String {
    let mark = console::style(format!("{:MARK$}", verdict.name()));
    let mark = match verdict {
        Verdict::Ok => mark.green(),
        Verdict::Note => mark.cyan(),
        Verdict::Unknown => mark.dim(),
        Verdict::Warn => mark.yellow().bold(),
        Verdict::Problem => mark.red().bold(),
    };
    mark.to_string()
}

/// The lines of a finding. Words that are too long, and commands, may be longer: they are to be copied.
pub(super) fn line(mark: &str, finding: &Finding) -> String {
    let name = finding.check;
    let reason = sentence(&finding.reason);
    let text = plain(&match finding.verdict {
        Verdict::Unknown => reason,
        _ => format!("{}. {reason}", finding.found),
    });
    let mut lines = String::new();
    for (at, line) in textwrap::wrap(&text, WIDTH - MARK - NAME).iter().enumerate() {
        if at == 0 {
            lines += &format!("{mark}{name:NAME$}{line}\n");
        } else {
            lines += &format!("{:1$}{line}\n", "", MARK + NAME);
        }
    }
    if let Some(command) = &finding.command {
        lines += &format!("{:MARK$}do: {}\n", "", plain(command));
    }
    lines
}

/// The number of lines of each verdict, in [`Verdict::ALL`]'s order.
pub(super) fn summary(counts: &[usize; 5]) -> String {
    let [ok, note, unknown, warn, problem] = *counts;
    let many = |count: usize, one: &str, more: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{count} {more}")),
    };
    let parts: Vec<String> = [
        many(problem, "problem", "problems"),
        many(warn, "warning", "warnings"),
        many(note, "note", "notes"),
        many(unknown, "unknown", "unknown"),
        many(ok, "ok", "ok"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let verdict = match problem + warn {
        0 => "Nothing has to be done",
        1 => "One thing should be done",
        _ => "Some things should be done",
    };
    format!("{verdict}: {}.", parts.join(", "))
}

/// Text as a sentence of its own.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

/// Names of folders and drives must not steer a terminal.
fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control(), "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(found: &str, reason: &str, command: Option<&str>) -> Finding {
        Finding {
            check: "open_files",
            verdict: Verdict::Note,
            found: found.to_owned(),
            reason: reason.to_owned(),
            command: command.map(str::to_owned),
        }
    }

    #[test]
    fn a_finding_fits_80_columns_and_its_command_stands_on_a_line_of_its_own() {
        let reason = "room for 768 connections at a time instead of 4096, which is what a server serves where nothing limits it";
        let text = line("note     ", &finding("at most 1024", reason, Some("sudo prlimit --pid $$")));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "note     open_files       at most 1024. Room for 768 connections at a time");
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{text}");
        assert!(lines[1].starts_with(&" ".repeat(MARK + NAME)), "{text}");
        assert_eq!(*lines.last().unwrap(), "         do: sudo prlimit --pid $$");
    }

    #[test]
    fn of_something_unknown_the_reason_is_all_there_is_to_say() {
        let unknown = Finding { verdict: Verdict::Unknown, ..finding("unknown", "nobody tells", None) };
        assert_eq!(line("unknown  ", &unknown), "unknown  open_files       Nobody tells.\n");
    }

    #[test]
    fn names_from_the_machine_cannot_steer_the_terminal() {
        let text = line("ok", &finding("drive \u{1b}[2J\n", "x", Some("rm \u{1b}c")));
        assert!(!text.contains('\u{1b}') && text.lines().count() == 2, "{text:?}");
    }

    #[test]
    fn the_summary_says_whether_something_should_be_done() {
        assert_eq!(summary(&[9, 2, 1, 0, 0]), "Nothing has to be done: 2 notes, 1 unknown, 9 ok.");
        assert_eq!(summary(&[9, 1, 0, 1, 0]), "One thing should be done: 1 warning, 1 note, 9 ok.");
        assert_eq!(summary(&[1, 0, 0, 2, 1]), "Some things should be done: 1 problem, 2 warnings, 1 ok.");
    }
}
