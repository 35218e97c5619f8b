//! Which streams have records in which segments: what tells whether a segment is needed.
//!
//! Errs towards "needed": a record counts from before it is written, as after a failed write nobody knows whether it is
//! there.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::format::{Kind, RECORD_OVERHEAD, Record, StreamKey, chain};

/// A stream that is needed.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    /// Number of its next entry.
    pub(super) next: u32,
    /// What that follows.
    pub(super) chain: u64,
    /// When its last record was written, in milliseconds since 1970.
    pub(super) last_ms: u64,
    /// Entries of it are missing: later ones are of no use.
    pub(super) gap: bool,
    /// Bytes of its records, by segment.
    pub(super) uses: BTreeMap<u64, u64>,
}

impl Stream {
    /// One that begins with this admission.
    pub(super) fn admitted(bytes: &[u8], now_ms: u64) -> Stream {
        Stream { chain: chain(0, bytes), last_ms: now_ms, ..Stream::default() }
    }

    fn bytes(&self) -> u64 {
        self.uses.values().sum()
    }
}

/// A stream that is not needed, with records that are still there.
#[derive(Clone, Debug, Default)]
pub(super) struct Grave {
    /// Segments whose record says so. None until it is written.
    stones: BTreeSet<u64>,
    /// All segments with records of it.
    segments: BTreeSet<u64>,
}

impl Grave {
    /// Whether it would come back if all records that say so went.
    fn is_needed(&self) -> bool {
        self.segments.iter().any(|segment| Some(segment) != self.stones.last())
    }

    /// The segment whose record is needed to say so: the last one of several.
    fn stone(&self) -> Option<u64> {
        self.stones.last().copied().filter(|_| self.is_needed())
    }
}

/// A segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Segment {
    /// Its length.
    pub(super) bytes: u64,
    /// Bytes of records in it that are needed.
    pub(super) live: u64,
    /// Bytes of records that the disk is known to have.
    pub(super) whole: u64,
    /// When it was begun, in milliseconds since 1970.
    pub(super) created_ms: u64,
    /// All that is needed of it is in later segments as well.
    pub(super) carried: bool,
    /// Not all that is needed of it can be read: it stays.
    pub(super) damaged: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) streams: HashMap<StreamKey, Stream>,
    graves: HashMap<StreamKey, Grave>,
    pub(super) segments: BTreeMap<u64, Segment>,
    /// Highest number that a file had when the folder was read, a segment or not.
    pub(super) highest: u64,
}

const STONE_BYTES: u64 = RECORD_OVERHEAD as u64;

impl Index {
    /// A record is going to be in a segment.
    pub(super) fn note<B: AsRef<[u8]>>(&mut self, record: &Record<B>, segment: u64) {
        let size = record.size();
        match record.kind {
            Kind::Forgotten => self.note_stone(record.key, segment),
            Kind::Admission | Kind::Entry => {
                if let Some(stream) = self.streams.get_mut(&record.key) {
                    *stream.uses.entry(segment).or_default() += size;
                    self.live(segment, size);
                } else if let Some(grave) = self.graves.get_mut(&record.key) {
                    grave.segments.insert(segment);
                }
            }
        }
    }

    fn note_stone(&mut self, key: StreamKey, segment: u64) {
        // One that nobody knows is written to be safe, and needed only as long as there is something to forget.
        let grave = self.graves.entry(key).or_default();
        let before = grave.stone();
        grave.segments.insert(segment);
        grave.stones.insert(segment);
        let after = grave.stone();
        self.move_stone(before, after);
    }

    fn move_stone(&mut self, before: Option<u64>, after: Option<u64>) {
        if before != after {
            if let Some(segment) = before.and_then(|segment| self.segments.get_mut(&segment)) {
                segment.live = segment.live.saturating_sub(STONE_BYTES);
            }
            if let Some(segment) = after {
                self.live(segment, STONE_BYTES);
            }
        }
    }

