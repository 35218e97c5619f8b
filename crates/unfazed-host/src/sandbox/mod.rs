//! Rights that a process gives up for good: files, with Landlock; system calls, with seccomp.
//!
//! | module | what |
//! |---|---|
//! | `files` | Landlock: files and folders but those that are needed, TCP, signals to other processes |
//! | `calls` | seccomp: system calls that reach out of the process |
//!
//! Each is optional. Kernels lack them, containers forbid them, macOS has neither: then the reason is told, and the process
//! goes on with the rights that it has.

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod files;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Files that a process needs once it has given up the others.
#[derive(Debug, Default)]
pub struct Needs<'a> {
    /// Open files that may be opened once more, for reading.
    pub files: &'a [OwnedFd],
    /// Files, and folders in which everything, may be read.
    pub read: Vec<PathBuf>,
    /// Devices, and folders of them, that may be read, written and controlled.
    pub devices: Vec<PathBuf>,
    /// Folders in which files may be read, written, made and removed.
    pub write: Vec<PathBuf>,
}

/// System calls to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Those that reach out of the process: new sockets, programs, processes, other processes' memory, the system's
    /// settings. Threads can still be started, and open descriptors be used.
    Outside,
    /// New io_uring rings, and changes of those that there are.
    Rings,
}

/// Gives up all files but those that are needed, TCP, and signals to other processes: for the calling thread and those that
/// it starts from now on. Returns the version of Landlock's interface that is in force (1 to 6; above 6 nothing is used).
///
/// # Errors
///
/// Why that cannot be had here. Nothing changes then.
pub fn give_up_files(needs: &Needs<'_>) -> Result<u32, String> {
    #[cfg(target_os = "linux")]
    return files::give_up(needs);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = needs;
        Err("there is no Landlock on this system".to_owned())
    }
}

/// Gives up system calls, for all threads of the process: they fail with `EPERM`.
///
/// # Errors
///
/// Why that cannot be had here.
pub fn give_up_calls(calls: Calls) -> Result<(), String> {
    #[cfg(target_os = "linux")]
    return calls::give_up(calls, calls::Threads::All);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = calls;
        Err("there is no seccomp on this system".to_owned())
    }
}

/// What this machine offers, found out by a thread that gives up its rights and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The version of Landlock's interface, or why there is none.
    pub landlock: Result<u32, String>,
    /// Whether seccomp filters can be had, or why not.
    pub seccomp: Result<(), String>,
}

/// Tries what this machine offers. The calling process keeps its rights, except that on Linux the thread that tries may
/// not be given more by programs that it starts, and it starts none.
pub fn offered() -> Offered {
    let tried = std::thread::Builder::new().name("sandbox".to_owned()).spawn(|| Offered {
        landlock: give_up_files(&Needs::default()),
        #[cfg(target_os = "linux")]
        seccomp: calls::give_up(Calls::Outside, calls::Threads::This),
        #[cfg(not(target_os = "linux"))]
        seccomp: give_up_calls(Calls::Outside),
    });
    let nothing = |why: &str| Offered { landlock: Err(why.to_owned()), seccomp: Err(why.to_owned()) };
    match tried.map(std::thread::JoinHandle::join) {
        Ok(Ok(offered)) => offered,
        Ok(Err(_)) => nothing("trying it failed"),
        Err(error) => nothing(&format!("no thread to try it on: {error}")),
    }
}
