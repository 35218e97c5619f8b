//! Which positions' keys and values have come from a GPU to the pages in shared memory.

use std::ops::Range;

use crate::PageId;

/// For each page how many of its positions, from the first on, are in shared memory.
#[derive(Debug)]
pub(super) struct Settled {
    page_tokens: usize,
    positions: Vec<usize>,
}

impl Settled {
    pub(super) fn new(pages: usize, page_tokens: usize) -> Settled {
        Settled { page_tokens, positions: vec![0; pages] }
    }

    /// A GPU writes these positions of a page: they and those after them are not in shared memory.
    pub(super) fn written(&mut self, page: PageId, slots: Range<usize>) {
        if let Some(positions) = self.positions.get_mut(page.0 as usize) {
            *positions = (*positions).min(slots.start);
        }
    }

    /// Positions of a page, up to `end`, have come.
    pub(super) fn came(&mut self, page: PageId, end: usize) {
        if let Some(positions) = self.positions.get_mut(page.0 as usize) {
            *positions = (*positions).max(end.min(self.page_tokens));
        }
    }

    /// How many of the first `positions` positions of a sequence with these pages are there.
    pub(super) fn of(&self, pages: &[PageId], positions: usize) -> usize {
        let mut settled = 0;
        for page in pages {
            let there = self.positions.get(page.0 as usize).copied().unwrap_or(0);
            settled += there;
            if there < self.page_tokens {
                break;
            }
        }
        settled.min(positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_up_to_the_first_that_has_not_come() {
        let pages = [PageId(3), PageId(0), PageId(2)];
        let mut settled = Settled::new(4, 16);
        assert_eq!(settled.of(&pages, 40), 0);
        settled.came(PageId(0), 16);
        assert_eq!(settled.of(&pages, 40), 0);
        settled.came(PageId(3), 16);
        settled.came(PageId(2), 5);
        assert_eq!((settled.of(&pages, 40), settled.of(&pages, 33)), (37, 33));
    }

    #[test]
    fn what_is_written_anew_has_to_come_again() {
        let mut settled = Settled::new(2, 16);
        settled.came(PageId(1), 16);
        settled.written(PageId(1), 4..5);
        assert_eq!(settled.of(&[PageId(1)], 16), 4);
        settled.came(PageId(1), 99);
        assert_eq!(settled.of(&[PageId(1)], 16), 16);
        settled.written(PageId(7), 0..1);
    }
}
