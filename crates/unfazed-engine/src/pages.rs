//! KV pages: a fixed number of them, reserved for a sequence when it is admitted and given back when it ends.
//!
//! [`Pages`] can be neither copied nor taken apart: what was given back is gone, so no page is ever free twice.

use unfazed_device::PageId;

/// Pages that belong to one sequence, in order of position.
#[derive(Debug)]
#[must_use = "pages that are dropped instead of given back are lost"]
pub struct Pages(Vec<PageId>);

impl Pages {
    /// The pages of the first `positions` positions.
    pub fn covering(&self, positions: usize, page_tokens: usize) -> &[PageId] {
        let count = positions.div_ceil(page_tokens);
        self.0.get(..count).unwrap_or(&self.0)
    }
}

/// Who gives pages out.
#[derive(Debug)]
pub struct PageAllocator {
    free: Vec<PageId>,
    total: usize,
}

impl PageAllocator {
    /// All of `total` pages are free.
    pub fn new(total: usize) -> PageAllocator {
        let total = total.min(u32::MAX as usize);
        // The lowest page is taken first: a lightly loaded engine touches little memory.
        PageAllocator { free: (0..total as u32).rev().map(PageId).collect(), total }
    }

    /// Takes `count` pages, or none if not as many are free.
    pub fn reserve(&mut self, count: usize) -> Option<Pages> {
        let rest = self.free.len().checked_sub(count)?;
        let mut pages = self.free.split_off(rest);
        pages.reverse();
        Some(Pages(pages))
    }

    /// Takes pages back.
    pub fn release(&mut self, pages: Pages) {
        self.free.extend(pages.0.into_iter().rev());
        debug_assert!(self.free.len() <= self.total, "pages of another allocator came back");
    }

    /// Pages that nobody has.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// All pages.
    pub fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn more_than_is_free_is_not_given_even_in_part() {
        let mut allocator = PageAllocator::new(3);
        let two = allocator.reserve(2).unwrap();
        assert!(allocator.reserve(2).is_none());
        assert_eq!(allocator.free(), 1);
        allocator.release(two);
        assert_eq!(allocator.free(), 3);
    }

    #[test]
    fn pages_cover_positions_in_order() {
        let mut allocator = PageAllocator::new(4);
        let pages = allocator.reserve(3).unwrap();
        assert_eq!(pages.covering(0, 32), []);
        assert_eq!(pages.covering(32, 32), [PageId(0)]);
        assert_eq!(pages.covering(33, 32), [PageId(0), PageId(1)]);
        allocator.release(pages);
    }

    proptest! {
        #[test]
        fn no_page_has_two_owners_and_none_is_lost(actions in prop::collection::vec((any::<bool>(), 0usize..9), 1..60)) {
            let mut allocator = PageAllocator::new(20);
            let mut held: Vec<Pages> = Vec::new();
            for (take, size) in actions {
                if take {
                    held.extend(allocator.reserve(size));
                } else if !held.is_empty() {
                    let pages = held.swap_remove(size % held.len());
                    allocator.release(pages);
                }
                let owned: Vec<PageId> = held.iter().flat_map(|pages| pages.0.clone()).collect();
                prop_assert_eq!(owned.iter().collect::<HashSet<_>>().len(), owned.len());
                prop_assert_eq!(owned.len() + allocator.free(), 20);
            }
        }
    }
}
