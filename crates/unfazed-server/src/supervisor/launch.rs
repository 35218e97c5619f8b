//! How an engine is started and ended.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use unfazed_host::{metal, service_manager};

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
    open: Option<Arc<File>>,
    arguments: Vec<OsString>,
}

/// The program that renders chat templates: `PROGRAM template ARGUMENTS`, with a socket as standard input.
#[derive(Clone, Debug)]
pub struct RendererProgram {
    path: PathBuf,
    open: Option<Arc<File>>,
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
            return Ok(EngineProgram { path, open: Some(Arc::new(open)), arguments: Vec::new() });
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

    /// The same program with the same arguments, for chat templates.
    pub fn renderer(&self) -> RendererProgram {
        let EngineProgram { path, open, arguments } = self;
        RendererProgram { path: path.clone(), open: open.clone(), arguments: arguments.clone() }
    }

    /// The command, but for its link.
    fn command(&self) -> Command {
        let mut command = self.part("engine");
        command.args(&self.arguments);
        relax(&mut command);
        command
    }

    /// A command of this program's, but for its arguments and its standard input.
    pub(crate) fn part(&self, part: &str) -> Command {
        command(&self.path, self.open.is_some(), part, &[])
    }
}

/// Sets what a process that computes should have in its environment before its first call of Metal, unless the user has.
pub(crate) fn relax(command: &mut Command) {
    let set = std::env::var_os(metal::RELAXED_TIMEOUT);
    if let Some(value) = metal::relaxed_timeout(std::env::consts::OS, set.as_deref()) {
        command.env(metal::RELAXED_TIMEOUT, value);
    }
}

impl RendererProgram {
    /// Starts it and returns the front's end of its socket.
    pub(crate) fn start(&self) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = unfazed_wire::link::pair()?;
        let mut command = command(&self.path, self.open.is_some(), "template", &self.arguments);
        Ok((command.stdin(Stdio::from(theirs)).spawn()?, ours))
    }
}

/// The command of a part of the program that the front starts, but for its standard input. `nameless`: the path names a
/// descriptor.
fn command(path: &Path, nameless: bool, part: &str, arguments: &[OsString]) -> Command {
    let mut command = Command::new(path);
    if nameless {
        command.arg0("unfazed");
    }
    // Its own process group: Ctrl-C in a terminal reaches the front alone, which ends what it started in good order.
    command.arg(part).args(arguments).process_group(0).env_remove(API_KEY_VARIABLE);
    service_manager::keep_from(&mut command);
    // Standard output belongs to the front's events; standard error is shared for logs.
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    command
}

impl Launch for EngineProgram {
    fn launch(&self) -> io::Result<(UnixStream, Arc<dyn Process>)> {
        let (ours, theirs) = unfazed_wire::link::pair()?;
        let child = self.command().stdin(Stdio::from(theirs)).spawn()?;
        Ok((ours, Arc::new(ChildProcess::new(child))))
    }
}

/// A child of this process. The lock keeps a kill from reaching a number that was given to another process since: only
/// a child that was not waited for yet is killed.
pub(crate) struct ChildProcess(Mutex<Child>);

impl ChildProcess {
    /// Takes charge of a child that leads a process group.
    pub(crate) fn new(child: Child) -> ChildProcess {
        ChildProcess(Mutex::new(child))
    }
}

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
        end_what_it_started(&child);
        match child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(Exit { code: status.code(), signal: status.signal() }),
            // Somebody else reaped it: it has ended, how is lost.
            Err(_) => Some(Exit::default()),
        }
    }
}

/// Ends the rest of a group whose leader has ended. Until the leader is reaped no other group can have its number.
fn end_what_it_started(leader: &Child) {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if let Some(group) = i32::try_from(leader.id()).ok().and_then(Pid::from_raw)
        && matches!(waitid(WaitId::Pid(group), ended), Ok(Some(_)))
    {
        // Mostly there is nothing left.
        let _ = kill_process_group(group, Signal::KILL);
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
    fn what_a_process_started_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        // The child holds the link: only once it is gone too does it end.
        let program = script(&folder, "sleep 600 & exit 3");
        let (mut link, process) = program.launch().unwrap();
        assert_eq!(wait_for_exit(&*process), Exit { code: Some(3), signal: None });
        assert_eq!(link.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn the_running_program_can_be_found() {
        let program = EngineProgram::current().unwrap();
        assert!(program.path.exists(), "{}", program.path.display());
    }
}
