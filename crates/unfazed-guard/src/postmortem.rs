//! Everything about a panic in one folder: reports, breadcrumbs, what was seen before, and an index of it.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use unfazed_host::cache;

use crate::breadcrumb;
use crate::local_time;
use crate::outside_file;
use crate::places::Places;
use crate::reports::Scan;
use crate::settings::Settings;
use crate::state;

/// Reports of the last so long are collected.
pub const WINDOW: SignedDuration = SignedDuration::from_hours(24);
/// Most reports of each kind.
const MOST_REPORTS: usize = 5;
/// Most bytes of a report, and of the history.
const MOST_BYTES: usize = 5 << 20;
/// Most breadcrumbs.
const MOST_LINES: usize = 500;
const CUT: &[u8] = b"\n\n--- cut at 5 MB ---\n";

/// What was collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The folder.
    pub folder: PathBuf,
    /// Reports of panics that count.
    pub panics: usize,
    /// Reports of GPU events.
    pub gpu_events: usize,
    /// The index.
    pub index: PathBuf,
    /// The file that closes the gate, if there were panics.
    pub sentinel: Option<PathBuf>,
    /// What could not be had.
    pub missing: Vec<String>,
}

/// Collects what a scan of the last 24 h found into a folder, which is made. With panics in it, the gate stays closed for a while,
/// so that somebody can look.
///
/// # Errors
///
/// The folder cannot be written. What cannot be collected is no error: it is told.
pub fn collect(
    folder: &Path,
    places: &Places,
    scan: &Scan,
    settings: &Settings,
    now: Timestamp,
) -> io::Result<Bundle> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut bundle = Collector { folder, missing: scan.gaps(), names: BTreeSet::new(), index: String::new() };
    bundle.say(&format!("# Postmortem {}\n", local_time::iso(now)));
    let panics = bundle.panics(scan)?;
    let gpu_events = bundle.gpu_events(scan)?;
    bundle.breadcrumbs(places)?;
    bundle.history(&places.panics_jsonl())?;
    bundle.memory()?;
    let sentinel = if panics > 0 { bundle.sentinel(places, settings, now) } else { None };
    bundle.end(panics);
    let index = bundle.put("index.md", bundle.index.as_bytes())?;
    let Collector { missing, .. } = bundle;
    Ok(Bundle { folder: folder.to_owned(), panics, gpu_events, index, sentinel, missing })
}

struct Collector<'a> {
    folder: &'a Path,
    missing: Vec<String>,
    /// Names in the folder.
    names: BTreeSet<String>,
    index: String,
}

