//! The memory that outlives engines: made here, handed to one engine after the other, never mapped by the front.
//!
//! Killed is not dead: an engine that cannot be reaped may still write to its memory. That memory is struck from the
//! ledger, the next engine gets another, and the bytes return when the process has ended after all.

use std::sync::{Arc, Mutex, PoisonError};

use unfazed_wire::memory::{KvSegment, Segment, SegmentError};

use super::Process;
use super::state::Shared;
use crate::events::Event;

/// Sizes that the plan decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Packed weights, in bytes.
    pub(crate) weights: u64,
    /// Slots for experts that are streamed, in bytes; 0 if none are.
    pub(crate) experts: u64,
    /// Those slots.
    pub(crate) slots: usize,
    /// Slots that a step of one token needs.
    pub(crate) least_slots: usize,
    /// Activations and logits, which an engine keeps for itself, in bytes.
    pub(crate) scratch: u64,
    /// KV pages.
    pub(crate) pages: usize,
    /// Bytes of a KV page.
    pub(crate) page_bytes: usize,
    /// KV pages of one sequence as long as the context: what was accepted must be served.
    pub(crate) least_pages: usize,
}

impl Sizes {
    /// What is left where memory ran out so many times.
    const SHARES: [usize; 3] = [1, 2, usize::MAX];

    /// KV pages on a rung: at least those of one sequence.
    fn pages_at(&self, rung: usize) -> usize {
        let share = Self::SHARES.get(rung).copied().unwrap_or(usize::MAX);
        (self.pages / share).max(self.least_pages).min(self.pages)
    }

    /// Slots for experts on a rung: at least those that a step needs.
    pub(crate) fn slots_at(&self, rung: usize) -> usize {
        let share = Self::SHARES.get(rung).copied().unwrap_or(usize::MAX);
        (self.slots / share).max(self.least_slots).min(self.slots)
    }

    /// Names of the rungs, each with less memory than the one before.
    pub(crate) fn rungs(&self) -> Vec<String> {
        let name = |rung| match (self.slots_at(rung), self.pages_at(rung)) {
            (0, pages) => format!("{pages} KV pages"),
            (slots, pages) => format!("{slots} expert slots, {pages} KV pages"),
        };
        let mut names: Vec<String> = (0..Self::SHARES.len()).map(name).collect();
        names.dedup();
        names
    }

    /// Bytes of the memory for so many KV pages.
    fn kv(&self, pages: usize) -> u64 {
        let bytes = KvSegment { pages, page_bytes: self.page_bytes }.bytes();
        bytes.map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// KV pages that fit where `struck` bytes of the plan's are lost: at least those of one sequence.
    fn pages_beside(&self, struck: u64) -> usize {
        let kv = self.kv(self.pages);
        let page = (kv / (self.pages as u64).max(1)).max(1);
        let fit = usize::try_from(kv.saturating_sub(struck) / page).unwrap_or(usize::MAX);
        fit.max(self.least_pages).min(self.pages)
    }
}

/// What an engine is given.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) weights: Arc<Segment>,
    pub(super) kv: Arc<Segment>,
    /// Slots for experts, if they are streamed.
    pub(super) experts: Option<Arc<Segment>>,
    /// KV pages that `kv` has room for.
    pub(super) pages: usize,
}

/// What another front can go on with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) weights: Option<Arc<Segment>>,
    /// With the pages that it has room for.
    pub(crate) kv: Option<(Arc<Segment>, usize)>,
    pub(crate) experts: Option<Arc<Segment>>,
}

/// All of it.
pub(super) struct Memory {
    sizes: Sizes,
    parts: Parts,
    left: Vec<Left>,
    /// How much of it is given up, as a rung of [`Sizes::rungs`].
    rung: usize,
}

/// An engine that could not be reaped, and what it still holds.
struct Left {
    process: Arc<dyn Process>,
    bytes: u64,
}

