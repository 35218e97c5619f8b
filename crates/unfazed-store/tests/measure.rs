//! Measuring a storage whose rate is known.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::simulated::SimulatedClock;
use unfazed_store::storage::measure::{Reads, find_depth, measure};
use unfazed_store::storage::{Arrived, Attempt, Identity, ReadBuffer, StoredFile};
use unfazed_store::{Clock, Storage};

/// A drive that takes a millisecond for each read and moves a gigabyte a second at most.
struct Drive {
    files: [StoredFile; 1],
    clock: Arc<SimulatedClock>,
    /// When the wire is free.
    free: Arc<Mutex<Duration>>,
    offsets: Arc<Mutex<Vec<u64>>>,
}

const LATENCY: Duration = Duration::from_millis(1);
const RATE: f64 = 1e9;

fn drive(size: u64) -> Drive {
    let identity = Identity { size, modified: (0, 0), inode: 0 };
    let files = [StoredFile { name: "model.gguf".to_owned(), identity }];
    Drive { files, clock: Arc::default(), free: Arc::default(), offsets: Arc::default() }
}

struct Read {
    clock: Arc<SimulatedClock>,
    done: Duration,
}

impl Storage for Drive {
    fn files(&self) -> &[StoredFile] {
        &self.files
    }

    fn begin(&self, file: usize, offset: u64, len: usize) -> Box<dyn Attempt> {
        assert!(offset + len as u64 <= self.files[file].identity.size);
        self.offsets.lock().unwrap().push(offset);
        let mut free = self.free.lock().unwrap();
        let moved = Duration::from_secs_f64(len as f64 / RATE);
        *free = (*free + moved).max(self.clock.now() + LATENCY + moved);
        Box::new(Read { clock: Arc::clone(&self.clock), done: *free })
    }

    fn reopen(&self, _file: usize) -> io::Result<()> {
        Ok(())
    }

    fn depth(&self) -> usize {
        1
    }
}

impl Attempt for Read {
    fn wait(self: Box<Self>, _limit: Duration) -> io::Result<Arrived> {
        let left = self.done.saturating_sub(self.clock.now());
        self.clock.sleep(left);
        let identity = Identity { size: 0, modified: (0, 0), inode: 0 };
        Ok(Arrived { bytes: ReadBuffer::zeroed(0).unwrap(), identity })
    }
}

fn reads(bytes: usize, depth: usize, random: bool) -> Reads {
    Reads { file: 0, bytes, depth, random, time: Duration::from_millis(500), limit: Duration::MAX, seed: 1 }
}

#[test]
fn a_rate_is_what_the_drive_does_and_latency_limits_reads_that_come_one_by_one() {
    let drive = drive(1 << 30);
    let of = |bytes, depth| measure(&drive, &*drive.clock, reads(bytes, depth, true)).unwrap();
    let one = of(100_000, 1);
    assert!((one.bytes_per_second / 1e6 - 100.0 / 1.1).abs() < 1.0, "{one:?}");
    assert!((one.latency - 1.1e-3).abs() < 1e-5, "{one:?}");
    let many = of(100_000, 32);
    assert!((many.bytes_per_second / RATE - 1.0).abs() < 0.03, "{many:?}");
}

#[test]
fn the_depth_is_the_smallest_one_that_reaches_the_drives_rate() {
    let drive = drive(1 << 30);
    let found = find_depth(&drive, &*drive.clock, 0, Duration::from_millis(500), Duration::MAX).unwrap();
    // A read of a mebibyte moves for a millisecond and waits for another one: two at a time keep the wire busy.
    assert_eq!(found.depth, 2, "{found:?}");
    assert_eq!(found.tried.iter().map(|(depth, _)| *depth).collect::<Vec<_>>(), [1, 2, 4, 8]);
}

#[test]
fn reads_in_a_row_follow_each_other_and_random_ones_are_all_over_the_file() {
    let drive = drive(100 << 20);
    measure(&drive, &*drive.clock, reads(1 << 20, 4, false)).unwrap();
    let offsets = std::mem::take(&mut *drive.offsets.lock().unwrap());
    assert!(offsets.windows(2).all(|pair| pair[1] == (pair[0] + (1 << 20)) % (100 << 20)));
    measure(&drive, &*drive.clock, reads(1 << 20, 4, true)).unwrap();
    let offsets = drive.offsets.lock().unwrap();
    let parts: std::collections::BTreeSet<_> = offsets.iter().map(|offset| offset / (10 << 20)).collect();
    assert_eq!(parts.len(), 10);
}

#[test]
fn a_file_smaller_than_a_read_is_read_whole_and_an_empty_one_is_refused() {
    let small = drive(1000);
    let rate = measure(&small, &*small.clock, reads(1 << 20, 2, true)).unwrap();
    assert!(rate.reads >= 2);
    let empty = drive(0);
    assert!(measure(&empty, &*empty.clock, reads(1 << 20, 1, false)).is_err());
}
