//! When a report's event was, from its text. A file's own time changes when it is copied or restored.

use jiff::{SignedDuration, Timestamp, fmt::strtime};

use crate::local_time;

/// No event was before this: 2001-01-01, before there was a macOS.
const EARLIEST: Timestamp = Timestamp::constant(978_307_200, 0);
/// Clocks may differ by so much.
const SLACK: SignedDuration = SignedDuration::from_hours(1);

/// What told the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeFrom {
    /// The kernel's clock when it panicked (`Calendar`).
    Calendar,
    /// The report's `timestamp`: when it was written.
    Timestamp,
    /// The file's own time: nothing in its text tells one that can be.
    File,
}

impl TimeFrom {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            TimeFrom::Calendar => "calendar",
            TimeFrom::Timestamp => "timestamp",
            TimeFrom::File => "mtime",
        }
    }
}

/// A time and what told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// The time.
    pub at: Timestamp,
    /// What told it.
    pub from: TimeFrom,
}

/// The first of `told` that can be, else the file's time. A file from the future is from now.
pub fn choose(told: &[When], file: Timestamp, now: Timestamp) -> When {
    let latest = now.checked_add(SLACK).unwrap_or(now);
    let can_be = |when: &&When| (EARLIEST..=latest).contains(&when.at);
    let chosen = told.iter().find(can_be).copied();
    chosen.unwrap_or(When { at: file.min(now), from: TimeFrom::File })
}

/// The time in a report's header: `2026-04-16 23:33:27.00 +0900`.
pub fn of_header(text: &str) -> Option<When> {
    let text = text.trim();
    let with_zone = |format| strtime::parse(format, text).ok().and_then(|time| time.to_timestamp().ok());
    let at = with_zone("%Y-%m-%d %H:%M:%S%.f %z")
        .or_else(|| with_zone("%Y-%m-%d %H:%M:%S %z"))
        .or_else(|| local_time::parse(text))?;
    Some(When { at, from: TimeFrom::Timestamp })
}

/// The kernel's clock in the text of a panic: `Calendar: 0x69e10147 0x000161c7`, seconds and microseconds.
pub fn of_panic(text: &str) -> Option<When> {
    let (_, rest) = text.split_once("Calendar:")?;
    let mut numbers = rest.split_whitespace();
    let mut hexadecimal = || i64::from_str_radix(numbers.next()?.strip_prefix("0x")?, 16).ok();
    let (seconds, micros) = (hexadecimal()?, hexadecimal()?);
    let nanos = i32::try_from(micros.checked_mul(1000)?).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    let at = Timestamp::new(seconds, nanos).ok()?;
    Some(When { at, from: TimeFrom::Calendar })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_forms_that_macos_writes_are_read() {
        let wanted = at("2026-04-16T14:33:27Z");
        for text in ["2026-04-16 23:33:27.00 +0900", "2026-04-16 14:33:27 +0000", " 2026-04-16T14:33:27Z "] {
            assert_eq!(of_header(text).map(|when| when.at), Some(wanted), "{text}");
        }
        let panic = of_panic("Epoch Time:  sec  usec\n  Calendar: 0x69e10147 0x000161c7\n").unwrap();
        assert_eq!((panic.at.as_second(), panic.from), (0x69e1_0147, TimeFrom::Calendar));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in
            ["", "Calendar:", "Calendar: 69e10147 0", "Calendar: 0x", "Calendar: 0xffffffffffffffff 0x0"]
        {
            assert_eq!(of_panic(text), None, "{text}");
        }
        assert_eq!(of_panic("Calendar: 0x69e10147 0x7fffffffffffffff"), None);
        assert_eq!(of_header("yesterday"), None);
    }

    #[test]
    fn a_time_that_cannot_be_gives_way_to_the_next_and_at_last_to_the_files() {
        let now = at("2026-04-16T15:00:00Z");
        let file = at("2026-04-16T14:00:00Z");
        let told = |text: &str, from| When { at: at(text), from };
        let future = told("2031-01-01T00:00:00Z", TimeFrom::Calendar);
        let zero = told("1970-01-01T00:00:00Z", TimeFrom::Calendar);
        let good = told("2026-04-10T00:00:00Z", TimeFrom::Timestamp);
        assert_eq!(choose(&[future, good], file, now), good);
        assert_eq!(choose(&[zero], file, now), When { at: file, from: TimeFrom::File });
        assert_eq!(choose(&[], at("2030-01-01T00:00:00Z"), now).at, now);
    }
}
