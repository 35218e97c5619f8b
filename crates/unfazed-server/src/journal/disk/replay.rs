//! Reads what is there: which streams, whole as far as they go.
//!
//! Segments are read from the last to the first. So what says that a stream is forgotten comes before what it is about, and
//! of forgotten streams nothing is ever held; and when more is there than may be kept, the streams that were written last
//! are held already.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::JournalError;
use super::folder::Folder;
use super::format::{Kind, Record, StreamKey, VERSION, chain, file_name};
use super::index::{Index, Segment, Stream};
use super::limits::Limits;
use super::scan::scan;

/// A stream that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) key: StreamKey,
    pub(crate) admission: Vec<u8>,
    /// From the first on, without a gap. Its next entry will follow these.
    pub(crate) entries: Vec<Vec<u8>>,
    /// When its last record was written.
    pub(crate) written: SystemTime,
}

/// What was found, and what of it was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    /// Places that hold no whole record where one should be. A server that was killed while it wrote leaves one.
    pub(crate) bad_records: u64,
    /// Bytes that no whole record is in, or that could not be read.
    pub(crate) skipped_bytes: u64,
    /// Streams with entries behind a gap, which were dropped.
    pub(crate) gaps: u64,
    /// Streams whose admission is missing, which were dropped.
    pub(crate) without_admission: u64,
    /// Streams that were dropped as too old.
    pub(crate) expired: u64,
    /// Streams that were dropped as more was there than may be kept.
    pub(crate) over_size: u64,
}

/// An entry that may be the one of its number.
struct Candidate {
    epoch: u64,
    follows: u64,
    bytes: Vec<u8>,
}

/// What was read of a stream so far.
#[derive(Default)]
struct Reading {
    admission: Option<(u64, Vec<u8>)>,
    entries: BTreeMap<u32, Candidate>,
    last_ms: u64,
    uses: BTreeMap<u64, u64>,
}

impl Reading {
    fn bytes(&self) -> u64 {
        self.uses.values().sum()
    }

    fn take(&mut self, record: &Record<&[u8]>, segment: u64) {
        self.last_ms = self.last_ms.max(record.time_ms);
        *self.uses.entry(segment).or_default() += record.size();
        let Record { epoch, follows, bytes, .. } = *record;
        if record.kind == Kind::Admission {
            if self.admission.as_ref().is_none_or(|(held, _)| *held < epoch) {
                self.admission = Some((epoch, bytes.to_vec()));
            }
        } else if self.entries.get(&record.ordinal).is_none_or(|held| held.epoch < epoch) {
            self.entries.insert(record.ordinal, Candidate { epoch, follows, bytes: bytes.to_vec() });
        }
    }
}

/// All that was read so far.
#[derive(Default)]
struct Replay {
    streams: HashMap<StreamKey, Reading>,
    /// Where it says that a stream is forgotten, and all segments with records of it.
    forgotten: HashMap<StreamKey, (u64, BTreeSet<u64>)>,
    /// Dropped as more was there than may be kept, and all segments with records of them.
    over_size: HashMap<StreamKey, BTreeSet<u64>>,
    held_bytes: u64,
    /// Highest number of a segment.
    highest: u64,
    segments: BTreeMap<u64, Segment>,
    found: Found,
}

/// What a folder held.
pub(super) struct Replayed {
    pub(super) index: Index,
    pub(super) kept: Vec<Kept>,
    pub(super) found: Found,
    /// Streams that are to be forgotten in the journal as well.
    pub(super) over_size: Vec<StreamKey>,
}

/// Reads a folder. Fails if that can't be listed or a segment is of another format; damage is no failure.
pub(super) fn replay(folder: &dyn Folder, limits: &Limits, now_ms: u64) -> Result<Replayed, JournalError> {
    let listed = folder.segments();
    let segments = listed.map_err(|cause| JournalError::folder(folder.dir(), "cannot be listed", &cause))?;
    let mut replay = Replay { highest: segments.last().copied().unwrap_or_default(), ..Replay::default() };
    for segment in segments.into_iter().rev() {
        // What can't be opened at all is left alone, as are its bytes: it may be a folder.
        match folder.read(segment, limits.most_read_bytes()) {
            Ok(contents) => {
                // What a killed process left in the system's memory is relied on from now on.
                let synced = folder.sync_segment(segment);
                let name = || folder.dir().join(file_name(segment));
                synced.map_err(|cause| JournalError::folder(name(), "cannot be synced", &cause))?;
                replay.found.skipped_bytes += contents.unread;
                replay.segment(segment, &contents.bytes)?;
            }
            Err(_) => replay.found.bad_records += 1,
        }
        replay.keep_within(limits.total_bytes);
    }
    let synced = folder.sync();
    synced.map_err(|cause| JournalError::folder(folder.dir(), "cannot be synced", &cause))?;
    Ok(replay.end(limits, now_ms))
}

