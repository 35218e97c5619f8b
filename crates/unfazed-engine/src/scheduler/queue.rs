//! Waiting and running sequences.

use std::collections::VecDeque;
use std::time::Duration;

use unfazed_device::PageId;
use unfazed_wire::{FinishReason, RequestId, Submit, Timings};

use super::{Limits, admission};
use crate::kept::Found;
use crate::pages::PageAllocator;
use crate::sequence::Sequence;

/// What becomes of a request that can be served.
pub(crate) enum Submitted {
    /// It waits for its place.
    Waits,
    /// Nothing is left to do.
    Complete(FinishReason, Timings),
}

/// All sequences, and the pages that they share out.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(super) limits: Limits,
    /// Most rows in a step that the device was laid out for.
    most_rows: usize,
    pages: PageAllocator,
    /// In order of arrival.
    waiting: VecDeque<Sequence>,
    /// In order of admission; each has its pages.
    pub(super) running: Vec<Sequence>,
    /// Number of the last step that was planned.
    pub(super) step: u64,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Scheduler {
        let pages = PageAllocator::new(limits.pages);
        let most_rows = limits.chunk;
        Scheduler { limits, most_rows, pages, waiting: VecDeque::new(), running: Vec::new(), step: 0 }
    }

    /// What steps may be.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Lets the steps that follow have at most so many rows, within what the device was laid out for. No result depends on
    /// it.
    pub(crate) fn limit_rows(&mut self, rows: usize) {
        self.limits.chunk = rows.clamp(1, self.most_rows);
    }

    /// Queues a request, or says why it can never be served.
    pub(crate) fn submit(&mut self, submit: Submit, now: Duration) -> Result<Submitted, String> {
        admission::check(&submit, &self.limits)?;
        let mut known = self.waiting.iter().chain(&self.running);
        if known.any(|sequence| sequence.request == submit.request) {
            return Err(format!("request {} is being computed already", submit.request.0));
        }
        let sequence = Sequence::new(submit, self.limits.context, now);
        if let Some(reason) = sequence.complete() {
            return Ok(Submitted::Complete(reason, sequence.timings(now)));
        }
        let (need, have) = (self.pages_for(&sequence), self.pages.total());
        if need > have {
            let positions = sequence.positions();
            return Err(format!("{positions} positions need {need} KV pages and there are {have}"));
        }
        self.waiting.push_back(sequence);
        Ok(Submitted::Waits)
    }

    /// These pages are given out only when there are no others.
    pub(crate) fn spare(&mut self, pages: impl IntoIterator<Item = PageId>) {
        self.pages.spare(pages);
    }

    /// Forgets a request; its pages are free at once.
    pub(crate) fn cancel(&mut self, request: RequestId) {
        self.waiting.retain(|sequence| sequence.request != request);
        self.end_where(|sequence| sequence.request == request);
    }

    /// The next sequence to run, if there are a place and pages for it: first come, first served, so that one that needs
    /// many pages is not overtaken for ever by those that need few.
    pub(crate) fn next(&self) -> Option<&Sequence> {
        let place = self.running.len() < self.limits.parallel;
        self.waiting.front().filter(|first| place && self.pages_for(first) <= self.pages.free())
    }

    /// Lets it run, with the pages that were found to hold its first positions.
    pub(crate) fn admit(&mut self, found: Found, now: Duration) -> Option<&Sequence> {
        let need = self.pages_for(self.waiting.front()?);
        let pages = self.pages.reserve(need, &found.pages)?;
        let Some(mut sequence) = self.waiting.pop_front() else {
            self.pages.release(pages);
            return None;
        };
        // Whoever else had reserved one of them would have been no finder.
        let found = if pages.all().starts_with(&found.pages) { found } else { Found::default() };
        sequence.stands_at(&found);
        sequence.pages = Some(pages);
        sequence.admitted = now;
        // Ahead of its first step nobody has waited longer.
        self.running.push(sequence);
        self.running.last()
    }

    /// The running sequences, by the indices of a plan.
    pub(crate) fn running(&mut self) -> &mut [Sequence] {
        &mut self.running
    }

    /// Ends the running sequences with these numbers.
    pub(crate) fn end(&mut self, ended: &[RequestId]) {
        self.end_where(|sequence| ended.contains(&sequence.request));
    }

    /// No sequence waits or runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Pages that no sequence has.
    pub(crate) fn free_pages(&self) -> usize {
        self.pages.free()
    }

    /// Pages that no sequence has, as [`PageAllocator::in_order`].
    pub(crate) fn free(&mut self, spared: impl Fn(PageId) -> bool) -> &[PageId] {
        self.pages.in_order(spared)
    }

    /// A sequence waits that an earlier engine's pages may be of use to.
    pub(crate) fn waits_for_kept(&self) -> bool {
        self.waiting.iter().any(|sequence| sequence.may_keep > 0)
    }

    fn end_where(&mut self, ends: impl Fn(&Sequence) -> bool) {
        for sequence in self.running.extract_if(.., |sequence| ends(sequence)) {
            if let Some(pages) = sequence.pages {
                self.pages.release(pages);
            }
        }
    }

    fn pages_for(&self, sequence: &Sequence) -> usize {
        sequence.positions().div_ceil(self.limits.page_tokens)
    }
}
