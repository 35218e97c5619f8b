//! The log of what was about to be done: `[2026-04-16 23:33:27] TAG: payload | key=value`, a line each, on disk before it is
//! done. `SUBPROC_PRE` without its `SUBPROC_POST` is work that never ended: perhaps a panic is on its way.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use crate::local_time;
use crate::outside_file;

/// Lines in which orphans are looked for.
const ORPHAN_LINES: usize = 2000;
/// Longest end of a log that is read, in bytes.
const MOST_BYTES: usize = 4 << 20;

/// The end of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The log; `None` if there is none.
    pub path: Option<PathBuf>,
    /// Its last lines.
    pub lines: Vec<String>,
}

/// The last lines of the first log that is there.
///
/// # Errors
///
/// A log that is there and cannot be read.
pub fn tail(candidates: &[PathBuf], most: usize) -> io::Result<Tail> {
    for path in candidates {
        match last_lines(path, most) {
            Ok(lines) => return Ok(Tail { path: Some(path.clone()), lines }),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
    Ok(Tail::default())
}

fn last_lines(path: &Path, most: usize) -> io::Result<Vec<String>> {
    let (bytes, cut) = outside_file::read_end(path, MOST_BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    // Of a log that is cut, the first line is a part of one.
    let lines: Vec<&str> = text.lines().skip(usize::from(cut)).collect();
    let first = lines.len().saturating_sub(most);
    Ok(lines.into_iter().skip(first).map(|line| line.trim_end().to_owned()).collect())
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crumb<'a> {
    /// When.
    pub at: Timestamp,
    /// What kind.
    pub tag: &'a str,
    /// What, without the keys and values behind ` | `.
    pub payload: &'a str,
}

/// Reads a line; `None` of one that is of another form.
pub fn parse(line: &str) -> Option<Crumb<'_>> {
    let (time, rest) = line.trim().strip_prefix('[')?.split_once("] ")?;
    let (tag, payload) = rest.split_once(": ")?;
    let is_tag = |tag: &str| {
        !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    let payload = payload.split(" | ").next().unwrap_or_default().trim();
    is_tag(tag).then_some(Crumb { at: local_time::parse(time)?, tag, payload })
}

/// Appends a line and waits until it is on disk. Line breaks become spaces.
///
/// # Errors
///
/// The system's.
pub fn append(
    path: &Path,
    now: Timestamp,
    tag: &str,
    payload: &str,
    meta: &[(&str, &str)],
) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    let mut line = format!("[{}] {tag}: {payload}", local_time::plain(now));
    for (at, (key, value)) in meta.iter().enumerate() {
        line.push_str(if at == 0 { " | " } else { " " });
        line.push_str(&format!("{key}={value}"));
    }
    let line = line.replace(|c: char| c.is_control(), " ");
    let mut file = File::options().create(true).append(true).mode(0o600).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())?;
    file.sync_data()
}

/// Work that began and never ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Orphan {
    /// The model that was worked on.
    pub model: String,
    /// When it began.
    pub at: Timestamp,
    /// Seconds since then.
    pub age: f64,
    /// The process, if it said so.
    pub pid: Option<u32>,
}

/// Orphans that are at least so many seconds old, the oldest first. Of a model, the first to begin is the first to end.
///
/// # Errors
///
/// A log that is there and cannot be read.
pub fn orphans(candidates: &[PathBuf], threshold: f64, now: Timestamp) -> io::Result<Vec<Orphan>> {
    let tail = tail(candidates, ORPHAN_LINES)?;
    let mut begun: BTreeMap<&str, VecDeque<Timestamp>> = BTreeMap::new();
    let mut workers: BTreeMap<&str, u32> = BTreeMap::new();
    for crumb in tail.lines.iter().filter_map(|line| parse(line)) {
        match crumb.tag {
            "SUBPROC_PRE" => begun.entry(crumb.payload).or_default().push_back(crumb.at),
            "SUBPROC_POST" => {
                begun.get_mut(crumb.payload).and_then(VecDeque::pop_front);
            }
            "SUBPROCESS_WORKER" => workers.extend(worker(crumb.payload)),
            _ => {}
        }
    }
    let mut orphans = Vec::new();
    for (model, times) in begun {
        for at in times {
            let age = now.duration_since(at).max(SignedDuration::ZERO).as_secs_f64();
            if age >= threshold {
                orphans.push(Orphan { model: model.to_owned(), at, age, pid: workers.get(model).copied() });
            }
        }
    }
    orphans.sort_by_key(|orphan| orphan.at);
    Ok(orphans)
}

