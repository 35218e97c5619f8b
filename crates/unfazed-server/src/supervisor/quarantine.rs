//! Requests that may have killed their engine are run one at a time until it is clear whether they do.

use unfazed_wire::RequestId;

use super::cause::Cause;
use crate::journal::{Journal, Record, Stage};

/// A request that ended engines this often in a row, in the same way, with nothing else in them, is failed.
const ALONE_ALIKE: u32 = 2;
/// The same, where each death looks different: memory that a request destroys shows in many ways.
const ALONE_ANYHOW: u32 = 4;

/// What speaks against a request: deaths of engines that had it and gave it nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Suspicion {
    /// Deaths in a row that look alike. A request with one is a suspect.
    deaths: u32,
    /// How the engine died the last time.
    last: Option<Cause>,
    /// Deaths in a row while it was a suspect and the only request in its engine.
    alone: u32,
    /// Those of them, from the last one back, that look alike.
    alone_alike: u32,
}

impl Suspicion {
    /// An engine died that had given this request nothing. Returns how often it did so alone, if that is too often.
    pub(super) fn died(&mut self, cause: Cause, alone: bool) -> Option<u32> {
        let was_suspect = self.deaths > 0;
        let alike = self.last == Some(cause);
        self.deaths = if alike { self.deaths.saturating_add(1) } else { 1 };
        self.last = Some(cause);
        if !(was_suspect && alone) {
            return None;
        }
        self.alone = self.alone.saturating_add(1);
        self.alone_alike = if alike { self.alone_alike.saturating_add(1) } else { 1 };
        let found = self.alone_alike >= ALONE_ALIKE || self.alone >= ALONE_ANYHOW;
        found.then_some(self.alone)
    }

    /// The request got something done. True if it was a suspect.
    pub(super) fn clear(&mut self) -> bool {
        std::mem::take(self).deaths > 0
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.deaths > 0
    }

    /// Deaths in a row that look alike.
    pub(super) fn deaths(&self) -> u32 {
        self.deaths
    }
}

/// The requests that may go to the ready engine now, in the order of their arrival: all that wait, unless there are
/// suspects. Then one suspect, if none is being tested: the one with most deaths, of those the oldest.
pub(super) fn admissible(journal: &Journal) -> Vec<RequestId> {
    let waiting = |record: &&Record| record.stage == Stage::Waiting;
    let suspects = || journal.iter().filter(|record| record.suspicion.is_suspect());
    if suspects().next().is_none() {
        return journal.iter().filter(waiting).map(|record| record.submit.request).collect();
    }
    if suspects().any(|record| record.stage != Stage::Waiting) {
        return Vec::new();
    }
    let next =
        suspects().max_by_key(|record| (record.suspicion.deaths(), std::cmp::Reverse(record.submit.request)));
    next.map(|record| record.submit.request).into_iter().collect()
}
