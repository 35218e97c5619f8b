//! Files that others write: regular ones, and no more of them than is wanted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use jiff::Timestamp;
use rustix::fs::OFlags;

/// The beginning of a file, at most so many bytes.
pub(crate) fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The end of a file, at most so many bytes, and whether there is more before.
pub(crate) fn read_end(path: &Path, most: usize) -> io::Result<(Vec<u8>, bool)> {
    let mut file = open(path)?;
    let start = file.metadata()?.len().saturating_sub(most as u64);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok((bytes, start > 0))
}

/// When a file was last written, or the link that is in its place.
pub(crate) fn modified(path: &Path) -> io::Result<Timestamp> {
    let metadata = std::fs::metadata(path).or_else(|_| std::fs::symlink_metadata(path))?;
    Timestamp::try_from(metadata.modified()?).map_err(io::Error::other)
}

/// Without waiting for the other end of a pipe.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}
