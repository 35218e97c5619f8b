//! How long kernels take on this device, and where a command buffer ends by that. No GPU and no clock: durations are passed in.
//!
//! A driver ends work that runs for too long, and takes the process's device with it. So a command buffer has a budget of time.
//! What a dispatch will take is estimated from what dispatches like it took: of the same kernel, with about as many workgroups and
//! about as long a loop. A kernel that is not known runs first in a small piece by itself.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Workgroups of the first piece of a kernel that is not known. A few of them fill a GPU; on a slow one they take milliseconds.
const PROBE: u64 = 256;
/// Buffers within their budget before it creeps back by a step.
const GOOD: u32 = 64;
/// A step back towards the budget that was asked for.
const CREEP: f64 = 1.05;
/// Smallest budget: below it the submissions themselves cost more than the work.
const LEAST: Duration = Duration::from_millis(1);
/// How far an estimate follows a buffer that took longer, and one that took less: an estimate that is too small is a danger, one
/// that is too large a small loss.
const RISE: f64 = 0.5;
const FALL: f64 = 0.125;
/// Most that one buffer says of how wrong estimates are: a buffer may have waited for something else.
const RATIO: std::ops::RangeInclusive<f64> = 0.125..=4.0;
/// Nanoseconds a byte of a copy, until one was measured.
const COPY: f64 = 0.1;
/// What copies are remembered as.
const COPIES: &str = "copy";
/// Most kernels and shapes that are read from a text.
const MOST: usize = 1 << 16;

/// What a dispatch costs, beside its kernel and its workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Length of a workgroup's loop where the kernel's name does not say it: positions attended to, say. Else 1.
    pub length: u32,
    /// The dispatch may be split along x: at this byte of its immediates stands a u32 that the kernel adds to `workgroup_id.x`.
    pub split: Option<u32>,
}

impl Cost {
    /// A dispatch whose workgroups always take as long, in one piece.
    pub const WHOLE: Cost = Cost { length: 1, split: None };

    /// The same, which may be split: at this byte of the immediates stands the number of the first workgroup in x.
    #[must_use]
    pub const fn split_at(self, first: u32) -> Cost {
        Cost { length: self.length, split: Some(first) }
    }

    /// The same, with a loop of this length.
    #[must_use]
    pub const fn of_length(self, length: u32) -> Cost {
        Cost { length, split: self.split }
    }
}

/// What a command buffer may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may take.
    pub time: Duration,
    /// Most dispatches.
    pub dispatches: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { time: Duration::from_millis(50), dispatches: 48 }
    }
}

/// A part of what a command buffer is estimated at.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    entry: u32,
    units: f64,
    ns: f64,
}

/// What is in a command buffer.
#[derive(Clone, Debug, Default)]
pub struct Load {
    shares: Vec<Share>,
    ns: f64,
}

impl Load {
    /// Adds a dispatch.
    pub fn add(&mut self, share: Share) {
        self.shares.push(share);
        self.ns += share.ns;
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// Dispatches.
    pub fn len(&self) -> usize {
        self.shares.len()
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.shares.clear();
        self.ns = 0.0;
    }

    /// How long it is thought to take.
    pub fn expected(&self) -> Duration {
        Duration::from_nanos(self.ns as u64)
    }
}

/// What to dispatch next.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Workgroups in x, of those that remain.
    pub groups: u32,
    /// The command buffer ends before it.
    pub before: bool,
    /// The command buffer ends after it, and its time is waited for: the kernel is not known.
    pub probe: bool,
    /// What to add to the command buffer's load.
    pub share: Share,
}

/// Estimates, and the limits of a command buffer.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    /// Nanoseconds, at present.
    now: f64,
    good: u32,
    kernels: HashMap<Box<str>, Vec<u32>>,
    entries: Vec<Entry>,
}

/// Dispatches of a kernel that are alike.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bucket: (u32, u32),
    length: f64,
    groups: f64,
    /// Nanoseconds a unit: a workgroup times its length. Not known without a sample.
    rate: f64,
    samples: u32,
    /// Nanoseconds of a buffer that are its share, while one is looked at.
    weight: f64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(Limits::default())
    }
}

impl Budget {
    /// Nothing is known yet.
    pub fn new(limits: Limits) -> Budget {
        let now = limits.time.max(LEAST).as_nanos() as f64;
        Budget { limits, now, good: 0, kernels: HashMap::new(), entries: Vec::new() }
    }

    /// How long a command buffer may take at present.
    pub fn limit(&self) -> Duration {
        Duration::from_nanos(self.now as u64)
    }

