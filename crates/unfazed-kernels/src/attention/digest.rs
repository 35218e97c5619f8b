//! A digest of what a page holds, position by position: against keys and values that are not what was stored.

use std::ops::Range;

use half::f16;

use super::KvLayout;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::{Isa, LANES};

/// Odd, with bits all over: each step spreads what differs upwards, and a difference never vanishes.
const KEY_FACTOR: u32 = 0x9e37_79b1;
const VALUE_FACTOR: u64 = 0xff51_afd7_ed55_8ccd;

/// An element's bits.
pub trait KvBits: Copy {
    /// As an integer.
    fn bits(self) -> u32;
}

impl KvBits for f16 {
    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}

impl KvBits for f32 {
    #[inline(always)]
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

/// Adds the keys and values of a `block` (one layer and head of a page) at `slots` to the digests, one a position.
/// Blocks are added in a fixed order, layer by layer and head by head.
///
/// # Panics
///
/// If the block has no such slots.
pub fn digest<E: KvBits>(isa: Isa, layout: &KvLayout, block: &[E], slots: Range<usize>, digests: &mut [u64]) {
    dispatch(isa, Digest { layout, block, slots, digests });
}

struct Digest<'a, E> {
    layout: &'a KvLayout,
    block: &'a [E],
    slots: Range<usize>,
    digests: &'a mut [u64],
}

impl<E: KvBits> Kernel for Digest<'_, E> {
    type Output = ();

    /// Integers need no lanes of a set: the compiler makes them of the loops.
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let Digest { layout, block, slots, digests } = self;
        let mut digests = digests.iter_mut();
        for panel in slots.start / LANES..slots.end.div_ceil(LANES) {
            let first = panel * LANES;
            let lanes = slots.start.max(first) - first..slots.end.min(first + LANES) - first;
            let (keys, rows) = (&block[layout.keys(panel)], &block[layout.values(panel)]);
            let whole = (lanes.len() == LANES).then(|| panel_keys(keys));
            for (lane, digest) in lanes.zip(&mut digests) {
                let keys = whole.map_or_else(|| lane_keys(keys, lane), |whole| whole[lane]);
                let values = values(&rows[lane * layout.width()..(lane + 1) * layout.width()]);
                *digest = add(add(*digest, u64::from(keys)), values);
            }
        }
    }
}

#[inline(always)]
fn add(digest: u64, word: u64) -> u64 {
    let mixed = (digest ^ word).wrapping_mul(VALUE_FACTOR);
    mixed ^ (mixed >> 29)
}

/// Of the keys of sixteen positions.
#[inline(always)]
fn panel_keys<E: KvBits>(panel: &[E]) -> [u32; LANES] {
    let mut lanes = [0; LANES];
    for dimension in panel.as_chunks::<LANES>().0 {
        for (lane, key) in lanes.iter_mut().zip(dimension) {
            *lane = (*lane ^ key.bits()).wrapping_mul(KEY_FACTOR);
        }
    }
    lanes
}

/// The same of one position.
#[inline(always)]
fn lane_keys<E: KvBits>(panel: &[E], lane: usize) -> u32 {
    let dimensions = panel.as_chunks::<LANES>().0;
    dimensions.iter().fold(0, |mixed, keys| (mixed ^ keys[lane].bits()).wrapping_mul(KEY_FACTOR))
}

/// Of the values of a position, in four strands.
#[inline(always)]
fn values<E: KvBits>(row: &[E]) -> u64 {
    let mut strands = [1_u64, 2, 3, 4];
    for values in row.as_chunks::<4>().0 {
        for (strand, value) in strands.iter_mut().zip(values) {
            *strand = (*strand ^ u64::from(value.bits())).wrapping_mul(VALUE_FACTOR);
        }
    }
    strands.into_iter().fold(0, add)
}
