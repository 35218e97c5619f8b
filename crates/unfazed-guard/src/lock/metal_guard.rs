//! metal-guard's lock file: JSON with the process that uses the GPU. The file is the lock, so whoever takes it must be the only one
//! that makes it, and whoever removes it must remove the one that was looked at.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::process;
use crate::local_time;
use crate::outside_file;

/// No lock file is longer.
const MOST_BYTES: usize = 64 << 10;
/// Longest command line in a file, in characters, as metal-guard writes it.
const MOST_COMMAND: usize = 300;
/// A process that began so long after its lock was taken is another one that got its number. Clocks may be set meanwhile, so the
/// command line must differ as well.
const SLACK: SignedDuration = SignedDuration::from_secs(120);
/// A file that is no JSON may be being written for so long.
const WRITING: SignedDuration = SignedDuration::from_secs(10);

/// Who holds it, as the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process.
    pub pid: Option<u32>,
    /// What it calls itself.
    pub label: String,
    /// Since when, as it is written.
    pub started_at: Option<String>,
    /// The same as a time.
    pub started: Option<Timestamp>,
    /// Its command line.
    pub cmdline: String,
    /// It has ended, or its number was given to another process.
    pub stale: bool,
    /// Which file this was.
    inode: u64,
}

impl Holder {
    /// With metal-guard's keys.
    pub fn json(&self) -> Value {
        json!({
            "pid": self.pid,
            "label": self.label,
            "started_at": self.started_at,
            "cmdline": self.cmdline,
            "stale": self.stale,
        })
    }
}

/// Who takes a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// What it calls itself.
    pub label: String,
    /// Its command line, without secrets.
    pub cmdline: String,
}

impl Who {
    /// What is written of this process.
    pub(super) fn text(&self, now: Timestamp) -> String {
        let started = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let cmdline: String = self.cmdline.chars().take(MOST_COMMAND).collect();
        let info = json!({"pid": std::process::id(), "label": self.label, "started_at": started, "cmdline": cmdline});
        format!("{info:#}\n")
    }
}

/// Who holds a lock file, if there is one.
///
/// # Errors
///
/// It is there and cannot be read.
pub fn read(path: &Path, now: Timestamp) -> io::Result<Option<Holder>> {
    let inode = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.ino(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match outside_file::read(path, MOST_BYTES) {
        Ok(bytes) => Ok(Some(judged(Holder { inode, ..parse(&bytes) }, path, now))),
        Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a lock file says; whether it is stale is not known yet.
pub(super) fn parse(bytes: &[u8]) -> Holder {
    let info: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let text = |key: &str| {
        let text = info.get(key).and_then(Value::as_str)?;
        Some(
            text.chars()
                .take(MOST_COMMAND)
                .map(|c| if c.is_control() { '\u{fffd}' } else { c })
                .collect::<String>(),
        )
    };
    let started_at = text("started_at");
    Holder {
        pid: info
            .get("pid")
            .and_then(Value::as_u64)
            .and_then(|pid| u32::try_from(pid).ok())
            .filter(|pid| *pid > 0),
        label: text("label").unwrap_or_default(),
        started: started_at.as_deref().and_then(local_time::parse),
        started_at,
        cmdline: text("cmdline").unwrap_or_default(),
        stale: false,
        inode: 0,
    }
}

fn judged(holder: Holder, path: &Path, now: Timestamp) -> Holder {
    let stale = match holder.pid {
        Some(pid) => process::look(pid).is_none_or(|process| is_another(&holder, &process)),
        // It says nothing: somebody may be writing it.
        None => outside_file::modified(path)
            .is_ok_and(|modified| now.duration_since(modified) > WRITING || modified > now),
    };
    Holder { stale, ..holder }
}

/// Whether a process cannot be the one that took the lock: it began later, and as something else.
fn is_another(holder: &Holder, process: &process::Process) -> bool {
    let (Some(taken), Some(began)) = (holder.started, process.started) else { return false };
    let later = began.duration_since(taken) > SLACK;
    let named = holder.cmdline.split_whitespace().next();
    let other = match (named, &process.command) {
        (Some(program), Some(command)) => !command.contains(program),
        (None, _) => true,
        (_, None) => false,
    };
    later && other
}

/// A lock file that this process made; removed when dropped, if it is still this one.
#[derive(Debug)]
pub(super) struct Marker {
    path: PathBuf,
    inode: u64,
}

impl Marker {
    /// Makes the file; `None` if another one is there.
    pub(super) fn create(path: &Path, who: &Who, now: Timestamp) -> io::Result<Option<Marker>> {
        let written = Written::new(path, who, now)?;
        match fs::hard_link(&written.path, path) {
            Ok(()) => Ok(Some(Marker { path: path.to_owned(), inode: written.inode })),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes over the file of the process that this one goes on for.
    pub(super) fn take_over(path: &Path, who: &Who, now: Timestamp) -> io::Result<Marker> {
        let written = Written::new(path, who, now)?;
        fs::rename(&written.path, path)?;
        Ok(Marker { path: path.to_owned(), inode: written.inode })
    }

    /// Whether the file is still this one. metal-guard looks first and writes then, so two may believe that they were first:
    /// the later one has it.
    pub(super) fn holds(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode)
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // Who finds the file later finds that its process is gone.
        let _ = remove(&self.path, self.inode);
    }
}

/// Removes a file that was found to be stale, if it is still that one.
pub(super) fn heal(path: &Path, holder: &Holder) -> io::Result<bool> {
    remove(path, holder.inode)
}

/// Removes a file if it is the one that was looked at. It is moved away first: of two that move, one moves it, and what turns
/// out to be another file is put back.
fn remove(path: &Path, inode: u64) -> io::Result<bool> {
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.ino() == inode) {
        return Ok(false);
    }
    let aside = beside(path, "old")?;
    match fs::rename(path, &aside) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let is_it = fs::symlink_metadata(&aside).is_ok_and(|metadata| metadata.ino() == inode);
    if !is_it {
        match fs::hard_link(&aside, path) {
            Ok(()) => {}
            // A third one has it by now.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    fs::remove_file(&aside)?;
    Ok(is_it)
}

/// A file with its content, beside the lock file; gone when dropped, if it still has that name.
struct Written {
    path: PathBuf,
    inode: u64,
}

impl Written {
    fn new(lock: &Path, who: &Who, now: Timestamp) -> io::Result<Written> {
        let path = beside(lock, "new")?;
        if let Some(folder) = lock.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let inode = file.metadata()?.ino();
        let written = Written { path, inode };
        file.write_all(who.text(now).as_bytes())?;
        file.sync_all()?;
        Ok(written)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // After a rename there is none of this name.
        let _ = fs::remove_file(&self.path);
    }
}

/// A name in the same folder that no other process and no other call has.
fn beside(path: &Path, what: &str) -> io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(path.with_file_name(format!(".{name}.{what}.{}.{next}", std::process::id())))
}
