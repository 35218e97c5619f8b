//! A device that computes next to nothing: its logits are a function of a sequence's tokens as its KV pages hold them. A page
//! with a stranger's tokens, or what is left in one of a step that never ran, changes what comes out.

use std::cell::RefCell;
use std::rc::Rc;

use unfazed_device::{Batch, Class, Device, DeviceError, Generation, PageId, PageSpan, Part, StepOutput};
use unfazed_engine::Limits;
use unfazed_formats::config::{ExpertConfig, RopeConfig};
use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, VectorSource};

use crate::device::Losable;
use crate::plan::mix;

/// Tokens in place of keys and values: pages that outlive the device, as shared memory does.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    tokens: Rc<RefCell<Vec<Vec<u32>>>>,
    page_tokens: usize,
}

impl Pages {
    pub(super) fn new(limits: &Limits) -> Pages {
        let empty = vec![u32::MAX; limits.page_tokens];
        Pages { tokens: Rc::new(RefCell::new(vec![empty; limits.pages])), page_tokens: limits.page_tokens }
    }

    fn put(&self, pages: &[PageId], position: usize, token: u32) {
        let page = pages.get(position / self.page_tokens).map_or(usize::MAX, |page| page.0 as usize);
        let mut all = self.tokens.borrow_mut();
        if let Some(slot) = all.get_mut(page).and_then(|page| page.get_mut(position % self.page_tokens)) {
            *slot = token;
        }
    }

    fn state(&self, pages: &[PageId], positions: usize) -> u64 {
        let all = self.tokens.borrow();
        let held = pages.iter().filter_map(|page| all.get(page.0 as usize)).flatten();
        held.take(positions).fold(1, |state, &token| mix(state ^ u64::from(token)))
    }
}

/// The device.
#[derive(Debug)]
pub(super) struct ToyDevice {
    pages: Pages,
    vocab: usize,
    logits: Vec<f32>,
}

impl ToyDevice {
    pub(super) fn new(pages: Pages, vocab: usize) -> ToyDevice {
        ToyDevice { pages, vocab, logits: Vec::new() }
    }
}

impl Losable for ToyDevice {
    fn lose_pages(&mut self) {
        self.pages.tokens.borrow_mut().iter_mut().for_each(|page| page.fill(u32::MAX));
    }
}

impl Device for ToyDevice {
    type Matrix = ();
    type Vector = ();
    type Experts = ();

    fn load_matrix(&mut self, _: Part, _: &MatrixSource) -> Result<(), DeviceError> {
        Ok(())
    }

    fn load_vector(&mut self, _: Part, _: &VectorSource) -> Result<(), DeviceError> {
        Ok(())
    }

    fn load_experts(&mut self, _: usize, _: &LayerExperts) -> Result<(), DeviceError> {
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        self.logits.clear();
        for row in &batch.rows {
            let pages = batch.sequences.get(row.sequence).map(Vec::as_slice).unwrap_or_default();
            self.pages.put(pages, row.position, row.token);
            if row.logits {
                let state = self.pages.state(pages, row.position + 1);
                let logit = |id: usize| (mix(state ^ id as u64) % 1000) as f32 / 125.0;
                self.logits.extend((0..self.vocab).map(logit));
            }
        }
        Ok(())
    }

    fn embed(&mut self, (): &()) {}
    fn norm(&mut self, (): &(), _: f32) {}
    fn project_qkv(&mut self, (): &(), (): &(), (): &()) {}
    fn norm_heads(&mut self, (): &(), (): &(), _: f32) {}
    fn rotate(&mut self, _: &RopeConfig) {}
    fn attend(&mut self, _: usize) {}
    fn project_context(&mut self, (): &()) {}
    fn feed_forward(&mut self, (): &(), (): &(), (): &()) {}
    fn mixture(&mut self, (): &(), (): &(), _: &ExpertConfig) {}
    fn look_ahead(&mut self, (): &(), _: f32, (): &(), (): &(), _: &ExpertConfig) {}
    fn output(&mut self, (): &(), _: f32, (): &()) {}

    fn digests(&mut self, spans: &[PageSpan]) -> Result<Vec<u64>, DeviceError> {
        let all = self.pages.tokens.borrow();
        let of = |span: &PageSpan| {
            let page = all.get(span.page.0 as usize).and_then(|page| page.get(span.slots.clone()));
            page.unwrap_or_default().iter().map(|&token| mix(u64::from(token))).collect::<Vec<_>>()
        };
        Ok(spans.iter().flat_map(of).collect())
    }

    fn finish(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        Ok(StepOutput { logits: &self.logits, ..StepOutput::default() })
    }

    fn give_back(&mut self, first: PageId, count: usize) -> std::io::Result<u64> {
        let mut all = self.pages.tokens.borrow_mut();
        let pages = all.iter_mut().skip(first.0 as usize).take(count);
        pages.for_each(|page| page.fill(u32::MAX));
        Ok(count as u64)
    }

    fn generation(&self) -> Generation {
        Generation::default()
    }

    fn rebuild(&mut self, _: Class) -> Result<(), DeviceError> {
        Ok(())
    }
}