    fn live(&mut self, segment: u64, bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.live += bytes;
        }
    }

    /// A stream is not needed any more. Returns whether it was known: then a record has to say so.
    pub(super) fn forget(&mut self, key: StreamKey) -> bool {
        let Some(stream) = self.streams.remove(&key) else { return false };
        for (segment, bytes) in &stream.uses {
            if let Some(segment) = self.segments.get_mut(segment) {
                segment.live = segment.live.saturating_sub(*bytes);
            }
        }
        let grave = self.graves.entry(key).or_default();
        grave.segments.extend(stream.uses.keys());
        true
    }

    /// A stream that was found.
    pub(super) fn keep(&mut self, key: StreamKey, stream: Stream) {
        for (segment, bytes) in &stream.uses {
            self.live(*segment, *bytes);
        }
        self.streams.insert(key, stream);
    }

    /// What was found of a stream that is not needed, and the segment whose record says so.
    pub(super) fn bury(&mut self, key: StreamKey, stone: Option<u64>, segments: BTreeSet<u64>) {
        let grave = Grave { stones: stone.into_iter().collect(), segments };
        self.move_stone(None, grave.stone());
        self.graves.insert(key, grave);
    }

    /// A segment is to go, and holds copies that nobody may rely on.
    pub(super) fn doom(&mut self, segment: u64) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.carried = true;
        }
        self.change_graves(|grave| {
            grave.stones.remove(&segment);
        });
    }

    fn change_graves(&mut self, change: impl Fn(&mut Grave)) {
        let mut moved = Vec::new();
        self.graves.retain(|_, grave| {
            let before = grave.stone();
            change(grave);
            moved.push((before, grave.stone()));
            grave.is_needed()
        });
        moved.into_iter().for_each(|(before, after)| self.move_stone(before, after));
    }

    /// A segment is no more. Returns the streams that lost records with it.
    pub(super) fn remove(&mut self, segment: u64) -> Vec<StreamKey> {
        let carried = self.segments.remove(&segment).is_some_and(|segment| segment.carried);
        let mut losers = Vec::new();
        for (key, stream) in &mut self.streams {
            if stream.uses.remove(&segment).is_some() && !carried {
                losers.push(*key);
            }
        }
        self.change_graves(|grave| {
            grave.segments.remove(&segment);
            grave.stones.remove(&segment);
        });
        losers
    }

    /// Whether there was a stream of this key, as far as anything of it is left.
    pub(super) fn knows(&self, key: StreamKey) -> bool {
        self.streams.contains_key(&key) || self.graves.contains_key(&key)
    }

    /// Whether a record of a segment is needed.
    pub(super) fn needs<B: AsRef<[u8]>>(&self, record: &Record<B>, segment: u64) -> bool {
        match record.kind {
            Kind::Admission | Kind::Entry => self.streams.contains_key(&record.key),
            Kind::Forgotten => {
                self.graves.get(&record.key).is_some_and(|grave| grave.stone() == Some(segment))
            }
        }
    }

    /// Length of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// Bytes of all records that are needed.
    pub(super) fn live_bytes(&self) -> u64 {
        self.segments.values().filter(|segment| !segment.carried).map(|segment| segment.live).sum()
    }

    /// Those that were not written since.
    pub(super) fn older_than(&self, oldest_ms: u64) -> Vec<StreamKey> {
        let old = self.streams.iter().filter(|(_, stream)| stream.last_ms < oldest_ms);
        old.map(|(key, _)| *key).collect()
    }

    /// The least recently written ones that have to go so that all take at most `most` bytes. Never the last one.
    pub(super) fn over(&self, most: u64) -> Vec<StreamKey> {
        let mut excess = self.live_bytes().saturating_sub(most);
        if excess == 0 {
            return Vec::new();
        }
        let mut by_age: Vec<_> =
            self.streams.iter().map(|(key, stream)| (stream.last_ms, *key, stream.bytes())).collect();
        by_age.sort_unstable();
        by_age.pop();
        let goes = by_age.into_iter().take_while(|(_, _, bytes)| {
            let goes = excess > 0;
            excess = excess.saturating_sub(*bytes);
            goes
        });
        goes.map(|(_, key, _)| key).collect()
    }
}
