//! The ladder: from the full placement one rung down at a time, and up again after a quiet time.

use std::time::Duration;

use crate::Class;

/// How long it must be quiet before a rung is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiet {
    /// At first, and again after a climb that held as long.
    pub first: Duration,
    /// At most. Failed climbs double the time up to this.
    pub longest: Duration,
}

impl Default for Quiet {
    fn default() -> Self {
        Quiet { first: Duration::from_secs(600), longest: Duration::from_secs(6 * 3600) }
    }
}

/// A change of the placement, by the rungs' names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// One rung down.
    Degraded {
        /// What it was.
        from: String,
        /// What it is.
        to: String,
        /// The fault.
        why: Class,
    },
    /// One rung up.
    Recovered {
        /// What it was.
        from: String,
        /// What it is.
        to: String,
        /// How long it was quiet.
        quiet: Duration,
    },
}

/// Where on the ladder things are. Times are since any fixed moment.
#[derive(Debug)]
pub struct Ladder {
    rungs: Vec<String>,
    at: usize,
    quiet: Quiet,
    /// How long it must be quiet now.
    needed: Duration,
    /// When the last fault or change was.
    since: Duration,
    /// Whether the present rung was climbed to and has not yet held for the first quiet time.
    on_trial: bool,
}

impl Ladder {
    /// A ladder of rungs from the fullest placement, where it begins, to the smallest. There is always one rung: no names
    /// are one rung called `full`.
    pub fn new<Name: Into<String>>(rungs: impl IntoIterator<Item = Name>, quiet: Quiet) -> Self {
        let mut rungs: Vec<String> = rungs.into_iter().map(Into::into).collect();
        if rungs.is_empty() {
            rungs.push("full".to_owned());
        }
        Ladder { rungs, at: 0, quiet, needed: quiet.first, since: Duration::ZERO, on_trial: false }
    }

    /// The present rung: 0 is the full placement.
    pub fn rung(&self) -> usize {
        self.at
    }

    /// The number of the smallest placement.
    pub fn lowest(&self) -> usize {
        self.rungs.len() - 1
    }

    /// The present rung's name.
    pub fn name(&self) -> &str {
        self.rungs.get(self.at).map_or("", String::as_str)
    }

    /// How long it must be quiet before the next rung up.
    pub fn needed(&self) -> Duration {
        self.needed
    }

    /// A fault that the present rung can bear: the quiet time begins anew.
    pub fn disturbed(&mut self, now: Duration) {
        self.settle(now);
        self.since = now;
    }

    /// One rung down, because of a fault. `None` at the lowest.
    pub fn step_down(&mut self, why: Class, now: Duration) -> Option<Change> {
        self.settle(now);
        if self.on_trial {
            self.needed = self.needed.saturating_mul(2).min(self.quiet.longest.max(self.quiet.first));
            self.on_trial = false;
        }
        self.since = now;
        if self.at >= self.lowest() {
            return None;
        }
        let from = self.name().to_owned();
        self.at += 1;
        Some(Change::Degraded { from, to: self.name().to_owned(), why })
    }

    /// One rung up, if it was quiet for long enough. Call it now and then; it never climbs twice at once.
    pub fn climb(&mut self, now: Duration) -> Option<Change> {
        self.settle(now);
        let quiet = now.saturating_sub(self.since);
        if self.at == 0 || quiet < self.needed {
            return None;
        }
        let from = self.name().to_owned();
        self.at -= 1;
        self.since = now;
        self.on_trial = true;
        Some(Change::Recovered { from, to: self.name().to_owned(), quiet })
    }

    /// A climb that held for the first quiet time has succeeded.
    fn settle(&mut self, now: Duration) {
        if self.on_trial && now.saturating_sub(self.since) >= self.quiet.first {
            self.on_trial = false;
            self.needed = self.quiet.first;
        }
    }
}
