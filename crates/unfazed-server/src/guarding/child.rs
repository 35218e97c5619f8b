//! The guarded server's process: its start, its end, and that it never outlives the guard.
//!
//! It leads a process group, so that what it starts ends with it. Should the guard be killed, two things end the server:
//! on Linux the kernel, which is asked to before the program begins ([`become_guarded`]), and everywhere a second process
//! of the guard's that notices its end ([`Reaper`]).

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Command as Process, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::mpsc::UnboundedReceiver;

use super::output::{self, OutputSink, Stream, Tail, Told};
use super::programs::Command;
use crate::supervisor::{ChildProcess, EngineProgram, relax};

/// The hidden command of this program that becomes the guarded server, or watches over it.
const PART: &str = "guarded";
/// Argument of the one that watches.
const REAP: &str = "--reap";

/// Why a program cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum NoProgram {
    /// There is none of that name.
    #[error("{0}: there is no such program (looked for in PATH; give its path, or install it)")]
    NotFound(String),
    /// It may not be executed.
    #[error("{0}: it cannot be executed (chmod +x makes a program of it)")]
    NotExecutable(String),
}

/// Looks for a program as a shell would.
///
/// # Errors
///
/// It is not there, or not executable.
pub fn find(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NoProgram> {
    let shown = || program.to_string_lossy().into_owned();
    let candidates: Vec<PathBuf> = if program.as_encoded_bytes().contains(&b'/') {
        vec![PathBuf::from(program)]
    } else {
        std::env::split_paths(path.unwrap_or_default()).map(|folder| folder.join(program)).collect()
    };
    let mut files = candidates.into_iter().filter(|path| path.is_file()).peekable();
    if files.peek().is_none() {
        return Err(NoProgram::NotFound(shown()));
    }
    let executable =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
    files.find(executable).ok_or_else(|| NoProgram::NotExecutable(shown()))
}

/// A started server.
pub(super) struct Started {
    pub(super) process: Arc<ChildProcess>,
    pub(super) pid: u32,
    pub(super) tail: Tail,
    pub(super) faults: UnboundedReceiver<Told>,
}

/// Starts the server on a private port. `own` is this program, where the process is to end with the guard's.
///
/// To be called from a thread that lives as long as the guard: on Linux the server ends with the thread that started it.
pub(super) fn start(
    own: Option<&EngineProgram>,
    command: &Command,
    port: u16,
    sink: &OutputSink,
) -> io::Result<Started> {
    let mut process = match own {
        Some(own) => {
            let mut process = own.part(PART);
            process.arg(std::process::id().to_string()).arg("--").arg(&command.program);
            process
        }
        None => Process::new(&command.program),
    };
    relax(&mut process);
    process.args(command.arguments(port)).process_group(0).stdin(Stdio::null());
    let mut child = process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = child.id();
    let outputs = (child.stdout.take(), child.stderr.take());
    // From here on it is ended when it is dropped.
    let process = Arc::new(ChildProcess::new(child));
    let (told, faults) = tokio::sync::mpsc::unbounded_channel();
    let tail = Tail::default();
    let read = || -> io::Result<()> {
        let (Some(stdout), Some(stderr)) = outputs else {
            return Err(io::Error::other("the server has no output"));
        };
        output::read(Stream::Stdout, stdout, Arc::clone(sink), tail.clone(), told.clone())?;
        output::read(Stream::Stderr, stderr, Arc::clone(sink), tail.clone(), told)
    };
    if let Err(error) = read() {
        crate::Process::kill(&*process);
        return Err(error);
    }
    Ok(Started { process, pid, tail, faults })
}

/// Makes this process the guarded server: what the hidden command does. Only returns if that fails.
pub fn become_guarded(guard: u32, program: &OsStr, arguments: &[std::ffi::OsString]) -> io::Error {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getppid, set_parent_process_death_signal};
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            return error.into();
        }
        // The guard may have ended before.
        let parent = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
        if parent != Some(guard) {
            return io::Error::other("the guard has ended");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = guard;
    Process::new(program).args(arguments).exec()
}

/// A process of this program's that ends the guarded server when the guard has ended without doing so itself.
pub(super) struct Reaper {
    line: Mutex<ChildStdin>,
    _process: ChildProcess,
}

impl Reaper {
    pub(super) fn start(own: &EngineProgram) -> io::Result<Reaper> {
        let mut child = own.part(PART).arg(REAP).stdin(Stdio::piped()).spawn()?;
        let line = child.stdin.take().ok_or_else(|| io::Error::other("no pipe"))?;
        Ok(Reaper { line: Mutex::new(line), _process: ChildProcess::new(child) })
    }

    /// Which process group is to be ended; 0 is none.
    pub(super) fn watch(&self, group: u32) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = line.write_all(format!("{group}\n").as_bytes()) {
            tracing::warn!(%error, "nothing ends the server if the guard is killed");
        }
    }
}

/// What that process does: reads groups, and ends the last one at the end of input.
pub fn reap(input: impl io::Read) {
    let mut group = 0;
    for line in BufReader::new(input).lines() {
        let Ok(line) = line else { break };
        group = line.trim().parse().unwrap_or(group);
    }
    if let Some(group) = Pid::from_raw(group).filter(|group| !group.is_init()) {
        // It may have ended already.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_as_a_shell_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        let search = folder.path().as_os_str();
        let find = |name: &str| find(OsStr::new(name), Some(search));
        assert!(matches!(find("server"), Err(NoProgram::NotExecutable(_))));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find("server").unwrap(), path);
        assert_eq!(find(path.to_str().unwrap()).unwrap(), path);
        let error = find("other").unwrap_err();
        assert!(matches!(error, NoProgram::NotFound(_)) && error.to_string().starts_with("other: "));
    }

    #[test]
    fn the_last_group_that_was_named_is_ended_and_no_other() {
        let sleep = || Process::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let (mut first, mut second) = (sleep(), sleep());
        reap(format!("{}\n{}\n", first.id(), second.id()).as_bytes());
        assert!(!second.wait().unwrap().success());
        assert!(first.try_wait().unwrap().is_none());
        reap(format!("{}\n0\n", first.id()).as_bytes());
        assert!(first.try_wait().unwrap().is_none());
        reap(format!("{}\n", first.id()).as_bytes());
        assert!(!first.wait().unwrap().success());
    }
}
