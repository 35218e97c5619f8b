//! One report: what it is of, and what it says.
//!
//! macOS writes two JSON values, a header in one line and a body; older panics are plain text. Bytes come from outside: they
//! may be torn, of any length, or something else altogether.

use unfazed_fault::{Class, Origin, classify};

use super::signature::Signature;
use super::values::{Key, Values};
use super::when::{self, When};

/// Longest part of a report that is read, in bytes. What panicked is at its beginning, stacks of all processes follow.
pub const MOST_BYTES: usize = 4 << 20;
/// Longest explanation, in characters.
const MOST_EXPLANATION: usize = 300;
/// macOS's number for kernel panics.
const PANIC_TYPE: &str = "210";
/// macOS's number for GPU events.
const GPU_EVENT_TYPE: &str = "284";

const KEYS: &[Key] = &[
    Key { name: "timestamp", nested: false },
    Key { name: "captureTime", nested: false },
    Key { name: "date", nested: false },
    Key { name: "bug_type", nested: false },
    Key { name: "panicString", nested: false },
    Key { name: "app_name", nested: false },
    Key { name: "procName", nested: false },
    Key { name: "process_name", nested: true },
    Key { name: "pid", nested: false },
    Key { name: "restart_reason", nested: true },
    Key { name: "restart_reason_desc", nested: true },
    Key { name: "signature", nested: true },
    Key { name: "signal", nested: true },
];

/// What a report is of, by its file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel.
    Panic,
    /// The GPU.
    GpuEvent,
    /// A process, or something else: the text tells.
    Other,
}

impl Kind {
    /// The kind of a file of this name; `None` of one that is no report.
    pub fn of(name: &str) -> Option<Kind> {
        if name.ends_with(".panic") {
            return Some(Kind::Panic);
        }
        let stem = name.strip_suffix(".ips")?;
        Some(match stem {
            _ if stem.starts_with("panic-") => Kind::Panic,
            _ if stem.starts_with("gpuEvent-") => Kind::GpuEvent,
            _ => Kind::Other,
        })
    }

    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Panic => "panic",
            Kind::GpuEvent => "gpu_event",
            Kind::Other => "other",
        }
    }
}

/// What a report says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The kernel panicked.
    Panic(PanicText),
    /// The GPU was reset.
    GpuEvent(GpuEvent),
    /// A process was ended by what went wrong on its GPU.
    Abort(Crash),
    /// Nothing that matters here.
    Other,
}

/// A panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PanicText {
    /// Which one.
    pub signature: Signature,
    /// Its first line.
    pub explanation: String,
    /// The process that ran then.
    pub pid: Option<u32>,
    /// Times that its text tells, the best one first.
    pub told: Vec<When>,
}

/// A GPU event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuEvent {
    /// Why the GPU was restarted: macOS's number.
    pub restart_reason: Option<i64>,
    /// The same in words, where the report has them.
    pub description: Option<String>,
    /// macOS's number for what the GPU was doing.
    pub signature: Option<i64>,
    /// The process whose work it was.
    pub process: Option<String>,
    /// Its class.
    pub class: Class,
    /// Times that its text tells.
    pub told: Vec<When>,
}

/// An ended process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Its name.
    pub process: Option<String>,
    /// What ended it.
    pub class: Class,
    /// Times that its text tells.
    pub told: Vec<When>,
}

/// Why a report says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// There is nothing in it.
    #[error("it is empty")]
    Empty,
    /// It ends too early.
    #[error("it ends before it says what happened ({0})")]
    Torn(String),
    /// It is whole and of another form.
    #[error("it is JSON without {0}")]
    Lacks(&'static str),
}

/// Reads a report.
///
/// # Errors
///
/// It does not say what happened.
pub fn parse(kind: Kind, bytes: &[u8]) -> Result<Report, Damage> {
    let text = String::from_utf8_lossy(bytes.get(..MOST_BYTES).unwrap_or(bytes));
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.trim_matches('\0').is_empty() {
        return Err(Damage::Empty);
    }
    if !text.starts_with('{') {
        return Ok(if kind == Kind::Panic { panic(text, Vec::new()) } else { Report::Other });
    }
    let values = Values::read(text, KEYS);
    let told = header_times(&values);
    let lacks = |what: &'static str| {
        values.torn.as_ref().map_or(Damage::Lacks(what), |torn| Damage::Torn(torn.clone()))
    };
    match (kind, values.get("bug_type")) {
        (Kind::Panic, _) | (_, Some(PANIC_TYPE)) => {
            let text = values.get("panicString").ok_or_else(|| lacks("panicString"))?;
            Ok(panic(text, told))
        }
        (Kind::GpuEvent, _) | (_, Some(GPU_EVENT_TYPE)) => {
            if values.get("restart_reason").is_none() && values.get("signature").is_none() {
                return Err(lacks("restart_reason and signature"));
            }
            Ok(Report::GpuEvent(gpu_event(&values, text, told)))
        }
        _ => Ok(crash(&values, text, told)),
    }
}

/// Times in the header and the body, the event's own before the report's.
fn header_times(values: &Values) -> Vec<When> {
    let names = ["captureTime", "date", "timestamp"];
    names.into_iter().filter_map(|name| when::of_header(values.get(name)?)).collect()
}

fn panic(text: &str, mut told: Vec<When>) -> Report {
    told.splice(0..0, when::of_panic(text));
    Report::Panic(PanicText {
        signature: Signature::of(text),
        explanation: first_line(text),
        pid: pid(text),
        told,
    })
}

/// The first line that says something, without what could steer a terminal.
fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().take(MOST_EXPLANATION).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `Panicked task 0x…: 67178 pages, 13 threads: pid 25467: Python`
fn pid(text: &str) -> Option<u32> {
    text.match_indices("pid ").find_map(|(at, word)| {
        let (number, _) = text.get(at + word.len()..)?.split_once(':')?;
        number.trim().parse().ok()
    })
}

fn gpu_event(values: &Values, text: &str, told: Vec<When>) -> GpuEvent {
    let number = |name| values.get(name).and_then(|text| text.parse().ok());
    let class = match classify(text).class {
        // A restart that nobody explains is a hang that was noticed.
        Class::Unknown => Class::Hang,
        class => class,
    };
    GpuEvent {
        restart_reason: number("restart_reason"),
        description: values.get("restart_reason_desc").map(first_line),
        signature: number("signature"),
        process: process(values),
        class,
        told,
    }
}

/// A process that was ended by SIGABRT, for what went wrong on its GPU.
fn crash(values: &Values, text: &str, told: Vec<When>) -> Report {
    let class = classify(text).class;
    let aborted = values.get("signal") == Some("SIGABRT") || text.contains("SIGABRT");
    if !aborted || class.origin() != Origin::Device {
        return Report::Other;
    }
    Report::Abort(Crash { process: process(values), class, told })
}

fn process(values: &Values) -> Option<String> {
    ["process_name", "procName", "app_name"].into_iter().find_map(|name| {
        let text = first_line(values.get(name)?);
        (!text.is_empty()).then_some(text)
    })
}
