//! KV pages: a fixed number of them, reserved for a sequence when it is admitted and given back when it ends.
//!
//! [`Pages`] can be neither copied nor taken apart: what was given back is gone, so no page is ever free twice.

use std::cmp::Reverse;
use std::collections::HashSet;

use unfazed_device::PageId;

/// Pages that belong to one sequence, in order of position.
#[derive(Debug)]
#[must_use = "pages that are dropped instead of given back are lost"]
pub struct Pages(Vec<PageId>);

impl Pages {
    /// All of them.
    pub fn all(&self) -> &[PageId] {
        &self.0
    }

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

    /// These pages are taken only when there are no others.
    pub fn spare(&mut self, pages: impl IntoIterator<Item = PageId>) {
        let pages: HashSet<PageId> = pages.into_iter().collect();
        self.free.sort_by_key(|page| !pages.contains(page));
    }

    /// Takes `count` pages, or none if not as many are free. The first of them are those of `first`, as many as are
    /// wanted and free.
    pub fn reserve(&mut self, count: usize, first: &[PageId]) -> Option<Pages> {
        if count > self.free.len() {
            return None;
        }
        let mut wanted: HashSet<PageId> = first.iter().take(count).copied().collect();
        if !wanted.is_empty() {
            let free: HashSet<PageId> = self.free.extract_if(.., |page| wanted.contains(page)).collect();
            wanted = free;
        }
        let mut pages: Vec<PageId> = first.iter().copied().filter(|page| wanted.remove(page)).collect();
        let rest = self.free.len() - (count - pages.len());
        pages.extend(self.free.drain(rest..).rev());
        Some(Pages(pages))
    }

    /// Takes pages back.
    pub fn release(&mut self, pages: Pages) {
        self.free.extend(pages.0.into_iter().rev());
        debug_assert!(self.free.len() <= self.total, "pages of another allocator came back");
    }

    /// Pages that nobody has: those that are spared, then the others, each in descending order. The last, which is the lowest
    /// of the others, is taken first from now on. Allocates nothing.
    pub fn in_order(&mut self, spared: impl Fn(PageId) -> bool) -> &[PageId] {
        self.free.sort_unstable_by_key(|page| (!spared(*page), Reverse(*page)));
        &self.free
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

    #[test]
    fn more_than_is_free_is_not_given_even_in_part() {
        let mut allocator = PageAllocator::new(3);
        let two = allocator.reserve(2, &[]).unwrap();
        assert!(allocator.reserve(2, &[]).is_none());
        assert_eq!(allocator.free(), 1);
        allocator.release(two);
        assert_eq!(allocator.free(), 3);
    }

    #[test]
    fn pages_cover_positions_in_order() {
        let mut allocator = PageAllocator::new(4);
        let pages = allocator.reserve(3, &[]).unwrap();
        assert_eq!(pages.covering(0, 32), []);
        assert_eq!(pages.covering(32, 32), [PageId(0)]);
        assert_eq!(pages.covering(33, 32), [PageId(0), PageId(1)]);
        allocator.release(pages);
    }

    #[test]
    fn wanted_pages_come_first_and_spared_ones_last() {
        let mut allocator = PageAllocator::new(6);
        allocator.spare([PageId(0), PageId(1)]);
        let pages = allocator.reserve(3, &[PageId(5), PageId(1)]).unwrap();
        assert_eq!(pages.all(), [PageId(5), PageId(1), PageId(2)]);
        let rest = allocator.reserve(3, &[PageId(5)]).unwrap();
        assert_eq!(rest.all(), [PageId(3), PageId(4), PageId(0)]);
    }

    #[test]
    fn pages_are_put_in_order_and_those_that_are_spared_are_still_taken_last() {
        let mut allocator = PageAllocator::new(6);
        let taken = allocator.reserve(6, &[PageId(3), PageId(5), PageId(0)]).unwrap();
        allocator.release(taken);
        let order = allocator.in_order(|page| page.0 < 2).to_vec();
        assert_eq!(order, [1, 0, 5, 4, 3, 2].map(PageId));
        assert_eq!(allocator.reserve(5, &[]).unwrap().all(), [2, 3, 4, 5, 0].map(PageId));
    }

    proptest! {
        #[test]
        fn no_page_has_two_owners_and_none_is_lost(actions in prop::collection::vec((any::<bool>(), 0usize..9), 1..60)) {
            let mut allocator = PageAllocator::new(20);
            let mut held: Vec<Pages> = Vec::new();
            for (take, size) in actions {
                if take {
                    let first = [PageId(size as u32), PageId(7), PageId(99)];
                    let pages = allocator.reserve(size, &first);
                    prop_assert!(pages.as_ref().is_none_or(|pages| pages.all().len() == size));
                    held.extend(pages);
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