    /// Work was ended because it took too long: buffers become half as long, and creep back.
    pub fn tripped(&mut self) {
        self.now = (self.now / 2.0).max(LEAST.as_nanos() as f64);
        self.good = 0;
    }

    /// The next piece of a dispatch of `grid` workgroups, of which x are those that remain.
    pub fn next(&mut self, kernel: &str, cost: Cost, grid: [u32; 3], load: &Load) -> Piece {
        let [x, y, z] = grid;
        let across = u64::from(y.max(1)) * u64::from(z.max(1));
        let known = self.kernels.get(kernel).is_some_and(|entries| self.sampled(entries));
        if !known {
            let groups = if cost.split.is_some() {
                u32::try_from((PROBE / across).max(1)).unwrap_or(u32::MAX).min(x)
            } else {
                x
            };
            let share = self.share(kernel, cost, groups, across);
            return Piece { groups, before: !load.is_empty(), probe: true, share };
        }
        let groups = if cost.split.is_some() { self.fitting(kernel, cost, x, across) } else { x };
        let share = self.share(kernel, cost, groups, across);
        let full = load.ns + share.ns > self.now || load.len() >= self.limits.dispatches;
        Piece { groups, before: full && !load.is_empty(), probe: false, share }
    }

    /// What a copy of `bytes` costs, and whether the command buffer ends before it.
    pub fn copy(&mut self, bytes: u64, load: &Load) -> (bool, Share) {
        let units = (bytes.max(1)) as f64;
        let entry = self.entry(COPIES, 1.0, units, COPY);
        let share = Share { entry, units, ns: self.rate(entry) * units };
        let full = load.ns + share.ns > self.now || load.len() >= self.limits.dispatches;
        (full && !load.is_empty(), share)
    }

    /// Workgroups in x whose time is within the budget, evenly spread over all pieces; at least 1.
    fn fitting(&self, kernel: &str, cost: Cost, x: u32, across: u64) -> u32 {
        let entries = self.kernels.get(kernel).map(Vec::as_slice).unwrap_or_default();
        let mut groups = x;
        for _ in 0..64 {
            let ns = self.estimate(entries, f64::from(cost.length.max(1)), volume(groups, across));
            if ns <= self.now || groups <= 1 {
                break;
            }
            let fits = (f64::from(groups) * self.now / ns) as u32;
            groups = fits.clamp(1, groups - 1);
        }
        let pieces = x.div_ceil(groups.max(1)).max(1);
        x.div_ceil(pieces)
    }

    fn share(&mut self, kernel: &str, cost: Cost, groups: u32, across: u64) -> Share {
        let (length, volume) = (f64::from(cost.length.max(1)), volume(groups, across));
        let entries = self.kernels.get(kernel).map(Vec::as_slice).unwrap_or_default();
        let ns = self.estimate(entries, length, volume);
        let units = length * volume;
        let entry = self.entry(kernel, length, volume, ns / units);
        Share { entry, units, ns }
    }

    /// Nanoseconds: by dispatches like it, else at most what dispatches unlike it say, which are scaled up but not down.
    fn estimate(&self, entries: &[u32], length: f64, groups: f64) -> f64 {
        let bucket = (half_octave(length), half_octave(groups));
        let sampled = entries.iter().filter_map(|&entry| self.entries.get(entry as usize));
        let mut least = f64::INFINITY;
        for entry in sampled.filter(|entry| entry.samples > 0) {
            if entry.bucket == bucket {
                return entry.rate * length * groups;
            }
            let whole = entry.rate * entry.length * entry.groups;
            let scaled = whole * (length / entry.length).max(1.0) * (groups / entry.groups).max(1.0);
            least = least.min(scaled);
        }
        if least.is_finite() { least } else { 0.0 }
    }

    /// The entry of a shape, which is made with `rate` if there is none.
    fn entry(&mut self, kernel: &str, length: f64, groups: f64, rate: f64) -> u32 {
        let bucket = (half_octave(length), half_octave(groups));
        if !self.kernels.contains_key(kernel) {
            self.kernels.insert(kernel.into(), Vec::new());
        }
        let of_kernel = self.kernels.get(kernel).map(Vec::as_slice).unwrap_or_default();
        let found = of_kernel
            .iter()
            .copied()
            .find(|&entry| self.entries.get(entry as usize).is_some_and(|entry| entry.bucket == bucket));
        if let Some(found) = found {
            if let Some(entry) = self.entries.get_mut(found as usize).filter(|entry| entry.samples == 0) {
                entry.rate = rate;
            }
            return found;
        }
        let entry = self.entries.len() as u32;
        self.entries.push(Entry { bucket, length, groups, rate, samples: 0, weight: 0.0 });
        if let Some(of_kernel) = self.kernels.get_mut(kernel) {
            of_kernel.push(entry);
        }
        entry
    }