impl Memory {
    /// With what another front left, where that is of these sizes.
    pub(super) fn new(sizes: Sizes, mut parts: Parts) -> Memory {
        let fits = |segment: &Arc<Segment>, bytes| segment.len() == bytes;
        parts.weights = parts.weights.filter(|weights| fits(weights, sizes.weights));
        parts.experts = parts.experts.filter(|experts| fits(experts, sizes.experts));
        parts.kv = parts.kv.filter(|(kv, pages)| fits(kv, sizes.kv(*pages)));
        Memory { sizes, parts, left: Vec::new(), rung: 0 }
    }

    /// What another front can go on with.
    pub(super) fn parts(&self) -> Parts {
        self.parts.clone()
    }

    /// What the next engine gets: what the last one had, unless that was struck. Where more KV pages fit again than it
    /// had, it gets as many new ones.
    pub(super) fn next(&mut self, rung: usize) -> Result<Given, SegmentError> {
        if rung > std::mem::replace(&mut self.rung, rung) {
            // Memory ran out: what is cache goes at once, whatever the next engine will want.
            self.parts.experts = None;
        }

        let weights = match self.parts.weights.take() {
            Some(weights) => weights,
            None => Arc::new(Segment::create("weights", self.sizes.weights)?),
        };
        let fit = self.pages();
        let (kv, pages) = match self.parts.kv.take().filter(|(_, pages)| *pages == fit) {
            Some(kept) => kept,
            None => (Arc::new(Segment::create("KV pages", self.sizes.kv(fit))?), fit),
        };
        self.parts.experts = match self.parts.experts.take() {
            None if self.sizes.experts > 0 => {
                Some(Arc::new(Segment::create("expert slots", self.sizes.experts)?))
            }
            experts => experts,
        };
        self.parts.weights = Some(Arc::clone(&weights));
        self.parts.kv = Some((Arc::clone(&kv), pages));
        Ok(Given { weights, kv, experts: self.parts.experts.clone(), pages })
    }

    /// KV pages that fit beside what is struck.
    pub(super) fn pages(&self) -> usize {
        self.sizes.pages_beside(self.struck()).min(self.sizes.pages_at(self.rung))
    }

    /// The engine that was given memory last cannot be reaped: strikes what it holds, and returns how many bytes that
    /// is. Weights that are sealed stay, as nobody can write them.
    pub(super) fn strike(&mut self, process: Arc<dyn Process>) -> u64 {
        let mut bytes = self.sizes.scratch;
        if let Some((kv, _)) = self.parts.kv.take() {
            bytes = bytes.saturating_add(kv.len());
        }
        if let Some(experts) = self.parts.experts.take() {
            bytes = bytes.saturating_add(experts.len());
        }
        if let Some(weights) = self.parts.weights.take_if(|weights| !is_sealed(weights)) {
            bytes = bytes.saturating_add(weights.len());
        }
        self.left.push(Left { process, bytes });
        bytes
    }

    /// Asks those that were left behind whether they have ended; returns the bytes that this freed.
    pub(super) fn reclaim(&mut self) -> u64 {
        let ended = self.left.extract_if(.., |left| left.process.exit().is_some());
        ended.fold(0, |bytes, left| bytes.saturating_add(left.bytes))
    }

    /// Gives up what engines left: the next one begins with nothing.
    pub(super) fn renew(&mut self) {
        self.parts = Parts::default();
    }

    /// Bytes that engines hold which could not be reaped.
    pub(super) fn struck(&self) -> u64 {
        self.left.iter().fold(0, |bytes, left| bytes.saturating_add(left.bytes))
    }
}

/// Strikes what an engine holds that cannot be reaped, and tells of it.
pub(super) fn strike(memory: &Mutex<Memory>, shared: &Shared, process: Arc<dyn Process>) {
    let (bytes, kv_pages, struck) = {
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        (memory.strike(process), memory.pages(), memory.struck())
    };
    show(shared, struck);
    tracing::warn!(bytes, kv_pages, "memory is struck from the ledger; the next engine has so many KV pages");
    (shared.events)(Event::MemoryStruck { bytes, kv_pages });
}

