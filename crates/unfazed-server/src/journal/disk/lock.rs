//! One process at a time writes a journal. The lock belongs to the open file, so its descriptor carries it to a successor.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::JournalError;
use super::folder::FILE_MODE;

/// The locked file. It holds the id of the process that has it.
pub(super) const LOCK_FILE: &str = "lock";
/// No process id is longer.
const MAX_PID_DIGITS: u64 = 20;

/// The lock of a journal's folder.
#[derive(Debug)]
pub(super) struct Lock {
    dir: PathBuf,
    /// `None` once it was handed over.
    held: Mutex<Option<File>>,
}

impl Lock {
    /// Takes it, or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Lock, JournalError> {
        let file = open(dir).map_err(|cause| failed(dir, &cause))?;
        Lock::of(dir, file)
    }

    /// The lock that another process had, by its descriptor.
    pub(super) fn with(dir: &Path, descriptor: OwnedFd) -> Result<Lock, JournalError> {
        let file = File::from(descriptor);
        match is_at(&file, &dir.join(LOCK_FILE)) {
            Ok(true) => Lock::of(dir, file),
            Ok(false) => {
                let cause = io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is another file's");
                Err(failed(dir, &cause))
            }
            Err(cause) => Err(failed(dir, &cause)),
        }
    }

    fn of(dir: &Path, mut file: File) -> Result<Lock, JournalError> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(JournalError::Locked { dir: dir.to_owned(), pid: holder(&mut file) });
            }
            Err(errno) => return Err(failed(dir, &errno.into())),
        }
        name_holder(&mut file).map_err(|cause| failed(dir, &cause))?;
        Ok(Lock { dir: dir.to_owned(), held: Mutex::new(Some(file)) })
    }

    /// Gives it away, still locked.
    pub(super) fn release(&self) -> Option<OwnedFd> {
        self.held().take().map(OwnedFd::from)
    }

    /// Takes it back from a process that it was given to.
    pub(super) fn resume(&self, descriptor: OwnedFd) -> Result<(), JournalError> {
        let other = Lock::with(&self.dir, descriptor)?;
        *self.held() = other.held().take();
        Ok(())
    }

    /// Whether it is held. If its file was deleted, with the folder perhaps, it is taken anew.
    pub(super) fn check(&self) -> io::Result<()> {
        let mut held = self.held();
        let path = self.dir.join(LOCK_FILE);
        match held.as_ref().map(|file| is_at(file, &path)) {
            Some(Ok(true)) => return Ok(()),
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Some(_) => {}
            None => return Err(io::Error::other("it was handed over")),
        }
        let other = Lock::take(&self.dir).map_err(|error| io::Error::other(error.to_string()))?;
        *held = other.held().take();
        Ok(())
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<File>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(dir: &Path, cause: &io::Error) -> JournalError {
    JournalError::folder(dir.join(LOCK_FILE), "cannot be locked", cause)
}

fn open(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(dir.join(LOCK_FILE))
}

/// Whether a file is the one that has this name now.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (ours, named) = (file.metadata()?, std::fs::metadata(path)?);
    Ok((ours.dev(), ours.ino()) == (named.dev(), named.ino()))
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_PID_DIGITS).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn name_holder(file: &mut File) -> io::Result<()> {
    // Not in the way of a journal on a full disk.
    let written =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    match written {
        Err(error) if error.kind() != io::ErrorKind::StorageFull => Err(error),
        _ => Ok(()),
    }
}
