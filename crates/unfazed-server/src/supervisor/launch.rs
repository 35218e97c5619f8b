//! How an engine is started and ended.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// Where the program finds the key that clients need. No engine needs it.
const API_KEY_VARIABLE: &str = "UNFAZED_API_KEY";

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

    /// The command, but for its link.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if self.open.is_some() {
            command.arg0("unfazed");
        }
        // Its own process group: Ctrl-C in a terminal reaches the front alone, which ends its engine in good order.
        command.arg("engine").args(&self.arguments).process_group(0).env_remove(API_KEY_VARIABLE);
        // Standard output belongs to the front's events; standard error is shared for logs.
        command.stdout(Stdio::null()).stderr(Stdio::inherit());
        command
    }
}

impl Launch for EngineProgram {
    fn launch(&self) -> io::Result<(UnixStream, Arc<dyn Process>)> {
        let (ours, theirs) = unfazed_wire::link::pair()?;
        let child = self.command().stdin(Stdio::from(theirs)).spawn()?;
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    use super::*;

    /// A program that is a shell script; its first argument is `engine`.
    fn script(folder: &tempfile::TempDir, text: &str) -> EngineProgram {
        let path = folder.path().join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        EngineProgram::at(path)
    }

    fn wait_for_exit(process: &dyn Process) -> Exit {
        let start = Instant::now();
        loop {
            if let Some(exit) = process.exit() {
                return exit;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "the process does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn an_engine_gets_its_arguments_and_its_link_as_standard_input() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(&folder, "echo \"$@\" >&0; exit 5").argument("--log").argument("warn");
        let (mut link, process) = program.launch().unwrap();
        let mut said = String::new();
        link.read_to_string(&mut said).unwrap();
        assert_eq!(said, "engine --log warn\n");
        assert_eq!(wait_for_exit(&*process), Exit { code: Some(5), signal: None });
        process.kill();
    }

    #[test]
    fn an_engine_does_not_inherit_the_clients_key() {
        let command = EngineProgram::at("/nowhere").command();
        assert!(command.get_envs().any(|variable| variable == (API_KEY_VARIABLE.as_ref(), None)));
    }

    #[test]
    fn a_kill_reaches_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        // The child holds the link too: only once both are gone does it end.
        let program = script(&folder, "sleep 600 & echo begun >&0; wait");
        let (mut link, process) = program.launch().unwrap();
        let mut said = [0; 6];
        link.read_exact(&mut said).unwrap();
        assert_eq!(process.exit(), None);
        process.kill();
        assert_eq!(wait_for_exit(&*process), Exit { code: None, signal: Some(9) });
        assert_eq!(link.read(&mut said).unwrap(), 0);
    }

    #[test]
    fn the_running_program_can_be_found() {
        let program = EngineProgram::current().unwrap();
        assert!(program.path.exists(), "{}", program.path.display());
    }
}
