//! All reports of some folders.

use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use unfazed_fault::Class;

use super::parse::{self, Crash, GpuEvent, Kind, MOST_BYTES, Report};
use super::signature::Signature;
use super::when::{self, TimeFrom, When};
use crate::outside_file;
use crate::places::Folder;

/// Most reports of a folder that are looked at, those of the latest names.
const MOST_REPORTS: usize = 4096;
/// Reports of processes are many: those whose files are older than the window by this are not opened.
const OLDER: SignedDuration = SignedDuration::from_hours(48);

/// A panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic {
    /// When.
    pub when: When,
    /// Which one.
    pub signature: Signature,
    /// Its first line.
    pub explanation: String,
    /// The process that ran then.
    pub pid: Option<u32>,
    /// The report.
    pub file: PathBuf,
}

/// A GPU event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub when: When,
    /// What it was.
    pub event: GpuEvent,
    /// The report.
    pub file: PathBuf,
}

/// A process that was ended by what went wrong on its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// When.
    pub when: When,
    /// Its name.
    pub process: Option<String>,
    /// What ended it.
    pub class: Class,
    /// The report.
    pub file: PathBuf,
}

/// A report that is there and cannot be read: nobody knows what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The report.
    pub file: PathBuf,
    /// What it is of, by its name.
    pub kind: Kind,
    /// When, as the file says; `None` if not even that can be had.
    pub at: Option<Timestamp>,
    /// Why it cannot be read.
    pub reason: String,
}

/// What the reports of some folders say, each list with the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Panics, whatever their signature.
    pub panics: Vec<Panic>,
    /// GPU events.
    pub gpu_events: Vec<Event>,
    /// Ended processes.
    pub aborts: Vec<Abort>,
    /// Reports that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Folders that cannot be listed, with the reason.
    pub unlisted: Vec<(PathBuf, String)>,
}

/// Reads the reports of events from `since` on.
pub fn scan(folders: &[Folder], since: Timestamp, now: Timestamp) -> Scan {
    let mut scan = Scan::default();
    for folder in folders {
        match names(&folder.path) {
            Ok(names) => {
                names.iter().for_each(|(name, kind)| scan.add(&folder.path.join(name), *kind, since, now))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.must_exist => {}
            Err(error) => scan.unlisted.push((folder.path.clone(), error.to_string())),
        }
    }
    scan.tidy();
    scan
}

/// Names of reports in a folder, and of what they are.
fn names(folder: &Path) -> io::Result<Vec<(String, Kind)>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(kind) = Kind::of(&name)
            && !entry.file_type().as_ref().is_ok_and(FileType::is_dir)
        {
            names.push((name, kind));
        }
    }
    names.sort_by(|(a, _), (b, _)| b.cmp(a));
    names.truncate(MOST_REPORTS);
    Ok(names)
}

impl Scan {
    fn add(&mut self, path: &Path, kind: Kind, since: Timestamp, now: Timestamp) {
        let modified = outside_file::modified(path).ok();
        let recent = |at: Timestamp, slack| at.checked_add(slack).map_or(true, |at| at >= since);
        if kind == Kind::Other && modified.is_some_and(|at| !recent(at, OLDER)) {
            return;
        }
        let file = path.to_owned();
        let report = match outside_file::read(path, MOST_BYTES).map_err(|error| error.to_string()) {
            Ok(bytes) => parse::parse(kind, &bytes).map_err(|damage| damage.to_string()),
            Err(error) => Err(error),
        };
        let report = match report {
            Ok(report) => report,
            Err(reason) => {
                if modified.is_none_or(|at| recent(at, SignedDuration::ZERO)) {
                    self.unreadable.push(Unreadable {
                        file,
                        kind,
                        at: modified.map(|at| at.min(now)),
                        reason,
                    });
                }
                return;
            }
        };
        let when = |told: &[When]| {
            let when = when::choose(told, modified.unwrap_or(now), now);
            recent(when.at, SignedDuration::ZERO).then_some(when)
        };
        match report {
            Report::Panic(panic) => {
                if let Some(when) = when(&panic.told) {
                    let parse::PanicText { signature, explanation, pid, .. } = panic;
                    self.panics.push(Panic { when, signature, explanation, pid, file });
                }
            }
            Report::GpuEvent(event) => {
                if let Some(when) = when(&event.told) {
                    self.gpu_events.push(Event { when, event, file });
                }
            }
            Report::Abort(Crash { process, class, told }) => {
                if let Some(when) = when(&told) {
                    self.aborts.push(Abort { when, process, class, file });
                }
            }
            Report::Other => {}
        }
    }

    /// Sorts, and keeps one report of an event: macOS writes a panic under several names.
    fn tidy(&mut self) {
        // A name that people know comes before a hidden one.
        let order =
            |when: When, file: &Path| (when.at, file.file_name().is_some_and(is_hidden), file.to_owned());
        self.panics
            .sort_by_key(|panic| (panic.when.at, panic.signature, panic.pid, order(panic.when, &panic.file)));
        self.gpu_events.sort_by_key(|event| order(event.when, &event.file));
        self.aborts.sort_by_key(|abort| order(abort.when, &abort.file));
        self.unreadable.sort_by_key(|unreadable| (unreadable.at, unreadable.file.clone()));
        self.panics.dedup_by(|later, earlier| {
            let same_second = later.when.at.as_second() == earlier.when.at.as_second();
            let told = later.when.from != TimeFrom::File && later.when.from == earlier.when.from;
            same_second && told && (later.signature, later.pid) == (earlier.signature, earlier.pid)
        });
        self.gpu_events.dedup_by(|later, earlier| same_file_name(&later.file, &earlier.file));
        self.aborts.dedup_by(|later, earlier| same_file_name(&later.file, &earlier.file));
    }

    /// The part of it from a time on.
    #[must_use]
    pub fn since(mut self, since: Timestamp) -> Scan {
        self.panics.retain(|panic| panic.when.at >= since);
        self.gpu_events.retain(|event| event.when.at >= since);
        self.aborts.retain(|abort| abort.when.at >= since);
        self.unreadable.retain(|unreadable| unreadable.at.is_none_or(|at| at >= since));
        self
    }

    /// Panics that the gate counts.
    pub fn counted(&self) -> impl DoubleEndedIterator<Item = &Panic> {
        self.panics.iter().filter(|panic| panic.signature.counts())
    }

    /// Reports of panics that cannot be read.
    pub fn unreadable_panics(&self) -> impl DoubleEndedIterator<Item = &Unreadable> {
        self.unreadable.iter().filter(|unreadable| unreadable.kind == Kind::Panic)
    }

    /// What was not seen, in lines for people.
    pub fn gaps(&self) -> Vec<String> {
        let folders = self
            .unlisted
            .iter()
            .map(|(folder, error)| format!("{}: cannot list it: {error}", folder.display()));
        let files = self.unreadable.iter().map(|unreadable| {
            format!("{}: cannot read it: {}", unreadable.file.display(), unreadable.reason)
        });
        folders.chain(files).collect()
    }
}

fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().first() == Some(&b'.')
}

fn same_file_name(a: &Path, b: &Path) -> bool {
    a.file_name() == b.file_name()
}