/// Asks the engines that were left behind whether they have ended, and tells of it if one has.
pub(super) fn reclaim(memory: &Mutex<Memory>, shared: &Shared) {
    let (bytes, struck) = {
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        (memory.reclaim(), memory.struck())
    };
    if bytes > 0 {
        show(shared, struck);
        tracing::info!(bytes, "an engine that was left behind has ended; its memory is free");
        (shared.events)(Event::MemoryReturned { bytes });
    }
}

fn show(shared: &Shared, struck: u64) {
    shared.lock().standing.struck_bytes = struck;
    shared.metrics.memory_struck(struck);
}

/// Whether nobody can write it.
pub(super) fn is_sealed(segment: &Segment) -> bool {
    segment.contents_are_sealed().unwrap_or_else(|error| {
        tracing::warn!(%error, "the seals of shared memory cannot be read");
        false
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::Exit;
    use super::*;

    #[derive(Default)]
    struct Stuck(Mutex<Option<Exit>>);

    impl Process for Stuck {
        fn kill(&self) {}
        fn exit(&self) -> Option<Exit> {
            *self.0.lock().unwrap()
        }
    }

    const SIZES: Sizes = Sizes {
        weights: 10_000,
        experts: 0,
        slots: 0,
        least_slots: 0,
        scratch: 1000,
        pages: 14,
        page_bytes: 8192,
        least_pages: 3,
    };

    #[test]
    fn engines_that_ended_leave_their_memory_to_the_next_one() {
        let mut memory = Memory::new(SIZES, Parts::default());
        let first = memory.next(0).unwrap();
        let second = memory.next(0).unwrap();
        assert_eq!(first.pages, 14);
        assert_eq!((first.weights.len(), first.kv.len()), (10_000, 4096 + 14 * 8192));
        assert!(Arc::ptr_eq(&first.weights, &second.weights) && Arc::ptr_eq(&first.kv, &second.kv));
        memory.renew();
        let third = memory.next(0).unwrap();
        assert!(!Arc::ptr_eq(&first.weights, &third.weights) && !Arc::ptr_eq(&first.kv, &third.kv));
    }

    #[test]
    fn memory_of_an_engine_that_cannot_be_reaped_is_struck_until_it_ends() {
        let mut memory = Memory::new(SIZES, Parts::default());
        let first = memory.next(0).unwrap();
        if cfg!(target_os = "linux") {
            first.weights.seal_contents().unwrap();
        }
        let stuck = Arc::new(Stuck::default());
        let struck = memory.strike(Arc::clone(&stuck) as Arc<dyn Process>);
        let weights = if cfg!(target_os = "linux") { 0 } else { 10_000 };
        assert_eq!(struck, 4096 + 14 * 8192 + 1000 + weights);
        assert_eq!(memory.struck(), struck);
        let second = memory.next(0).unwrap();
        assert!(!Arc::ptr_eq(&first.kv, &second.kv), "nobody uses its pages");
        assert_eq!(Arc::ptr_eq(&first.weights, &second.weights), cfg!(target_os = "linux"));
        assert_eq!(second.pages, 3, "what was accepted is served all the same");
        assert_eq!(memory.reclaim(), 0);
        *stuck.0.lock().unwrap() = Some(Exit::default());
        assert_eq!(memory.reclaim(), struck);
        assert_eq!((memory.struck(), memory.reclaim()), (0, 0));
        assert_eq!(memory.next(0).unwrap().pages, 14);
    }

    #[test]
    fn weights_that_could_still_be_written_are_struck_too() {
        let mut memory = Memory::new(SIZES, Parts::default());
        let first = memory.next(0).unwrap();
        assert_eq!(memory.strike(Arc::new(Stuck::default())), 10_000 + 4096 + 14 * 8192 + 1000);
        assert!(!Arc::ptr_eq(&first.weights, &memory.next(0).unwrap().weights));
    }

    #[test]
    fn pages_beside_struck_memory_are_as_many_as_fit() {
        assert_eq!(SIZES.pages_beside(0), 14);
        assert_eq!(SIZES.pages_beside(2 * 8192), 12);
        assert_eq!(SIZES.pages_beside(2 * 8192 + 4096), 11);
        assert_eq!(SIZES.pages_beside(u64::MAX), 3);
    }
}
