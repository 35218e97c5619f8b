//! How fast a storage reads: a few reads of a file that is there, in a row or all over it, with more and more of them at a
//! time.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::Storage;
use crate::Clock;

/// Bytes of a read in a row.
pub const SEQUENTIAL_BYTES: usize = 1 << 20;
/// Reads at a time that are tried.
const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// A depth is as good as the best one from this share of its rate on: fewer reads at a time take less memory and leave
/// shorter queues to others.
const GOOD: f64 = 0.97;
/// Depths are tried until two in a row were no better than this against the best one.
const GAIN: f64 = 1.03;
/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// Which file.
    pub file: usize,
    /// Bytes of a read; at most those of the file.
    pub bytes: usize,
    /// Reads at a time.
    pub depth: usize,
    /// In a row from somewhere on, or all over the file.
    pub random: bool,
    /// No read begins after this time.
    pub time: Duration,
    /// A read that takes longer ends the measurement.
    pub limit: Duration,
    /// Where the first one is; another number measures another part of the file.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Reads that were made.
    pub reads: u64,
    /// Seconds that a read took on average, from when it was asked for.
    pub latency: f64,
}

/// Reads at a time, and the rate with each number that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthFound {
    /// The smallest number that is as good as any.
    pub depth: usize,
    /// What was tried, in order.
    pub tried: Vec<(usize, Rate)>,
}

/// Makes reads and measures them. At least as many are made as run at a time.
///
/// # Errors
///
/// The first read that fails; a file that is empty or not there.
pub fn measure(storage: &dyn Storage, clock: &dyn Clock, reads: Reads) -> io::Result<Rate> {
    let size = storage.files().get(reads.file).map_or(0, |file| file.identity.size);
    let bytes = reads.bytes.min(usize::try_from(size).unwrap_or(usize::MAX));
    if bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is nothing to read"));
    }
    let places = size / bytes as u64;
    let mut next = Places { places, at: mix(reads.seed) % places, random: reads.random };
    let (start, mut under_way, mut rate, mut latency) =
        (clock.now(), VecDeque::new(), Rate::default(), Duration::ZERO);
    let depth = reads.depth.max(1);
    loop {
        let more = rate.reads < depth as u64 || clock.now().saturating_sub(start) < reads.time;
        while more && under_way.len() < depth {
            let offset = next.place().saturating_mul(bytes as u64);
            under_way.push_back((clock.now(), storage.begin(reads.file, offset, bytes)));
        }
        let Some((asked, read)) = under_way.pop_front() else { break };
        read.wait(reads.limit)?;
        latency += clock.now().saturating_sub(asked);
        rate.reads += 1;
    }
    let seconds = clock.now().saturating_sub(start).as_secs_f64();
    rate.bytes_per_second = rate.reads as f64 * bytes as f64 / seconds.max(1e-9);
    rate.latency = latency.as_secs_f64() / rate.reads.max(1) as f64;
    Ok(rate)
}

/// Finds out how many reads at a time a storage needs: reads in a row, about `time` for each number that is tried. A
/// read that takes longer than `limit` ends it.
///
/// # Errors
///
/// As [`measure`].
pub fn find_depth(
    storage: &dyn Storage,
    clock: &dyn Clock,
    file: usize,
    time: Duration,
    limit: Duration,
) -> io::Result<DepthFound> {
    let (mut tried, mut best, mut no_better) = (Vec::new(), 0.0f64, 0);
    for (seed, depth) in (0..).zip(DEPTHS) {
        let reads = Reads { file, bytes: SEQUENTIAL_BYTES, depth, random: false, time, limit, seed };
        let rate = measure(storage, clock, reads)?;
        tried.push((depth, rate));
        no_better = if rate.bytes_per_second > GAIN * best { 0 } else { no_better + 1 };
        best = best.max(rate.bytes_per_second);
        if no_better >= 2 {
            break;
        }
    }
    let good = tried.iter().find(|(_, rate)| rate.bytes_per_second >= GOOD * best);
    Ok(DepthFound { depth: good.map_or(1, |(depth, _)| *depth), tried })
}

/// Where reads are.
struct Places {
    places: u64,
    at: u64,
    random: bool,
}

impl Places {
    fn place(&mut self) -> u64 {
        let place = self.at % self.places;
        self.at = if self.random { mix(self.at) } else { place + 1 };
        place
    }
}

/// A number that looks like none before (SplitMix64, Steele et al. 2014).
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
