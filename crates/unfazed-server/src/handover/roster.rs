//! Who serves now: the first of several fronts hears of each that follows, however many have left in between.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, test_kill_process, waitpid};

use crate::supervisor::Exit;

/// The way to tell the first front. Each front that takes over says so, and passes it on.
pub(crate) struct Roster {
    first: OwnedFd,
    /// At the first front.
    latest: Option<Latest>,
}

/// The front that took over last.
#[derive(Clone)]
pub(crate) struct Latest(Arc<AtomicI32>);

impl Roster {
    /// The first front's.
    pub(crate) fn first() -> io::Result<Roster> {
        let (reader, writer) = io::pipe()?;
        let latest = Latest(Arc::default());
        let note = latest.clone();
        std::thread::Builder::new().name("roster".to_owned()).spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                if let Ok(pid) = line.parse() {
                    note.0.store(pid, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Roster { first: writer.into(), latest: Some(latest) })
    }

    /// As another front passed it on.
    pub(crate) fn passed_on(first: OwnedFd) -> Roster {
        Roster { first, latest: None }
    }

    /// For the next one.
    pub(crate) fn pass_on(&self) -> io::Result<OwnedFd> {
        self.first.as_fd().try_clone_to_owned()
    }

    /// Says that this process serves now.
    pub(crate) fn announce(&self) -> io::Result<()> {
        let mut first = std::fs::File::from(self.pass_on()?);
        first.write_all(format!("{}\n", std::process::id()).as_bytes())
    }

    /// Who serves, if this is the first front's.
    pub(crate) fn latest(&self) -> Option<Latest> {
        self.latest.clone()
    }
}

impl Latest {
    /// Its process, once there is one.
    pub(crate) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.0.load(Ordering::Relaxed))
    }
}

/// Sends a signal to a process that may be another one's child.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    if let Err(error) = kill_process(pid, signal) {
        tracing::warn!(%error, "a signal cannot be passed on to the new front");
    }
}

/// How it is with a process that may be another one's child.
pub(crate) enum Seen {
    Runs,
    /// It was left to this one, and has ended.
    Ended(Exit),
    /// Its own parent knows how it ended.
    Gone,
}

/// Looks at it.
pub(crate) fn look(pid: Pid) -> Seen {
    match waitpid(Some(pid), WaitOptions::NOHANG) {
        Ok(None) => Seen::Runs,
        Ok(Some((_, status))) => {
            Seen::Ended(Exit { code: status.exit_status(), signal: status.terminating_signal() })
        }
        Err(_) if test_kill_process(pid).is_ok() => Seen::Runs,
        Err(_) => Seen::Gone,
    }
}
