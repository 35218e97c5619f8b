//! A digest of what a page holds, position by position: against keys and values that are not what was stored.

use std::ops::Range;

use super::KvLayout;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::{Isa, LANES};

/// Odd, with bits all over: each step spreads what differs upwards, and a difference never vanishes.
const KEY_FACTOR: u32 = 0x9e37_79b1;
const VALUE_FACTOR: u64 = 0xff51_afd7_ed55_8ccd;

/// Adds the keys and values of a `block` (one layer and head of a page) at `slots` to the digests, one a position.
/// Blocks are added in a fixed order, layer by layer and head by head.
///
/// # Panics
///
/// If the block has no such slots.
pub fn digest(isa: Isa, layout: &KvLayout, block: &[u8], slots: Range<usize>, digests: &mut [u64]) {
    dispatch(isa, Digest { layout, block, slots, digests });
}

struct Digest<'a> {
    layout: &'a KvLayout,
    block: &'a [u8],
    slots: Range<usize>,
    digests: &'a mut [u64],
}

impl Kernel for Digest<'_> {
    type Output = ();

    /// Integers need no lanes of a set: the compiler makes them of the loops.
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let Digest { layout, block, slots, digests } = self;
        let mut digests = digests.iter_mut();
        for panel in slots.start / LANES..slots.end.div_ceil(LANES) {
            let first = panel * LANES;
            let lanes = slots.start.max(first) - first..slots.end.min(first + LANES) - first;
            let keys = layout.keys.of(block, panel);
            let size = layout.keys.kind.format().block_bytes();
            let whole = (lanes.len() == LANES).then(|| panel_keys(keys, size));
            let (scales, rows) = layout.values.of(block, panel);
            for (lane, digest) in lanes.zip(&mut digests) {
                let keys = whole.map_or_else(|| lane_keys(keys, size, lane), |whole| whole[lane]);
                let values = [share(scales, lane), share(rows, lane)].into_iter().fold(0, values);
                *digest = add(add(*digest, u64::from(keys)), values);
            }
        }
    }
}

/// A position's share of what sixteen positions have one after the other.
#[inline(always)]
fn share(all: &[u8], position: usize) -> &[u8] {
    let len = all.len() / LANES;
    &all[position * len..(position + 1) * len]
}

#[inline(always)]
fn add(digest: u64, word: u64) -> u64 {
    let mixed = (digest ^ word).wrapping_mul(VALUE_FACTOR);
    mixed ^ (mixed >> 29)
}

/// Of the keys of sixteen positions: scales, and codes of `size` bytes (of blocks, one).
#[inline(always)]
fn panel_keys((scales, codes): (&[u8], &[u8]), size: usize) -> [u32; LANES] {
    let lanes = lanes::<2>([0; LANES], scales);
    match size {
        2 => self::lanes::<2>(lanes, codes),
        4 => self::lanes::<4>(lanes, codes),
        _ => self::lanes::<1>(lanes, codes),
    }
}

/// The same of one position.
#[inline(always)]
fn lane_keys((scales, codes): (&[u8], &[u8]), size: usize, lane: usize) -> u32 {
    let mixed = one_lane::<2>(0, scales, lane);
    match size {
        2 => one_lane::<2>(mixed, codes, lane),
        4 => one_lane::<4>(mixed, codes, lane),
        _ => one_lane::<1>(mixed, codes, lane),
    }
}

/// Adds vectors of sixteen words of `W` bytes, a word a lane.
#[inline(always)]
fn lanes<const W: usize>(mut lanes: [u32; LANES], bytes: &[u8]) -> [u32; LANES] {
    for words in bytes.as_chunks::<W>().0.as_chunks::<LANES>().0 {
        for (lane, bytes) in lanes.iter_mut().zip(words) {
            *lane = key(*lane, bytes);
        }
    }
    lanes
}

#[inline(always)]
fn one_lane<const W: usize>(mixed: u32, bytes: &[u8], lane: usize) -> u32 {
    let words = bytes.as_chunks::<W>().0.as_chunks::<LANES>().0;
    words.iter().fold(mixed, |mixed, words| key(mixed, &words[lane]))
}

#[inline(always)]
fn key<const W: usize>(mixed: u32, bytes: &[u8; W]) -> u32 {
    (mixed ^ bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))).wrapping_mul(KEY_FACTOR)
}

/// Adds a position's values, or their scales, in four strands.
#[inline(always)]
fn values(digest: u64, row: &[u8]) -> u64 {
    let mut strands = [1_u64, 2, 3, 4];
    for words in row.as_chunks::<2>().0.chunks(4) {
        for (strand, word) in strands.iter_mut().zip(words) {
            *strand = (*strand ^ u64::from(u16::from_le_bytes(*word))).wrapping_mul(VALUE_FACTOR);
        }
    }
    strands.into_iter().fold(digest, add)
}
