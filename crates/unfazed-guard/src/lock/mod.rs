//! One process at a time gives work to a GPU: two that do hang it.
//!
//! | module | what |
//! |---|---|
//! | `mod.rs` | the lock: taken, waited for, shared with children, passed on |
//! | `file` | the locked file, which the kernel gives back |
//! | [`metal_guard`] | metal-guard's lock file, for programs that honour it |
//! | [`process`] | whether a process runs, since when, and as what |
//!
//! The lock is `flock` on a file of one adapter. It belongs to the *descriptor*, not to the process: a child that has it keeps
//! the lock when its parent is gone, so an engine that hangs on the GPU keeps all others away from it. A front that takes
//! over from another one is its child and has it too, and the first one stays to the end: there is no moment without.

mod file;
pub mod metal_guard;
pub mod process;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::getuid;
use thiserror::Error;

use metal_guard::Marker;
pub use metal_guard::{Holder, Who};

use crate::outside_file;

/// The adapter of those who use whichever there is.
pub const ANY_ADAPTER: &str = "any";
/// Where metal-guard's lock file is instead.
const METAL_GUARD_PATH: &str = "MLX_LOCK_PATH";
/// Where it is, in the home folder.
const METAL_GUARD_FILE: &str = ".metal-guard/locks/mlx_exclusive.lock";
/// A process that was started under its parent's lock.
const METAL_GUARD_WORKER: &str = "METALGUARD_SUBPROCESS_WORKER";
/// How often a lock is tried that is waited for.
const POLL: Duration = Duration::from_millis(200);
/// metal-guard looks first and writes then: after so long, who wrote last is known.
const SETTLE: Duration = Duration::from_millis(100);
/// How often a stale file of metal-guard is removed until something else is wrong.
const HEALS: usize = 8;
/// No description of a holder is longer.
const MOST_BYTES: usize = 64 << 10;

/// Why a lock is not had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process has it.
    #[error("{0}")]
    Held(Box<Held>),
    /// The place belongs to somebody else.
    #[error(
        "{} belongs to another user or may be written by others, so it is no place for a lock: remove it, or set XDG_RUNTIME_DIR",
        path.display()
    )]
    Foreign {
        /// The file or folder.
        path: PathBuf,
    },
    /// There is no home folder, where metal-guard's lock file is.
    #[error("HOME is not set to a folder: the GPU's lock is there")]
    NoHome,
    /// The system refused.
    #[error("{}: {source}", path.display())]
    System {
        /// What about.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Who has the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The file that says so.
    pub path: PathBuf,
    /// The process that took it, if it said so.
    pub pid: Option<u32>,
    /// What it calls itself.
    pub label: String,
    /// Its command line.
    pub cmdline: String,
    /// Since when, as it is written.
    pub since: Option<String>,
    /// It has ended, and these of its children keep the lock.
    pub left_behind: Vec<u32>,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let process =
            self.pid.map_or("a process that does not say which".to_owned(), |pid| format!("pid {pid}"));
        let what = if self.cmdline.is_empty() { &self.label } else { &self.cmdline };
        match self.left_behind.as_slice() {
            [] => write!(f, "the GPU is in use by {process} ({what})")?,
            pids => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                write!(
                    f,
                    "the GPU is in use by pid {}, which {process} ({what}) left behind",
                    pids.join(", ")
                )?;
            }
        }
        if let Some(since) = &self.since {
            write!(f, " since {since}")?;
        }
        write!(f, "; its lock is {}", self.path.display())
    }
}

/// The files of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockFiles {
    /// The locked one.
    pub locked: PathBuf,
    /// metal-guard's, where programs may honour it: on macOS, and wherever `MLX_LOCK_PATH` names one.
    pub metal_guard: Option<PathBuf>,
}