    fn rate(&self, entry: u32) -> f64 {
        self.entries.get(entry as usize).map_or(0.0, |entry| entry.rate)
    }

    fn sampled(&self, entries: &[u32]) -> bool {
        entries.iter().any(|&entry| self.entries.get(entry as usize).is_some_and(|e| e.samples > 0))
    }

    /// A command buffer took so long.
    pub fn measured(&mut self, load: &Load, took: Duration) {
        let took = (took.as_nanos() as f64).max(1.0);
        self.creep(took);
        if let [one] = load.shares.as_slice() {
            let Some(entry) = self.entries.get_mut(one.entry as usize) else { return };
            if entry.samples == 0 {
                entry.rate = took / one.units;
                entry.samples = 1;
                return;
            }
        }
        if load.ns <= 0.0 {
            return;
        }
        let ratio = (took / load.ns).clamp(*RATIO.start(), *RATIO.end());
        let mut most = 0.0_f64;
        for share in &load.shares {
            if let Some(entry) = self.entries.get_mut(share.entry as usize) {
                entry.weight += share.ns;
                most = most.max(entry.weight);
            }
        }
        for share in &load.shares {
            let Some(entry) = self.entries.get_mut(share.entry as usize) else { continue };
            let weight = std::mem::take(&mut entry.weight) / most.max(1e-9);
            if weight == 0.0 {
                continue;
            }
            // The first samples count more than later ones: the first of all may have had something to set up.
            let young = 1.0 / f64::from(entry.samples.saturating_add(1));
            let gain = if ratio > 1.0 { RISE } else { FALL.max(young.min(RISE)) };
            entry.rate *= 1.0 + gain * weight * (ratio - 1.0);
            entry.samples = entry.samples.saturating_add(1);
        }
    }

    fn creep(&mut self, took: f64) {
        if took > 2.0 * self.now {
            self.good = 0;
            return;
        }
        self.good += 1;
        if self.good >= GOOD {
            self.good = 0;
            let asked = self.limits.time.max(LEAST).as_nanos() as f64;
            self.now = (self.now * CREEP).min(asked);
        }
    }

    /// All that is known, as JSON, to be kept for this adapter and driver.
    pub fn to_text(&self) -> String {
        let known = |entries: &[u32]| -> Vec<[f64; 3]> {
            let all = entries.iter().filter_map(|&entry| self.entries.get(entry as usize));
            let known = all.filter(|entry| entry.samples > 0);
            known.map(|entry| [entry.length, entry.groups, entry.rate]).collect()
        };
        let kernels = self.kernels.iter().map(|(name, entries)| (name.to_string(), known(entries)));
        let kept = Kept {
            version: VERSION,
            budget_ns: self.now,
            kernels: kernels.filter(|(_, known)| !known.is_empty()).collect(),
        };
        serde_json::to_string(&kept).unwrap_or_default()
    }

    /// What was kept. The limits are not in the text, only how far the budget was from them.
    ///
    /// # Errors
    ///
    /// What is wrong with the text: then begin with [`Budget::new`].
    pub fn from_text(limits: Limits, text: &str) -> Result<Budget, String> {
        let kept: Kept = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if kept.version != VERSION {
            return Err(format!("version {} of the estimates is not known", kept.version));
        }
        let mut budget = Budget::new(limits);
        if kept.budget_ns.is_finite() {
            budget.now = kept.budget_ns.max(LEAST.as_nanos() as f64).min(budget.now);
        }
        let sane = |value: &f64| value.is_finite() && *value > 0.0 && *value < 1e15;
        for (name, known) in kept.kernels {
            for values in known {
                if !values.iter().all(sane) || budget.entries.len() >= MOST {
                    return Err(format!("the estimate {values:?} of {name} cannot be"));
                }
                let [length, groups, rate] = values;
                let entry = budget.entry(&name, length, groups, rate);
                if let Some(entry) = budget.entries.get_mut(entry as usize) {
                    // A few samples of earlier runs: the next ones may say otherwise, and soon.
                    entry.samples = 4;
                }
            }
        }
        Ok(budget)
    }
}

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    budget_ns: f64,
    /// Length, workgroups, nanoseconds a unit.
    kernels: std::collections::BTreeMap<String, Vec<[f64; 3]>>,
}

fn volume(groups: u32, across: u64) -> f64 {
    f64::from(groups.max(1)) * across as f64
}

/// Costs within a bucket differ by less than half an octave from what their size says.
fn half_octave(size: f64) -> u32 {
    (2.0 * size.max(1.0).log2()) as u32
}