impl Replay {
    fn segment(&mut self, segment: u64, bytes: &[u8]) -> Result<(), JournalError> {
        let mut records = Vec::new();
        let scan = scan(bytes, segment, |record| records.push(record));
        if let Some(version) = scan.header.map(|header| header.version).filter(|version| *version != VERSION)
        {
            return Err(JournalError::Version { segment: file_name(segment), version, known: VERSION });
        }
        for record in records.iter().filter(|record| record.kind == Kind::Forgotten) {
            self.forget(record.key, segment);
        }
        for record in records.iter().filter(|record| record.kind != Kind::Forgotten) {
            if let Some((_, segments)) = self.forgotten.get_mut(&record.key) {
                segments.insert(segment);
            } else if let Some(segments) = self.over_size.get_mut(&record.key) {
                segments.insert(segment);
            } else {
                self.held_bytes += record.size();
                self.streams.entry(record.key).or_default().take(record, segment);
            }
        }
        let created_ms = scan.header.map_or(0, |header| header.created_ms);
        let bytes = bytes.len() as u64;
        let about = Segment { bytes, whole: scan.whole_bytes, created_ms, ..Segment::default() };
        self.segments.insert(segment, about);
        self.found.segments += 1;
        self.found.bytes += bytes;
        self.found.bad_records += scan.bad;
        self.found.skipped_bytes += scan.skipped_bytes;
        Ok(())
    }

    fn forget(&mut self, key: StreamKey, segment: u64) {
        // Records behind it there should be none of; they go as well.
        let read = self.streams.remove(&key).unwrap_or_default();
        self.held_bytes -= read.bytes();
        let (stone, segments) = self.forgotten.entry(key).or_insert((segment, BTreeSet::new()));
        *stone = (*stone).max(segment);
        segments.insert(segment);
        segments.extend(read.uses.keys());
    }

    /// Lets go of the least recently written streams while more is held than may be.
    fn keep_within(&mut self, most: u64) {
        if self.held_bytes <= most {
            return;
        }
        let mut by_age: Vec<_> = self.streams.iter().map(|(key, reading)| (reading.last_ms, *key)).collect();
        by_age.sort_unstable();
        by_age.pop();
        for (_, key) in by_age {
            if self.held_bytes <= most {
                break;
            }
            let reading = self.streams.remove(&key).unwrap_or_default();
            self.held_bytes -= reading.bytes();
            self.over_size.insert(key, reading.uses.into_keys().collect());
            self.found.over_size += 1;
        }
    }

    fn end(mut self, limits: &Limits, now_ms: u64) -> Replayed {
        let mut index = Index::default();
        (index.segments, index.highest) = (std::mem::take(&mut self.segments), self.highest);
        for (key, (stone, segments)) in std::mem::take(&mut self.forgotten) {
            index.bury(key, Some(stone), segments);
        }
        let over_size: Vec<_> = self.over_size.keys().copied().collect();
        for (key, segments) in std::mem::take(&mut self.over_size) {
            index.bury(key, None, segments);
        }
        let mut kept = Vec::new();
        let oldest_ms = limits.oldest_ms(now_ms);
        for (key, reading) in std::mem::take(&mut self.streams) {
            if reading.last_ms < oldest_ms {
                self.found.expired += 1;
            } else if let Some((stream, found)) = self.stream(key, reading, now_ms) {
                index.keep(key, stream);
                kept.push(found);
            }
        }
        kept.sort_by_key(|kept| (kept.written, kept.key));
        Replayed { index, kept, found: self.found, over_size }
    }

    /// The stream as far as it is whole.
    fn stream(&mut self, key: StreamKey, reading: Reading, now_ms: u64) -> Option<(Stream, Kept)> {
        let Some((_, admission)) = reading.admission else {
            self.found.without_admission += 1;
            return None;
        };
        // A clock that was wrong must not keep it for ever.
        let last_ms = reading.last_ms.min(now_ms);
        let mut stream = Stream { uses: reading.uses, ..Stream::admitted(&admission, last_ms) };
        let mut entries = Vec::new();
        for (ordinal, entry) in reading.entries {
            if ordinal != stream.next || entry.follows != stream.chain {
                self.found.gaps += 1;
                break;
            }
            stream.next += 1;
            stream.chain = chain(stream.chain, &entry.bytes);
            entries.push(entry.bytes);
        }
        let written = UNIX_EPOCH + Duration::from_millis(last_ms);
        Some((stream, Kept { key, admission, entries, written }))
    }
}
