//! Gives back what the disk need not keep: segments in which nothing is needed go, and what little is needed of others is
//! carried over into a new one first.
//!
//! Carrying over loses nothing at any moment: the copies are on the disk before the segment goes, and a record that is there
//! twice counts once.

use std::io;

use super::folder::Contents;
use super::format::{HEADER_BYTES, Record};
use super::log::Log;
use super::scan::scan;

/// A segment takes in records for this part of the age limit at most, so that what was in it when it was closed can be gone
/// in time.
const OPEN_PART_OF_AGE: u64 = 8;
/// Segments beside those that the limits ask for: each start of a server begins one.
const SPARE_SEGMENTS: u64 = 16;

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Tidied {
    /// Segments that were found not to be readable and hold streams.
    pub(super) damaged: Vec<u64>,
    /// A segment could not be carried over or deleted just now.
    pub(super) stuck: Option<io::Error>,
}

impl Log {
    /// Brings the folder within its limits. Everything written has to be synced. What is carried over goes into segments of
    /// its own, so that an error there, such as a disk that is too full for it, is none of writing: that is the error here.
    pub(super) fn tidy(&mut self, now_ms: u64) -> io::Result<Tidied> {
        let mut tidied = Tidied::default();
        self.close_if_stale(now_ms)?;
        let segments = self.closed();
        let written = self.set_aside();
        for segment in segments {
            let goes = self.is_done(segment) || self.is_worth_carrying(segment, now_ms);
            if goes && tidied.stuck.is_none() {
                tidied.stuck = self.carry_and_remove(segment, now_ms, &mut tidied.damaged).err();
            }
        }
        self.take_up(written);
        Ok(tidied)
    }

    /// Closed segments, from the first.
    fn closed(&self) -> Vec<u64> {
        let current = self.current();
        self.index.segments.keys().copied().filter(|number| Some(*number) != current).collect()
    }

    /// Closed segments that are not needed.
    pub(super) fn done(&self) -> Vec<u64> {
        self.closed().into_iter().filter(|segment| self.is_done(*segment)).collect()
    }

    /// Closes the segment that is written if nothing in it is needed, or if it is old and some is not.
    fn close_if_stale(&mut self, now_ms: u64) -> io::Result<()> {
        let Some(segment) = self.current().and_then(|number| self.index.segments.get(&number)) else {
            return Ok(());
        };
        let records = segment.bytes.saturating_sub(HEADER_BYTES as u64);
        let open_ms = now_ms.saturating_sub(self.limits.oldest_ms(now_ms)) / OPEN_PART_OF_AGE;
        let old = now_ms.saturating_sub(segment.created_ms) > open_ms;
        if records > 0 && (segment.live == 0 || (old && segment.live < records)) {
            self.close()?;
        }
        Ok(())
    }

    /// Whether nothing of a segment is needed, or it is elsewhere.
    fn is_done(&self, segment: u64) -> bool {
        self.index.segments.get(&segment).is_some_and(|segment| segment.carried || segment.live == 0)
    }

    /// Whether the rest of a segment is to be carried over.
    fn is_worth_carrying(&self, number: u64, now_ms: u64) -> bool {
        let Some(segment) = self.index.segments.get(&number).filter(|segment| !segment.damaged) else {
            return false;
        };
        let records = segment.bytes.saturating_sub(HEADER_BYTES as u64);
        let is_first = self.index.segments.keys().next() == Some(&number);
        let mostly_dead = segment.live < records / 2;
        let expired = segment.created_ms < self.limits.oldest_ms(now_ms);
        // Until the next look at it a segment more may be there.
        let over = self.index.bytes() + self.limits.segment() > self.limits.total_bytes;
        let too_many = self.index.segments.len() as u64 > self.limits.most_segments() + SPARE_SEGMENTS;
        let wins = segment.live < records && (expired || over || (is_first && mostly_dead));
        wins || (too_many && segment.bytes < self.limits.segment() / 4)
    }

    fn carry_and_remove(&mut self, segment: u64, now_ms: u64, damaged: &mut Vec<u64>) -> io::Result<()> {
        if !self.is_done(segment) {
            let contents = self.folder.read(segment, self.limits.most_read_bytes())?;
            if !self.carry(segment, &contents, now_ms)? {
                damaged.push(segment);
                return Ok(());
            }
        }
        self.remove(segment)
    }

    /// Copies what is needed of a segment behind all others. `false` if not all of it can be read: then it has to stay.
    fn carry(&mut self, number: u64, contents: &Contents, now_ms: u64) -> io::Result<bool> {
        let mut needed = Vec::new();
        let each = |record: Record<_>| needed.extend(self.index.needs(&record, number).then_some(record));
        let whole = scan(&contents.bytes, number, each).whole_bytes;
        let Some(segment) = self.index.segments.get_mut(&number) else { return Ok(true) };
        if contents.unread > 0 || whole < segment.whole {
            segment.damaged = true;
            return Ok(false);
        }
        let next = self.next();
        let carried = self.write(&needed, now_ms).and_then(|()| self.sync());
        if let Err(error) = carried {
            self.undo(next);
            return Err(error);
        }
        if let Some(segment) = self.index.segments.get_mut(&number) {
            segment.carried = true;
        }
        Ok(true)
    }

    /// Not all could be copied: the segments that were begun for it, from `first` on, go again, at once or later.
    fn undo(&mut self, first: Option<u64>) {
        self.abandon();
        let Some(first) = first else { return };
        let begun: Vec<u64> = self.index.segments.range(first..).map(|(begun, _)| *begun).collect();
        for begun in begun {
            self.index.doom(begun);
            // What fails now is done with the next segments that go.
            let _ = self.remove(begun);
        }
    }
}
