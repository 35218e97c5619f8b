//! Times as metal-guard writes and reads them: local, to the second, without a zone.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// `2026-04-16T23:33:27`, as in JSON and in state files.
pub fn iso(at: Timestamp) -> String {
    civil(at).strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

/// `2026-04-16 23:33:27`, as in breadcrumbs and for people.
pub fn plain(at: Timestamp) -> String {
    civil(at).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Reads either form, also with a fraction of a second; a zone counts if there is one.
pub fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    text.parse::<Timestamp>().ok().or_else(|| {
        let civil: DateTime = text.parse().ok()?;
        TimeZone::system().to_timestamp(civil).ok()
    })
}

/// Seconds since 1970, as in JSON.
pub fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

fn civil(at: Timestamp) -> DateTime {
    TimeZone::system().to_datetime(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let at: Timestamp = "2026-04-16T14:33:27Z".parse().unwrap();
        assert_eq!(parse(&iso(at)), Some(at));
        assert_eq!(parse(&plain(at)), Some(at));
        assert_eq!(parse("2026-04-16T16:33:27.000+02:00"), Some(at));
        assert_eq!(parse(&format!("{}.123456", iso(at))).map(Timestamp::as_second), Some(at.as_second()));
        for wrong in ["", "soon", "2026-04-31T00:00:00", "99999-01-01T00:00:00"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