/// `MODEL ready, pid=N`
fn worker(payload: &str) -> Option<(&str, u32)> {
    let (model, pid) = payload.split_once(" ready, pid=")?;
    Some((model, pid.split_whitespace().next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::new(1_776_350_000 + seconds, 0).unwrap()
    }

    /// Orphans in a log of these lines, each with its second.
    fn of(lines: &[(i64, &str)]) -> Vec<Orphan> {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("logs/metal_breadcrumb.log");
        for (second, line) in lines {
            let (tag, payload) = line.split_once(": ").unwrap();
            append(&log, at(*second), tag, payload, &[]).unwrap();
        }
        orphans(&[folder.path().join("none"), log], 90.0, at(0)).unwrap()
    }

    #[test]
    fn a_line_is_written_as_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        append(&log, at(0), "SUBPROC_PRE", "a/model", &[("tokens", "7"), ("pid", "9")]).unwrap();
        append(&log, at(1), "NOTE", "two\nlines", &[]).unwrap();
        let tail = tail(std::slice::from_ref(&log), 20).unwrap();
        assert!(tail.lines[0].ends_with("] SUBPROC_PRE: a/model | tokens=7 pid=9"), "{tail:?}");
        assert_eq!(parse(&tail.lines[0]), Some(Crumb { at: at(0), tag: "SUBPROC_PRE", payload: "a/model" }));
        assert_eq!(parse(&tail.lines[1]).unwrap().payload, "two lines");
        for wrong in [
            "",
            "garbage",
            "[bad date] SUBPROC_PRE: x",
            "[2026-04-16 10:00:00] lower: x",
            "[",
            "[2026-04-16 10:00:00] ",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_the_end_of_a_log_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let line = format!("{}\n", "x".repeat(999));
        std::fs::write(&log, format!("{}last\n", line.repeat(MOST_BYTES / 1000 + 10))).unwrap();
        let tail = tail(std::slice::from_ref(&log), 2).unwrap();
        assert_eq!(tail.lines.len(), 2);
        assert_eq!((tail.lines[0].len(), tail.lines[1].as_str()), (999, "last"));
        assert!(super::tail(&[folder.path().to_owned()], 2).is_err(), "a folder is no log");
    }

    #[test]
    fn what_ended_is_no_orphan_and_the_first_to_begin_is_the_first_to_end() {
        assert_eq!(of(&[(-200, "SUBPROC_PRE: a"), (-180, "SUBPROC_POST: a")]), []);
        assert_eq!(of(&[(-30, "SUBPROC_PRE: fast")]), []);
        assert_eq!(of(&[(-180, "SUBPROC_POST: a"), (-20, "OTHER: a")]), []);
        let found = of(&[(-300, "SUBPROC_PRE: x"), (-250, "SUBPROC_PRE: x"), (-200, "SUBPROC_POST: x")]);
        assert_eq!(found.iter().map(|orphan| orphan.age).collect::<Vec<_>>(), [250.0]);
    }

    #[test]
    fn orphans_come_with_their_process_the_oldest_first() {
        let found = of(&[
            (-500, "SUBPROCESS_WORKER: old ready, pid=12345"),
            (-200, "SUBPROC_PRE: recent"),
            (-400, "SUBPROC_PRE: old | ctx=7"),
        ]);
        let found: Vec<_> = found.iter().map(|orphan| (orphan.model.as_str(), orphan.pid)).collect();
        assert_eq!(found, [("old", Some(12345)), ("recent", None)]);
    }
}
