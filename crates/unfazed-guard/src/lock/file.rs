//! The locked file: who holds a lock on it has the GPU. The kernel gives it back when the last process that has the descriptor
//! is gone.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::getuid;

use super::LockError;

/// The file may be replaced while it is being locked, so often at most.
const TRIES: usize = 16;
/// The file's rights. What sticks is not swept out of a runtime folder, where files are removed that nobody touched for hours.
const RIGHTS: u32 = if cfg!(target_os = "linux") { 0o1600 } else { 0o600 };

/// Locks a file, which is made if there is none; `None` if another process has it.
pub(super) fn try_lock(path: &Path) -> Result<Option<File>, LockError> {
    let failed = |source| LockError::System { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        secure(folder)?;
    }
    for _ in 0..TRIES {
        // Children get the descriptor: it can be read alone.
        let file = match open(path, File::options().read(true)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                open(path, File::options().write(true).create(true)).map_err(failed)?;
                continue;
            }
            file => file.map_err(failed)?,
        };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() || metadata.uid() != getuid().as_raw() {
            return Err(LockError::Foreign { path: path.to_owned() });
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // Whoever removed it meanwhile would lock another file.
        if is_at(&file, path).map_err(failed)? {
            // A lock on a file of other rights is as good.
            let _ = file.set_permissions(fs::Permissions::from_mode(RIGHTS));
            return Ok(Some(file));
        }
    }
    Err(failed(io::Error::other("it is replaced again and again")))
}

/// Whether an open file is the one of this name.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes who has it.
pub(super) fn describe(locked: &File, path: &Path, text: &str) -> io::Result<()> {
    if !is_at(locked, path)? {
        return Err(io::Error::other("it was replaced while it was locked"));
    }
    let file = open(path, File::options().write(true))?;
    // Never empty: others read it at any moment.
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// Opens the file itself, not what a link names, for its owner alone.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    options.mode(0o600).custom_flags(flags).open(path)
}

/// Makes a folder, or checks that it is ours alone to write: anybody may make one in a shared folder.
fn secure(folder: &Path) -> Result<(), LockError> {
    let failed = |source| LockError::System { path: folder.to_owned(), source };
    match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let metadata = fs::symlink_metadata(folder).map_err(failed)?;
    let ours = metadata.is_dir() && metadata.uid() == getuid().as_raw() && metadata.mode() & 0o022 == 0;
    if ours { Ok(()) } else { Err(LockError::Foreign { path: folder.to_owned() }) }
}

/// Processes that have the lock of this file. Where nobody tells, none.
#[cfg(target_os = "linux")]
pub(super) fn holders(path: &Path) -> Vec<u32> {
    let Ok(wanted) = fs::symlink_metadata(path) else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        descriptors.flatten().any(|descriptor| {
            let same = fs::metadata(descriptor.path())
                .is_ok_and(|open| (open.dev(), open.ino()) == (wanted.dev(), wanted.ino()));
            // Those who only try have the file open too.
            same && fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(descriptor.file_name()))
                .is_ok_and(|info| info.contains("FLOCK"))
        })
    };
    pids.filter(holds).collect()
}

/// Processes that have the lock of this file: not told here.
#[cfg(not(target_os = "linux"))]
pub(super) fn holders(_: &Path) -> Vec<u32> {
    Vec::new()
}