impl Collector<'_> {
    fn say(&mut self, line: &str) {
        self.index.push_str(line);
        self.index.push('\n');
    }

    /// Writes a file of the bundle. What is there under its name is replaced, links too.
    fn put(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let path = self.folder.join(name);
        cache::write(&path, content)?;
        Ok(path)
    }

    fn panics(&mut self, scan: &Scan) -> io::Result<usize> {
        let panics: Vec<_> = scan.counted().rev().take(MOST_REPORTS).collect();
        self.say(&format!(
            "## Panics: {}\n",
            if panics.is_empty() { "none".to_owned() } else { panics.len().to_string() }
        ));
        let mut copied = 0;
        for panic in panics {
            let time = local_time::iso(panic.when.at);
            if let Some(name) = self.copy(&panic.file)? {
                copied += 1;
                let (signature, from) = (panic.signature.name(), panic.when.from.name());
                self.say(&format!(
                    "- `{name}`: {signature}, {time} (by {from}): `{}`",
                    inline(&panic.explanation)
                ));
            }
        }
        for unreadable in scan.unreadable_panics().rev().take(MOST_REPORTS) {
            // One that cannot even be opened is told below.
            if outside_file::read(&unreadable.file, 1).is_ok()
                && let Some(name) = self.copy(&unreadable.file)?
            {
                self.say(&format!("- `{name}`: unreadable: {}", inline(&unreadable.reason)));
            }
        }
        self.say("");
        Ok(copied)
    }

    fn gpu_events(&mut self, scan: &Scan) -> io::Result<usize> {
        let mut copied = 0;
        for event in scan.gpu_events.iter().rev().take(MOST_REPORTS) {
            let number =
                |number: Option<i64>| number.map_or("unknown".to_owned(), |number| number.to_string());
            if let Some(name) = self.copy(&event.file)? {
                if copied == 0 {
                    self.say("## GPU events\n");
                }
                copied += 1;
                let (reason, signature) = (number(event.event.restart_reason), number(event.event.signature));
                let time = local_time::iso(event.when.at);
                self.say(&format!("- `{name}`: restart_reason {reason}, signature {signature}, {time}"));
            }
        }
        if copied > 0 {
            self.say("");
        }
        Ok(copied)
    }

    /// Copies a report under a name that the folder has not yet.
    fn copy(&mut self, file: &Path) -> io::Result<Option<String>> {
        let mut content = match outside_file::read(file, MOST_BYTES + 1) {
            Ok(content) => content,
            Err(error) => {
                self.missing.push(format!("{}: {error}", file.display()));
                return Ok(None);
            }
        };
        if content.len() > MOST_BYTES {
            content.truncate(MOST_BYTES);
            content.extend_from_slice(CUT);
        }
        let own = file.file_name().unwrap_or_default().to_string_lossy();
        let own: String = own.chars().map(|c| if c.is_control() || c == '`' { '_' } else { c }).collect();
        let name = (0..).map(|n| if n == 0 { own.clone() } else { format!("{n}-{own}") });
        let Some(name) = name.into_iter().find(|name| !self.names.contains(name)) else { return Ok(None) };
        self.put(&name, &content)?;
        self.names.insert(name.clone());
        Ok(Some(name))
    }

    fn breadcrumbs(&mut self, places: &Places) -> io::Result<()> {
        match breadcrumb::tail(places.breadcrumbs(), MOST_LINES) {
            Ok(tail) if tail.path.is_some() => {
                let mut text = tail.lines.join("\n");
                text.push('\n');
                self.put("breadcrumb_tail.log", text.as_bytes())?;
                self.say(&format!(
                    "## Breadcrumbs: `breadcrumb_tail.log` (the last {} lines)\n",
                    tail.lines.len()
                ));
            }
            Ok(_) => {}
            Err(error) => self.missing.push(error.to_string()),
        }
        Ok(())
    }

    /// What metal-guard's library has seen before.
    fn history(&mut self, path: &Path) -> io::Result<()> {
        match outside_file::read_end(path, MOST_BYTES) {
            Ok((history, _)) => {
                self.put("panics.jsonl", &history)?;
                self.say("## Panics before: `panics.jsonl`\n");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.missing.push(format!("{}: {error}", path.display())),
        }
        Ok(())
    }

    /// Where metal-guard puts what MLX says of its memory: no MLX is loaded here, so it is the machine's.
    fn memory(&mut self) -> io::Result<()> {
        let memory = match unfazed_host::memory() {
            Ok(memory) => format!("total: {}\navailable: {}\n", memory.total, memory.available),
            Err(error) => format!("unknown: {error}\n"),
        };
        let text = format!("mlx is not loaded in this program; the machine's memory, in bytes:\n{memory}");
        self.put("mlx_stats.txt", text.as_bytes())?;
        self.say("## Memory: `mlx_stats.txt`\n");
        Ok(())
    }

    fn sentinel(&mut self, places: &Places, settings: &Settings, now: Timestamp) -> Option<PathBuf> {
        let until = now.checked_add(settings.postmortem_sentinel).unwrap_or(now);
        match state::cool_down(places, until, now) {
            Ok(path) => Some(path),
            Err(error) => {
                self.missing.push(format!("{}: {error}", places.sentinel().display()));
                None
            }
        }
    }

    fn end(&mut self, panics: usize) {
        if !self.missing.is_empty() {
            self.say("## What could not be had\n");
            for missing in self.missing.clone() {
                self.say(&format!("- {}", inline(&missing)));
            }
            self.say("");
        }
        self.say("## What next\n");
        self.say("1. `grep -E 'SUBPROC_PRE|SUBPROC_POST' breadcrumb_tail.log`: what was being done.");
        if panics > 0 {
            self.say("2. `unfazed guard panic-gate`: when work may begin again; `unfazed guard ack`: somebody has looked.");
        }
    }
}

/// In one line, and without what ends code in Markdown.
fn inline(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || c == '`' { ' ' } else { c }).collect()
}
