//! Writes records, one after the other, into the last segment.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::io;

use super::folder::{Folder, SegmentFile};
use super::format::{HEADER_BYTES, Record, StreamKey, file_name, header};
use super::index::{Index, Segment, Stream};
use super::limits::Limits;

/// The segment that is written.
pub(super) struct Current {
    number: u64,
    file: Box<dyn SegmentFile>,
    len: u64,
    /// Bytes of records since the last sync.
    unsynced: u64,
}

/// The segments of a folder, written at the end.
pub(super) struct Log {
    pub(super) folder: Box<dyn Folder>,
    pub(super) limits: Limits,
    pub(super) index: Index,
    /// Of the records that are written.
    pub(super) epoch: u64,
    current: Option<Current>,
    /// Number of the next segment; `None` if there is no higher one.
    next: Option<u64>,
    /// Framed records on their way.
    buffer: Vec<u8>,
}

/// Buffers up to this size are kept for the next records.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

impl Log {
    /// Goes on behind what is there, in a new segment: never behind what may be torn.
    pub(super) fn new(folder: Box<dyn Folder>, limits: Limits, index: Index) -> Log {
        let mut log = Log { folder, limits, index, epoch: 0, current: None, next: None, buffer: Vec::new() };
        log.behind();
        log.epoch = log.next.unwrap_or(u64::MAX);
        log
    }

    /// Numbers go on behind those of the index.
    fn behind(&mut self) {
        self.next = self.index.highest.checked_add(1);
    }

    /// Number of the next segment that is begun.
    pub(super) fn next(&self) -> Option<u64> {
        self.next
    }

    /// What is written next goes into a new segment, until [`Log::take_up`].
    pub(super) fn set_aside(&mut self) -> Option<Current> {
        self.current.take()
    }

    /// Goes on in the segment that was set aside.
    pub(super) fn take_up(&mut self, current: Option<Current>) {
        self.current = current;
    }

    /// The segment that is written.
    pub(super) fn current(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.number)
    }

    /// Gives records to the system, in order. After an error nobody knows which of them are there.
    pub(super) fn write<B: AsRef<[u8]>>(&mut self, records: &[Record<B>], now_ms: u64) -> io::Result<()> {
        let result = self.write_all(records, now_ms);
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BUFFER_BYTES);
        result
    }

    fn write_all<B: AsRef<[u8]>>(&mut self, records: &[Record<B>], now_ms: u64) -> io::Result<()> {
        for record in records {
            let framed = self.buffer.len() as u64;
            let full = |current: &Current| {
                let len = current.len + framed;
                len > HEADER_BYTES as u64 && len + record.size() > self.limits.segment()
            };
            if self.current.as_ref().is_none_or(full) {
                self.write_buffer()?;
                self.close()?;
                self.begin(now_ms)?;
            }
            let Some(current) = &self.current else { continue };
            self.index.note(record, current.number);
            record.encode(current.number, current.len + self.buffer.len() as u64, &mut self.buffer);
        }
        self.write_buffer()
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        let Some(current) = self.current.as_mut().filter(|_| !self.buffer.is_empty()) else { return Ok(()) };
        let bytes = self.buffer.len() as u64;
        current.len += bytes;
        current.unsynced += bytes;
        if let Some(segment) = self.index.segments.get_mut(&current.number) {
            segment.bytes = current.len;
        }
        current.file.write(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn begin(&mut self, now_ms: u64) -> io::Result<()> {
        let full =
            || io::Error::other("no segment number is left; move the files with the highest numbers away");
        let number = self.next.ok_or_else(full)?;
        self.next = number.checked_add(1);
        let file = self.folder.create(number)?;
        let head = header(number, now_ms);
        let len = head.len() as u64;
        self.index.segments.insert(number, Segment { bytes: len, created_ms: now_ms, ..Segment::default() });
        self.current = Some(Current { number, file, len, unsynced: 0 });
        // Not `?` before `current` is set: what was begun is cleaned up as any segment is.
        if let Some(current) = &mut self.current {
            current.file.write(&head)?;
        }
        self.folder.sync()
    }

    /// Waits until the disk has all that was written.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        let Some(current) = self.current.as_mut().filter(|current| current.unsynced > 0) else {
            return Ok(());
        };
        current.file.sync()?;
        if let Some(segment) = self.index.segments.get_mut(&current.number) {
            segment.whole += std::mem::take(&mut current.unsynced);
        }
        Ok(())
    }

    /// Nothing more goes into the segment that is written.
    pub(super) fn close(&mut self) -> io::Result<()> {
        self.sync()?;
        self.current = None;
        Ok(())
    }

    /// The same after an error: what is not synced may be anything.
    pub(super) fn abandon(&mut self) {
        self.current = None;
    }

    /// Deletes a closed segment, and waits until the disk knows: what made others forget streams of it may go only then.
    pub(super) fn remove(&mut self, segment: u64) -> io::Result<()> {
        self.folder.remove(segment)?;
        self.folder.sync()?;
        self.index.remove(segment);
        Ok(())
    }

    /// After an error: looks which segments are left. Returns the streams that lost records; nothing more of them is written.
    pub(super) fn settle(&mut self) -> io::Result<Vec<StreamKey>> {
        let there = self.folder.segments()?;
        let gone: Vec<u64> =
            self.index.segments.keys().copied().filter(|number| !there.contains(number)).collect();
        let mut losers = Vec::new();
        self.folder.sync()?;
        for segment in gone {
            losers.extend(self.index.remove(segment));
        }
        losers.retain(|key| {
            self.index.streams.get_mut(key).is_some_and(|stream| !std::mem::replace(&mut stream.gap, true))
        });
        // Room first: what is not needed may be what fills the disk.
        for segment in self.done() {
            self.remove(segment)?;
        }
        Ok(losers)
    }

    /// Begins a segment, and waits until the disk has it.
    pub(super) fn begin_anew(&mut self, now_ms: u64) -> io::Result<()> {
        self.begin(now_ms)?;
        self.current.as_mut().map_or(Ok(()), |current| current.file.sync())
    }

    /// A segment's name for messages.
    pub(super) fn name(&self, segment: u64) -> String {
        self.folder.dir().join(file_name(segment)).display().to_string()
    }

    /// The folder was read anew, as another process had written there. Streams are where this process knows them to be.
    pub(super) fn reread(&mut self, index: Index) {
        self.current = None;
        let known = std::mem::replace(&mut self.index, index);
        for (key, stream) in known.streams {
            match self.index.streams.entry(key) {
                Entry::Occupied(mut found) => {
                    let uses = std::mem::take(&mut found.get_mut().uses);
                    found.insert(Stream { uses, ..stream });
                }
                Entry::Vacant(place) => {
                    place.insert(Stream { uses: BTreeMap::new(), gap: true, ..stream });
                }
            }
        }
        self.behind();
        // Its own entries count, not those that the other process may have written in their place.
        self.epoch = self.epoch.max(self.next.unwrap_or(u64::MAX));
    }
}
