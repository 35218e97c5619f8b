//! Requests that may have killed their engine are run one at a time until it is clear whether they do.

use unfazed_wire::RequestId;

use super::cause::Cause;
use crate::journal::{Journal, Record, Stage};

/// A request whose engines died this often in a row without giving it anything, in the same way, is a suspect.
const SUSPECT_ALIKE: u32 = 2;
/// The same, where each death looks different: memory that a request destroys shows in many ways.
const SUSPECT_ANYHOW: u32 = 3;
/// A suspect that ended engines this often in a row, in the same way, with nothing else in them, is failed.
const ALONE_ALIKE: u32 = 2;
/// The same, where each death looks different.
const ALONE_ANYHOW: u32 = 4;

/// What speaks against a request: deaths of engines that had it and gave it nothing. One alone says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Suspicion {
    /// Such deaths in a row.
    deaths: Streak,
    /// Those since it is a suspect, as the only request in its engine.
    alone: Streak,
}

/// Deaths in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    all: u32,
    /// Those of them, from the last one back, that look alike.
    alike: u32,
    last: Option<Cause>,
}

impl Streak {
    fn add(&mut self, cause: Cause) {
        self.all = self.all.saturating_add(1);
        self.alike = if self.last == Some(cause) { self.alike.saturating_add(1) } else { 1 };
        self.last = Some(cause);
    }
}

impl Suspicion {
    /// An engine died that had given this request nothing. Returns how often it did so alone, if that is too often.
    pub(crate) fn died(&mut self, cause: Cause, alone: bool) -> Option<u32> {
        let was_suspect = self.is_suspect();
        self.deaths.add(cause);
        if !(was_suspect && alone) {
            return None;
        }
        self.alone.add(cause);
        let found = self.alone.alike >= ALONE_ALIKE || self.alone.all >= ALONE_ANYHOW;
        found.then_some(self.alone.all)
    }

    /// The request got something done. True if it was a suspect.
    pub(crate) fn clear(&mut self) -> bool {
        std::mem::take(self).is_suspect()
    }

    pub(crate) fn is_suspect(&self) -> bool {
        // Once a suspect it stays one until it gets something done: the count never goes down before.
        self.deaths.alike >= SUSPECT_ALIKE || self.deaths.all >= SUSPECT_ANYHOW
    }

    /// Deaths in a row.
    pub(crate) fn deaths(&self) -> u32 {
        self.deaths.all
    }
}

/// The requests that may go to the ready engine now, in the order of their arrival: all that wait, unless there are
/// suspects. Then one suspect, if none is being tested: the one with most deaths, of those the oldest.
pub(super) fn admissible(journal: &Journal) -> Vec<RequestId> {
    let waiting = |record: &&Record| record.stage() == Stage::Waiting;
    let suspects = || journal.iter().filter(|record| record.suspicion.is_suspect());
    if suspects().next().is_none() {
        return journal.iter().filter(waiting).map(|record| record.submit.request).collect();
    }
    if suspects().any(|record| record.stage() != Stage::Waiting) {
        return Vec::new();
    }
    let next =
        suspects().max_by_key(|record| (record.suspicion.deaths(), std::cmp::Reverse(record.submit.request)));
    next.map(|record| record.submit.request).into_iter().collect()
}