impl LockFiles {
    /// The files of an adapter for this user on this machine.
    ///
    /// # Errors
    ///
    /// There is no home folder where one is needed.
    pub fn of_machine(
        adapter: &str,
        home: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<LockFiles, LockError> {
        let absolute = |path: PathBuf| path.is_absolute().then_some(path);
        // Whoever started this process has metal-guard's lock for it.
        let covered = variable(METAL_GUARD_WORKER).is_some_and(|value| value == "1");
        let said = said(&variable);
        let home = home.filter(|home| home.is_absolute()).ok_or(LockError::NoHome);
        let name: String =
            adapter.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(64).collect();
        if cfg!(target_os = "macos") {
            let usual = home?.join(METAL_GUARD_FILE);
            let locked = usual.with_file_name(format!("unfazed-gpu-{name}.lock"));
            return Ok(LockFiles { locked, metal_guard: (!covered).then(|| said.unwrap_or(usual)) });
        }
        let user = getuid().as_raw();
        // The one that a login makes, also for those who were started without its variables.
        let login = PathBuf::from(format!("/run/user/{user}"));
        let folder = variable("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .and_then(absolute)
            .or_else(|| login.is_dir().then_some(login))
            .map_or_else(|| PathBuf::from(format!("/tmp/unfazed-{user}")), |folder| folder.join("unfazed"));
        Ok(LockFiles {
            locked: folder.join(format!("gpu-{name}.lock")),
            metal_guard: said.filter(|_| !covered),
        })
    }

    /// metal-guard's lock file on this machine, to look at; `None` without a home folder.
    pub fn metal_guards(home: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        said(variable).or_else(|| Some(home?.join(METAL_GUARD_FILE)))
    }
}

/// Where `MLX_LOCK_PATH` says that metal-guard's file is.
fn said(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = variable(METAL_GUARD_PATH).filter(|path| !path.is_empty())?;
    std::path::absolute(path).ok()
}

/// The GPU is this process's, and its children's that have the descriptor. Dropping it gives it back, once they are gone too.
#[derive(Debug)]
pub struct GpuLock {
    file: File,
    /// Removes its file when it is dropped.
    _marker: Option<Marker>,
}

impl GpuLock {
    /// Takes it.
    ///
    /// # Errors
    ///
    /// [`LockError::Held`] if another process has it; the place is not safe; the system's errors.
    pub fn take(files: &LockFiles, who: &Who) -> Result<GpuLock, LockError> {
        let path = &files.locked;
        let Some(file) = file::try_lock(path)? else { return Err(LockError::Held(Box::new(held(path)))) };
        describe(&file, path, who)?;
        let _marker = files.metal_guard.as_deref().map(|path| mark(path, who)).transpose()?;
        Ok(GpuLock { file, _marker })
    }

    /// Waits for it, and tells whom for: once, and again when it is somebody else.
    ///
    /// # Errors
    ///
    /// As for [`GpuLock::take`], but for [`LockError::Held`].
    pub fn wait(files: &LockFiles, who: &Who, mut tell: impl FnMut(&Held)) -> Result<GpuLock, LockError> {
        let mut told = None;
        loop {
            match GpuLock::take(files, who) {
                Err(LockError::Held(held)) => {
                    if told.as_ref() != Some(&held) {
                        tell(&held);
                        told = Some(held);
                    }
                    std::thread::sleep(POLL);
                }
                taken => return taken,
            }
        }
    }

    /// From now on every child has it too, and keeps it for as long as it runs.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn share_with_children(&self) -> io::Result<()> {
        fcntl_setfd(&self.file, FdFlags::empty()).map_err(Into::into)
    }
}

impl AsFd for GpuLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Writes into the locked file who has it.
fn describe(file: &File, path: &Path, who: &Who) -> Result<(), LockError> {
    let described = file::describe(file, path, &who.text(Timestamp::now()));
    described.map_err(|source| LockError::System { path: path.to_owned(), source })
}

/// Makes metal-guard's file. One that is stale is removed first.
fn mark(path: &Path, who: &Who) -> Result<Marker, LockError> {
    let failed = |source| LockError::System { path: path.to_owned(), source };
    for _ in 0..HEALS {
        let now = Timestamp::now();
        if let Some(marker) = Marker::create(path, who, now).map_err(failed)? {
            std::thread::sleep(SETTLE);
            if marker.holds() {
                return Ok(marker);
            }
            continue;
        }
        match metal_guard::read(path, now).map_err(failed)? {
            None => {}
            // A program that took it and became this one.
            Some(holder) if holder.pid == Some(std::process::id()) => return take_over(path, who),
            Some(holder) if holder.stale => {
                metal_guard::heal(path, &holder).map_err(failed)?;
            }
            Some(holder) => return Err(LockError::Held(Box::new(Held::by(holder, path, Vec::new())))),
        }
    }
    Err(failed(io::Error::other("it is replaced again and again")))
}

fn take_over(path: &Path, who: &Who) -> Result<Marker, LockError> {
    let taken = Marker::take_over(path, who, Timestamp::now());
    taken.map_err(|source| LockError::System { path: path.to_owned(), source })
}

/// Who has a locked file.
fn held(path: &Path) -> Held {
    let bytes = outside_file::read(path, MOST_BYTES).unwrap_or_default();
    let mut holder = metal_guard::parse(&bytes);
    let runs = holder.pid.is_some_and(|pid| process::look(pid).is_some());
    let mut others = if runs { Vec::new() } else { file::holders(path) };
    if holder.pid.is_none() && !others.is_empty() {
        holder.pid = Some(others.remove(0));
        others.clear();
    }
    Held::by(holder, path, others)
}

impl Held {
    fn by(holder: Holder, path: &Path, left_behind: Vec<u32>) -> Held {
        let Holder { pid, label, cmdline, started_at, .. } = holder;
        Held { path: path.to_owned(), pid, label, cmdline, since: started_at, left_behind }
    }
}
