//! Any bytes as segments, for the fuzz target.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::folder::{Contents, Folder, SegmentFile};
use super::format::{HEADER_BYTES, header, reseal};
use super::limits::Limits;
use super::log::Log;
use super::replay::replay;
use super::scan::next_marker;

/// Segments in memory.
struct InMemory(Vec<Vec<u8>>);

struct InMemoryFile;

impl Folder for InMemory {
    fn dir(&self) -> &Path {
        Path::new("memory")
    }

    fn segments(&self) -> io::Result<Vec<u64>> {
        Ok((1..=self.0.len() as u64).collect())
    }

    fn read(&self, segment: u64, _: u64) -> io::Result<Contents> {
        let bytes = segment.checked_sub(1).and_then(|at| self.0.get(at as usize));
        Ok(Contents { bytes: bytes.cloned().unwrap_or_default(), unread: 0 })
    }

    fn sync_segment(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn create(&mut self, _: u64) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(InMemoryFile))
    }

    fn remove(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn check(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SegmentFile for InMemoryFile {
    fn write(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens segments of any bytes, and brings them within limits. Bytes that were kept, and bytes that were skipped; `None` if
/// they are refused as of another version.
pub fn read_journal(mut segments: Vec<Vec<u8>>, seal: bool) -> Option<[u64; 2]> {
    if seal {
        segments.iter_mut().zip(1..).for_each(|(bytes, segment)| seal_segment(bytes, segment));
    }
    let limits = Limits { segment_bytes: 4096, total_bytes: 64 << 10, age: Duration::from_secs(1) };
    let folder = Box::new(InMemory(segments));
    let replayed = replay(folder.as_ref(), &limits, 1000).ok()?;
    let kept = replayed
        .kept
        .iter()
        .map(|kept| kept.admission.len() + kept.entries.iter().map(Vec::len).sum::<usize>());
    let kept = kept.sum::<usize>() as u64;
    let mut log = Log::new(folder, limits, replayed.index);
    let over = log.index.over(limits.live());
    for key in over {
        log.index.forget(key);
    }
    log.tidy(u64::MAX).ok()?;
    Some([kept, replayed.found.skipped_bytes])
}

/// Makes what looks like a header and records into some that check.
fn seal_segment(bytes: &mut [u8], segment: u64) {
    let Some(head) = bytes.get_mut(..HEADER_BYTES) else { return };
    head.copy_from_slice(&header(segment, 1));
    let mut at = HEADER_BYTES;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        at += match reseal(rest, segment, at as u64) {
            Some(len) => len,
            None => next_marker(rest).unwrap_or(rest.len()),
        };
    }
}
