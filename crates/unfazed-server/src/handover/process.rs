//! The successor as a process: the program from its file, with the same arguments and its link as standard input.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use crate::supervisor::Exit;

/// Tells a program that it takes over from another one, which talks to it on standard input.
const VARIABLE: &str = "UNFAZED_TAKE_OVER";

/// Whether this process was started to take over from another one.
pub fn is_successor() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// What is started to take over: the program by its name, so that a file that was replaced is the new program.
#[derive(Clone, Debug)]
pub struct SuccessorProgram {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl SuccessorProgram {
    /// The program that runs, wherever its file is now, with the arguments that it was started with.
    ///
    /// # Errors
    ///
    /// Where the system does not say which file that is.
    pub fn current() -> io::Result<SuccessorProgram> {
        Ok(SuccessorProgram { path: std::env::current_exe()?, arguments: std::env::args_os().collect() })
    }

    /// Its file.
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Starts it and returns this end of its link.
    pub(crate) fn start(&self) -> io::Result<(UnixStream, SuccessorProcess)> {
        let (ours, theirs) = unfazed_wire::link::pair()?;
        let mut command = Command::new(&self.path);
        let mut arguments = self.arguments.iter();
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        // A process group of its own: a terminal's Ctrl-C reaches the old front alone, which passes it on once.
        command.args(arguments).env(VARIABLE, "1").stdin(Stdio::from(theirs)).process_group(0);
        unfazed_host::service_manager::hand_down(&mut command);
        let child = command.spawn()?;
        Ok((ours, SuccessorProcess(Arc::new(Mutex::new(child)))))
    }
}

/// Lets processes that this one's children leave behind be its own children, where the system can: a front in the middle
/// of several can leave then.
pub(crate) fn adopt_orphans() -> bool {
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        false
    }
}

/// The started process.
#[derive(Clone)]
pub(crate) struct SuccessorProcess(Arc<Mutex<Child>>);

impl SuccessorProcess {
    pub(crate) fn id(&self) -> u32 {
        self.child().id()
    }

    /// How it ended, `None` while it has not.
    pub(crate) fn exit(&self) -> Option<Exit> {
        match self.child().try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(Exit { code: status.code(), signal: status.signal() }),
            // Somebody else reaped it: it has ended, how is lost.
            Err(_) => Some(Exit::default()),
        }
    }

    /// Ends it at once, and waits for that; one that is killed has nothing that could keep it.
    pub(crate) fn end(&self) {
        self.signal(Signal::KILL);
        if let Err(error) = self.child().wait() {
            tracing::warn!(%error, "the new front cannot be waited for");
        }
    }

    /// Sends it a signal, unless it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        // The lock keeps the number from being another process's.
        let mut child = self.child();
        if matches!(child.try_wait(), Ok(None))
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
            && let Err(error) = kill_process(pid, signal)
        {
            tracing::warn!(%error, "a signal cannot be passed on to the new front");
        }
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
