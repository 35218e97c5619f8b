//! How many reads at a time a disk gets that nobody has measured: a moment's measurement before a large load, kept for later
//! ones.

use std::io;
use std::time::Duration;

use unfazed_formats::source::{ByteSource, FileSource};
use unfazed_host::disk;
use unfazed_host::disk_rates::DiskRates;

use super::measure::{DepthFound, find_depth};
use super::{LocalOptions, LocalStorage};
use crate::SystemClock;

/// A load of less is over before a measurement pays.
const LEAST_BYTES: u64 = 1 << 30;
/// If the page cache holds more than this share of a file, the disk has little to do.
const MOST_CACHED: f64 = 0.5;
/// Reads at a time that can be tried.
const MOST_DEPTH: usize = 32;
/// For each number of reads at a time.
const TIME: Duration = Duration::from_millis(40);
/// A read that takes longer ends the measurement: it must not look as if nothing got on.
const READ_LIMIT: Duration = Duration::from_secs(1);

/// What the disk of the largest file needs: what was measured before, or is measured now if there is much to be read. `None`
/// if that is not worth the time or does not succeed.
pub fn depth(files: &[FileSource]) -> Option<usize> {
    let largest = files.iter().max_by_key(|file| file.len())?;
    let disk = disk::of(largest.file());
    if let Some(known) = DiskRates::of(&disk) {
        return Some(known.depth);
    }
    let bytes: u64 = files.iter().map(ByteSource::len).fold(0, u64::saturating_add);
    if disk.may_vanish() || bytes < LEAST_BYTES {
        return None;
    }
    let found = quick(largest).ok()??;
    let best = found.tried.iter().map(|(_, rate)| rate.bytes_per_second).fold(0.0, f64::max);
    tracing::info!(%disk, depth = found.depth, "measured how many reads at a time the disk needs: {:.0} MB/s", best / 1e6);
    let kept = DiskRates::now(&disk, found.depth, best, Vec::new()).map(|rates| rates.save(&disk));
    if let Some(Err(error)) = kept {
        tracing::info!(%error, "this cannot be kept and will be measured again");
    }
    Some(found.depth)
}

/// Measures for a moment. `None` if the page cache has most of the file, or has to be gone through.
///
/// # Errors
///
/// A read failed, or took too long.
pub fn quick(file: &FileSource) -> io::Result<Option<DepthFound>> {
    let options = LocalOptions { depth: Some(MOST_DEPTH), cached: false, ..LocalOptions::default() };
    let storage = LocalStorage::new(std::slice::from_ref(file), options)?;
    if !storage.reads_directly(0) || storage.cached_share(0).is_some_and(|share| share > MOST_CACHED) {
        return Ok(None);
    }
    find_depth(&storage, &SystemClock::new(), 0, TIME, READ_LIMIT).map(Some)
}
