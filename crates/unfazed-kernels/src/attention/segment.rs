//! Keys and values of the positions that are taken together.

use half::f16;
use unfazed_formats::{KvType, KvTypes};

use super::KvLayout;
use super::element::{KvElement, vectors};
use super::unpack;
use crate::LANES;
use crate::lanes::{Lanes, prefetch};

/// Positions in a segment: keys and values of a head of 128 dimensions and their scores stay in the first two caches.
pub(super) const SEGMENT: usize = 128;
/// Panels in a segment.
pub(super) const PANELS: usize = SEGMENT / LANES;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Keys and values of a segment and of the one behind it, which is prefetched; slices are empty beyond the last position.
pub(super) struct Segment<'b, E> {
    pub(super) start: usize,
    pub(super) keys: [&'b [[E; LANES]]; 2 * PANELS],
    pub(super) values: [&'b [[E; LANES]]; 2 * PANELS],
}

/// Where segments come from.
pub(super) trait Segments {
    /// What keys and values are while they are worked on.
    type Element: KvElement;

    /// The segment of the positions from `start` on that are below `end`. `block` gives the block of the layer and head
    /// in the sequence's n-th page.
    fn at<'s, 'b: 's, L: Lanes>(
        &'s mut self,
        l: L,
        layout: &KvLayout,
        start: usize,
        end: usize,
        block: &dyn Fn(usize) -> &'b [u8],
    ) -> Segment<'s, Self::Element>;
}

/// Keys and values of f16 are worked on as they lie in their pages.
pub(super) struct InPages;

impl InPages {
    pub(super) fn serves(types: KvTypes) -> bool {
        types == KvTypes::both(KvType::F16)
    }
}

impl Segments for InPages {
    type Element = f16;

    #[inline(always)]
    fn at<'s, 'b: 's, L: Lanes>(
        &'s mut self,
        _: L,
        layout: &KvLayout,
        start: usize,
        end: usize,
        block: &dyn Fn(usize) -> &'b [u8],
    ) -> Segment<'s, f16> {
        let mut segment = Segment { start, keys: [&[]; 2 * PANELS], values: [&[]; 2 * PANELS] };
        let per_page = layout.page_tokens() / LANES;
        let first = start / LANES;
        for panel in first..(first + 2 * PANELS).min(end.div_ceil(LANES)) {
            let (block, in_page) = (block(panel / per_page), panel % per_page);
            segment.keys[panel - first] = vectors(layout.keys.of(block, in_page).1);
            segment.values[panel - first] = vectors(layout.values.of(block, in_page).1);
        }
        segment
    }
}

/// All others are unpacked first, once for all queries.
pub(super) struct Unpacked {
    /// `[panel][dimension][position % 16]`.
    keys: Vec<[f32; LANES]>,
    /// `[panel][position % 16][dimension]`.
    values: Vec<[f32; LANES]>,
}

impl Unpacked {
    /// Room for a segment of heads of this width.
    pub(super) fn new(head_dim: usize) -> Unpacked {
        let [keys, values] = Unpacked::lengths(head_dim).map(|len| vec![[0.0; LANES]; len]);
        Unpacked { keys, values }
    }

    pub(super) fn bytes(head_dim: usize) -> usize {
        Unpacked::lengths(head_dim).iter().sum::<usize>() * size_of::<[f32; LANES]>()
    }

    fn lengths(head_dim: usize) -> [usize; 2] {
        [PANELS * head_dim, PANELS * head_dim.next_multiple_of(LANES)]
    }
}

impl Segments for Unpacked {
    type Element = f32;

    #[inline(always)]
    fn at<'s, 'b: 's, L: Lanes>(
        &'s mut self,
        l: L,
        layout: &KvLayout,
        start: usize,
        end: usize,
        block: &dyn Fn(usize) -> &'b [u8],
    ) -> Segment<'s, f32> {
        let per_page = layout.page_tokens() / LANES;
        let first = start / LANES;
        let count = PANELS.min(end.div_ceil(LANES) - first);
        let (keys, values) = (layout.head_dim(), layout.width());
        for i in 0..count {
            let panel = first + i;
            let (this, in_page) = (block(panel / per_page), panel % per_page);
            // Pages lie anywhere, so no hardware knows which comes next.
            if (panel + 1) * LANES < end {
                let (next, in_page) = (block((panel + 1) / per_page), (panel + 1) % per_page);
                ahead(&next[layout.keys.at(in_page)]);
                ahead(&next[layout.values.at(in_page)]);
            }
            unpack::keys(l, layout, this, in_page, &mut self.keys[i * keys..(i + 1) * keys]);
            unpack::values(l, layout, this, in_page, &mut self.values[i * values..(i + 1) * values]);
        }
        let mut segment = Segment { start, keys: [&[]; 2 * PANELS], values: [&[]; 2 * PANELS] };
        let panels = self.keys.chunks(keys).zip(self.values.chunks(values));
        for (i, panel) in panels.take(count).enumerate() {
            (segment.keys[i], segment.values[i]) = panel;
        }
        segment
    }
}

#[inline(always)]
fn ahead(bytes: &[u8]) {
    bytes.iter().step_by(LINE).for_each(|byte| prefetch(byte));
}
