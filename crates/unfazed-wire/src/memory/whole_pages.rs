//! Which whole pages lie under things of one size that stand side by side and need not be multiples of a page.

use std::ops::Range;

/// Things of `size` bytes each, `count` of them, the first one at byte `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where the first one begins.
    pub base: usize,
    /// Bytes of each.
    pub size: usize,
    /// How many.
    pub count: usize,
}

impl Row {
    /// The bytes of the pages, `page` bytes each, that touch one of `run` and nothing that is not free: neither a thing that
    /// `free` denies, nor what is before the first one or behind the last. All of `run` must be free. Called for one run after
    /// the other as they become free, it gives no page twice.
    pub fn whole_pages(&self, run: Range<usize>, page: usize, free: impl Fn(usize) -> bool) -> Range<usize> {
        let place =
            |index: usize| index.checked_mul(self.size).and_then(|bytes| bytes.checked_add(self.base));
        let run = run.start..run.end.min(self.count);
        if run.is_empty() || self.size == 0 || page == 0 {
            return 0..0;
        }
        let Some((start, end)) = place(run.start).zip(place(run.end)) else { return 0..0 };
        // The pages of both ends belong to neighbours as well.
        let first_page = start - start % page;
        let Some(last_page) = end.checked_next_multiple_of(page) else { return 0..0 };
        let before = (0..run.start)
            .rev()
            .take_while(|index| place(index + 1).is_some_and(|end| end > first_page) && free(*index));
        let after = (run.end..self.count)
            .take_while(|index| place(*index).is_some_and(|start| start < last_page) && free(*index));
        let first = before.last().unwrap_or(run.start);
        let last = after.last().map_or(run.end, |index| index + 1);
        let Some((start, end)) = place(first).zip(place(last)) else { return 0..0 };
        let Some(start) = start.checked_next_multiple_of(page) else { return 0..0 };
        let range = start.max(first_page)..(end - end % page).min(last_page);
        if range.is_empty() { 0..0 } else { range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages that touch a thing of `run`, and of whose bytes each belongs to a free thing.
    fn naive(row: Row, run: &Range<usize>, page: usize, free: &[bool]) -> Vec<usize> {
        let owner = |byte: usize| byte.checked_sub(row.base).map(|at| at / row.size);
        let pages = (row.base + row.size * row.count) / page + 1;
        let whole = |p: &usize| {
            let mut bytes = p * page..(p + 1) * page;
            bytes.clone().any(|byte| owner(byte).is_some_and(|index| run.contains(&index)))
                && bytes.all(|byte| owner(byte).is_some_and(|index| free.get(index) == Some(&true)))
        };
        (0..pages).filter(whole).collect()
    }

    #[test]
    fn whole_pages_of_a_run_are_those_that_touch_it_and_nothing_else() {
        for (base, size) in [(0, 16), (0, 24), (0, 5), (16, 24), (3, 7), (8, 40), (0, 1)] {
            let row = Row { base, size, count: 9 };
            for bits in 0..1u32 << 9 {
                let free: Vec<bool> = (0..9).map(|i| bits >> i & 1 == 1).collect();
                for start in 0..9 {
                    for end in start + 1..=9 {
                        if !free[start..end].iter().all(|free| *free) {
                            break;
                        }
                        let found = row.whole_pages(start..end, 16, |index| free[index]);
                        let pages: Vec<usize> = found.step_by(16).map(|byte| byte / 16).collect();
                        assert_eq!(
                            pages,
                            naive(row, &(start..end), 16, &free),
                            "{row:?} {start}..{end} {free:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn runs_that_become_free_one_by_one_give_each_page_once() {
        let row = Row { base: 4, size: 6, count: 12 };
        let mut free = [false; 12];
        let mut given = Vec::new();
        for index in [3, 0, 11, 2, 4, 7, 1, 5, 6, 10, 9, 8] {
            free[index] = true;
            given.extend(row.whole_pages(index..index + 1, 16, |index| free[index]).step_by(16));
        }
        given.sort_unstable();
        assert_eq!(given, [16, 32, 48], "of bytes 4 to 76");
    }

    #[test]
    fn sizes_that_overflow_have_no_pages() {
        let row = Row { base: 0, size: usize::MAX, count: 3 };
        assert!(row.whole_pages(1..2, 4096, |_| true).is_empty());
        assert!(Row { base: 0, size: 0, count: 3 }.whole_pages(0..3, 4096, |_| true).is_empty());
        assert!(Row { base: 0, size: 4096, count: 3 }.whole_pages(3..9, 4096, |_| true).is_empty());
    }
}
