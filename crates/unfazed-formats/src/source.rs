//! Bytes that can be read at an offset.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::Identity;

/// A file, or memory that stands for one. Reads have no position, so one source serves many threads.
pub trait ByteSource: Send + Sync {
    /// Base name, for messages to people (never a path: messages may reach clients).
    fn name(&self) -> &str;
    /// Length in bytes.
    fn len(&self) -> u64;
    /// True if there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Fills `buf` from `offset`; an end of file before that is an error of kind `UnexpectedEof`.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

/// An open file (or any descriptor that supports positional reads, such as a memfd).
#[derive(Debug)]
pub struct FileSource {
    name: String,
    identity: Identity,
    file: File,
}

impl FileSource {
    /// Takes an open file under a base name; its length and what else tells whether it changes are taken now.
    pub fn new(name: impl Into<String>, file: File) -> io::Result<FileSource> {
        let identity = Identity::from(&file.metadata()?);
        Ok(FileSource { name: name.into(), identity, file })
    }

    /// What the file was when it was taken.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The open file, for handing its descriptor to another process.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl ByteSource for FileSource {
    fn name(&self) -> &str {
        &self.name
    }
    fn len(&self) -> u64 {
        self.identity.size
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

/// Bytes in memory.
#[derive(Debug)]
pub struct MemorySource<'a> {
    name: String,
    bytes: &'a [u8],
}

impl<'a> MemorySource<'a> {
    /// Bytes under a base name.
    pub fn new(name: impl Into<String>, bytes: &'a [u8]) -> MemorySource<'a> {
        MemorySource { name: name.into(), bytes }
    }
}

impl ByteSource for MemorySource<'_> {
    fn name(&self) -> &str {
        &self.name
    }
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.checked_add(buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let bytes = self.bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}
