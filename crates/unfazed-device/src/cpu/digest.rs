//! Digests of keys and values in pages.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use unfazed_kernels::Isa;
use unfazed_kernels::attention::{KvLayout, digest};

use super::compute::Compute;
use super::disjoint::Disjoint;
use super::pages::Pages;
use crate::{DeviceError, KvShape, PageSpan};

/// One digest for each position of the spans, in order.
pub(super) fn digests(
    compute: &mut Compute,
    pages: &Pages,
    kv: &KvShape,
    spans: &[PageSpan],
    pulse: &AtomicU64,
) -> Result<Vec<u64>, DeviceError> {
    let mut starts = Vec::with_capacity(spans.len());
    let mut len = 0;
    for span in spans {
        let slots = &span.slots;
        if span.page.0 as usize >= kv.pages || slots.start > slots.end || slots.end > kv.page_tokens {
            return Err(DeviceError::Batch(format!("there is no {span:?}")));
        }
        starts.push(len);
        len += slots.len();
    }
    let mut all = vec![0; len];
    let parts = Disjoint::new(&mut all[..]);
    let isa = compute.isa;
    compute.units(spans.len(), &|_, unit| {
        let span = &spans[unit];
        pulse.fetch_add(1, Ordering::Relaxed);
        // SAFETY: each span comes up once, and these are its digests.
        let part = unsafe { parts.part(starts[unit]..starts[unit] + span.slots.len()) };
        page(isa, &pages.layout, &pages.memory, span, part);
    });
    Ok(all)
}

fn page(isa: Isa, layout: &KvLayout, memory: &[u8], span: &PageSpan, digests: &mut [u64]) {
    let page = &memory[span.page.0 as usize * layout.page_bytes()..][..layout.page_bytes()];
    for layer in 0..layout.layers() {
        for head in 0..layout.kv_heads() {
            digest(isa, layout, &page[layout.block(layer, head)], span.slots.clone(), digests);
        }
    }
}
