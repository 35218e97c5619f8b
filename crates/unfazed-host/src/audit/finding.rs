//! One line of an audit.

use serde::Serialize;

/// What is to be thought of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works; something could be better, or is good to know.
    Note,
    /// It could not be found out.
    Unknown,
    /// It works, slower or less safely than it should.
    Warn,
    /// It will not work, or take the machine down.
    Problem,
}

impl Verdict {
    /// All of them, the best first.
    pub const ALL: [Verdict; 5] =
        [Verdict::Ok, Verdict::Note, Verdict::Unknown, Verdict::Warn, Verdict::Problem];

    /// As in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Unknown => "unknown",
            Verdict::Warn => "warn",
            Verdict::Problem => "problem",
        }
    }

    /// Whether somebody should do something.
    pub const fn calls_for_action(self) -> bool {
        matches!(self, Verdict::Warn | Verdict::Problem)
    }
}

/// What was found, why it matters, and what changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, as [`super::CHECKS`] lists it.
    pub check: &'static str,
    /// What is to be thought of it.
    pub verdict: Verdict,
    /// How it is, for people.
    pub found: String,
    /// Why it matters; of something unknown, why it is.
    pub reason: String,
    /// The command that changes it, if one does.
    pub command: Option<String>,
}

impl Finding {
    pub(super) fn new(
        check: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        reason: impl Into<String>,
    ) -> Finding {
        Finding { check, verdict, found: found.into(), reason: reason.into(), command: None }
    }

    pub(super) fn ok(check: &'static str, found: impl Into<String>, reason: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Ok, found, reason)
    }

    pub(super) fn note(check: &'static str, found: impl Into<String>, reason: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Note, found, reason)
    }

    pub(super) fn warn(check: &'static str, found: impl Into<String>, reason: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Warn, found, reason)
    }

    pub(super) fn problem(
        check: &'static str,
        found: impl Into<String>,
        reason: impl Into<String>,
    ) -> Finding {
        Finding::new(check, Verdict::Problem, found, reason)
    }

    pub(super) fn unknown(check: &'static str, why: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Unknown, "unknown", why)
    }

    pub(super) fn command(mut self, command: impl Into<String>) -> Finding {
        self.command = Some(command.into());
        self
    }
}

/// Bytes for people, in powers of 1024.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    // Three digits say enough.
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_about_three_digits_and_the_unit_that_fits() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(8 << 20), "8.0 MiB");
        assert_eq!(size(25_276_059_648), "23.5 GiB");
        assert_eq!(size(500 << 30), "500 GiB");
        assert_eq!(size(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn verdicts_are_ordered_by_how_bad_they_are_and_named_as_in_json() {
        assert!(Verdict::ALL.is_sorted());
        for verdict in Verdict::ALL {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.name());
        }
        let acting: Vec<_> = Verdict::ALL.into_iter().filter(|verdict| verdict.calls_for_action()).collect();
        assert_eq!(acting, [Verdict::Warn, Verdict::Problem]);
    }
}
