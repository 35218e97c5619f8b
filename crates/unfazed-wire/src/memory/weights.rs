//! What is where in the memory for weights: marks of what is whole, then the packed weights.
//!
//! An engine puts its weights there in an order that follows from the model's headers alone, so every engine computes
//! the same places. A mark is written after its extent's bytes: the next engine uses what is marked and loads the rest.

use std::sync::atomic::Ordering;

use super::mapping::Mapping;

/// Most extents.
pub const EXTENTS_MAX: usize = 1 << 17;
/// Words of a mark.
const WORDS: usize = 2;
/// Where the weights begin: on a huge page's boundary.
pub const WEIGHTS_OFFSET: usize = EXTENTS_MAX * WORDS * size_of::<u64>();

/// One extent: a tensor's packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightExtent {
    /// Counts from 0 in the order of loading.
    pub number: usize,
    /// Where it begins, from [`WEIGHTS_OFFSET`] on.
    pub offset: usize,
    /// Its bytes.
    pub len: usize,
    /// Stands for the tensor, its shape, its format and the form it is packed in.
    pub identity: u64,
}

impl WeightExtent {
    /// Whether an engine has put this very extent there, to its last byte.
    pub fn is_marked(&self, mapping: &Mapping) -> bool {
        let Some([len, mark]) = self.offset().and_then(|at| mapping.atomics(at, WORDS)) else { return false };
        mark.load(Ordering::Acquire) == self.mark() && len.load(Ordering::Relaxed) == self.len as u64
    }

    /// Says so. False if there is no room for the mark, or the mapping can only be read.
    pub fn set_mark(&self, mapping: &Mapping) -> bool {
        let words = self.offset().and_then(|at| mapping.atomics_to_write(at, WORDS));
        let Some([len, mark]) = words else { return false };
        len.store(self.len as u64, Ordering::Relaxed);
        // The extent's bytes were written before; nobody sees the mark without them.
        mark.store(self.mark(), Ordering::Release);
        true
    }

    fn offset(&self) -> Option<usize> {
        (self.number < EXTENTS_MAX).then_some(self.number * WORDS * size_of::<u64>())
    }

    /// Never zero, which is what fresh memory holds.
    fn mark(&self) -> u64 {
        super::mix([self.offset as u64, self.len as u64, self.identity]) | 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Access, Segment};
    use super::*;

    #[test]
    fn a_mark_holds_for_its_own_extent_alone() {
        let segment = Segment::create("a test", WEIGHTS_OFFSET as u64).unwrap();
        let mapping = Mapping::new(&segment, Access::Write).unwrap();
        let extent = WeightExtent { number: 3, offset: 64, len: 100, identity: 9 };
        assert!(!extent.is_marked(&mapping));
        assert!(extent.set_mark(&mapping));
        assert!(extent.is_marked(&mapping));
        for other in [
            WeightExtent { number: 4, ..extent },
            WeightExtent { offset: 128, ..extent },
            WeightExtent { len: 101, ..extent },
            WeightExtent { identity: 8, ..extent },
        ] {
            assert!(!other.is_marked(&mapping), "{other:?}");
        }
    }

    #[test]
    fn beyond_the_last_mark_there_is_none() {
        let segment = Segment::create("a test", WEIGHTS_OFFSET as u64).unwrap();
        let mapping = Mapping::new(&segment, Access::Write).unwrap();
        let extent = |number| WeightExtent { number, offset: 0, len: 1, identity: 1 };
        assert!(extent(EXTENTS_MAX - 1).set_mark(&mapping));
        assert!(!extent(EXTENTS_MAX).set_mark(&mapping) && !extent(EXTENTS_MAX).is_marked(&mapping));
    }
}
