//! How an engine is started and ended.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// Starts engines.
pub trait Launch: Send + Sync + 'static {
    /// Starts one and returns the front's end of its link.
    fn launch(&self) -> io::Result<(UnixStream, Arc<dyn Process>)>;
}

/// An engine process.
pub trait Process: Send + Sync {
    /// Ends it at once; does nothing to one that has ended.
    fn kill(&self);
    /// How it ended, `None` while it has not.
    fn exit(&self) -> Option<Exit>;
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => write!(f, "no known exit code"),
        }
    }
}

/// The program that runs as an engine: `PROGRAM engine ARGUMENTS`, with its link as standard input.
#[derive(Debug)]
pub struct EngineProgram {
    path: PathBuf,
    /// Keeps `path` valid where it names a descriptor.
    open: Option<File>,
    arguments: Vec<OsString>,
}

impl EngineProgram {
    /// The running program. On Linux it is held open, so that every engine is of the front's own build even when the
    /// file was replaced since.
    pub fn current() -> io::Result<EngineProgram> {
        let path = std::env::current_exe()?;
        if cfg!(target_os = "linux")
            && let Ok(open) = File::open("/proc/self/exe")
        {
            let path = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
            return Ok(EngineProgram { path, open: Some(open), arguments: Vec::new() });
        }
        Ok(EngineProgram::at(path))
    }

    /// A program by its path.
    pub fn at(path: impl Into<PathBuf>) -> EngineProgram {
        EngineProgram { path: path.into(), open: None, arguments: Vec::new() }
    }

    /// Adds an argument behind `engine`.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> EngineProgram {
        self.arguments.push(argument.into());
        self
    }
}

impl Launch for EngineProgram {
    fn launch(&self) -> io::Result<(UnixStream, Arc<dyn Process>)> {
        let (ours, theirs) = unfazed_wire::link::pair()?;
        let mut command = Command::new(&self.path);
        if self.open.is_some() {
            command.arg0("unfazed");
        }
        // Its own process group: Ctrl-C in a terminal reaches the front alone, which ends its engine in good order.
        // Standard output belongs to the front's events; standard error is shared for logs.
        command.arg("engine").args(&self.arguments).process_group(0);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn()?;
        Ok((ours, Arc::new(ChildProcess(Mutex::new(child)))))
    }
}

/// A child of this process. The lock keeps a kill from reaching a number that was given to another process since: only
/// a child that was not waited for yet is killed.
struct ChildProcess(Mutex<Child>);

impl Process for ChildProcess {
    fn kill(&self) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(child.try_wait(), Ok(None))
            && let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            tracing::warn!(%error, "the engine's process group cannot be ended");
        }
    }

    fn exit(&self) -> Option<Exit> {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(Exit { code: status.code(), signal: status.signal() }),
            // Somebody else reaped it: it has ended, how is lost.
            Err(_) => Some(Exit::default()),
        }
    }
}
