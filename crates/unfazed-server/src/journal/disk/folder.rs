//! The folder that segments are in: what the journal needs of a file system. The real one is here; tests have one that
//! fails at any operation and loses power at any moment.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::JournalError;
use super::format::{file_name, segment_number};
use super::lock::{LOCK_FILE, Lock};

/// Rights of the folder, and of the files in it: prompts and answers are nobody else's.
const FOLDER_MODE: u32 = 0o700;
pub(super) const FILE_MODE: u32 = 0o600;
/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;
/// What a bad sector costs: it is read over in steps of so many bytes.
const BLOCK_BYTES: usize = 4096;
/// A drive that fails so often in one file has gone.
const MAX_BAD_BLOCKS: usize = 64;

/// What a file held.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Zeros where it could not be read.
    pub(super) bytes: Vec<u8>,
    /// Bytes that could not be read, or are beyond the limit.
    pub(super) unread: u64,
}

/// A folder of segments.
pub(super) trait Folder: Send {
    /// Its path, for messages.
    fn dir(&self) -> &Path;
    /// The numbers of those that are there, from the first.
    fn segments(&self) -> io::Result<Vec<u64>>;
    /// At most `limit` bytes of one. Bytes that can't be read are no error.
    fn read(&self, segment: u64, limit: u64) -> io::Result<Contents>;
    /// Waits until the disk has all of one that was written before.
    fn sync_segment(&self, segment: u64) -> io::Result<()>;
    /// A new one; an error if it is there.
    fn create(&mut self, segment: u64) -> io::Result<Box<dyn SegmentFile>>;
    /// Deletes one; none there is fine.
    fn remove(&mut self, segment: u64) -> io::Result<()>;
    /// Waits until the disk knows which segments there are.
    fn sync(&self) -> io::Result<()>;
    /// Whether the folder is still there and nobody else's.
    fn check(&mut self) -> io::Result<()>;
}

/// A segment that is written. Closed by dropping it.
pub(super) trait SegmentFile: Send {
    /// Appends; after an error it is unknown how much.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Waits until the disk has all of it. After an error it is unknown what of that written since the last time it has.
    fn sync(&mut self) -> io::Result<()>;
}

/// A folder of the file system.
pub(super) struct RealFolder {
    dir: PathBuf,
    lock: Arc<Lock>,
}

impl RealFolder {
    pub(super) fn new(dir: &Path, lock: Arc<Lock>) -> RealFolder {
        RealFolder { dir: dir.to_owned(), lock }
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.dir.join(file_name(segment))
    }
}

/// Makes the folder, with rights for its owner alone. A folder that others have rights to is taken only if nothing but a
/// journal is in it, and then they lose them.
pub(super) fn prepare(dir: &Path) -> Result<(), JournalError> {
    let failed = |what| move |cause: io::Error| JournalError::folder(dir, what, &cause);
    if !dir.exists() {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(dir).map_err(failed("cannot be made"))?;
        let above = dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above).and_then(|above| above.sync_all()).map_err(failed("cannot be made to stay"))?;
    }
    let mode = std::fs::metadata(dir).map_err(failed("cannot be looked at"))?.mode() & 0o7777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir).map_err(failed("cannot be listed"))? {
        let name = entry.map_err(failed("cannot be listed"))?.file_name();
        let name = name.to_string_lossy();
        if name != LOCK_FILE && segment_number(&name).is_none() {
            return Err(JournalError::Shared { dir: dir.to_owned(), mode, file: name.into_owned() });
        }
    }
    std::fs::set_permissions(dir, Permissions::from_mode(FOLDER_MODE))
        .map_err(failed("other users have rights to it, and they cannot be taken away"))
}

impl Folder for RealFolder {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn segments(&self) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            found.extend(entry?.file_name().to_str().and_then(segment_number));
        }
        found.sort_unstable();
        Ok(found)
    }

    fn read(&self, segment: u64, limit: u64) -> io::Result<Contents> {
        let file = File::open(self.path(segment))?;
        let len = file.metadata()?.len();
        let wanted = usize::try_from(len.min(limit)).unwrap_or(usize::MAX);
        let mut contents = Contents::default();
        let mut bad_blocks = 0;
        while contents.bytes.len() < wanted && bad_blocks < MAX_BAD_BLOCKS {
            let at = contents.bytes.len();
            let step = if bad_blocks > 0 { BLOCK_BYTES } else { READ_BYTES }.min(wanted - at);
            contents.bytes.resize(at + step, 0);
            match file.read_at(&mut contents.bytes[at..], at as u64) {
                Ok(0) => {
                    contents.bytes.truncate(at);
                    break;
                }
                Ok(read) => contents.bytes.truncate(at + read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => contents.bytes.truncate(at),
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Err(error),
                Err(_) => {
                    bad_blocks += 1;
                    let block = BLOCK_BYTES.min(step);
                    contents.bytes.truncate(at);
                    contents.bytes.resize(at + block, 0);
                    contents.unread += block as u64;
                }
            }
        }
        contents.unread += len.saturating_sub(contents.bytes.len() as u64);
        Ok(contents)
    }

    fn sync_segment(&self, segment: u64) -> io::Result<()> {
        File::open(self.path(segment))?.sync_data()
    }

    fn create(&mut self, segment: u64) -> io::Result<Box<dyn SegmentFile>> {
        let path = self.path(segment);
        let file = OpenOptions::new().append(true).create_new(true).mode(FILE_MODE).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        match std::fs::remove_file(self.path(segment)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn check(&mut self) -> io::Result<()> {
        self.lock.check()
    }
}

struct RealFile(File);

impl SegmentFile for RealFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()?;
        // What was deleted under us takes everything and keeps nothing.
        if self.0.metadata()?.nlink() == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "its file was deleted"));
        }
        Ok(())
    }
}
