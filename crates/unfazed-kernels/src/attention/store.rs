//! Positions into a page.

use std::ops::Range;

use half::{bf16, f16};
use unfazed_formats::KvType;

use super::KvLayout;
use super::block::{BLOCK, Coded, q4_0, q8_0};
use super::element::{KvElement, vectors_mut};
use super::layout::SCALE;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::{Isa, LANES};

/// Keys, or values, of a head at positions that follow each other.
#[derive(Clone, Copy)]
pub struct HeadRows<'a> {
    /// The first one's at the beginning.
    pub numbers: &'a [f32],
    /// From one position's to the next one's.
    pub stride: usize,
}

impl<'a> HeadRows<'a> {
    fn row(&self, position: usize, head_dim: usize) -> &'a [f32] {
        &self.numbers[position * self.stride..][..head_dim]
    }
}

/// Puts `keys` and `values` of a head into its `block`, at positions `slots` of the page, rounded as their types say.
///
/// # Panics
///
/// If the page has no such positions, or there are fewer keys or values.
pub fn store(
    isa: Isa,
    layout: &KvLayout,
    block: &mut [u8],
    slots: Range<usize>,
    keys: HeadRows<'_>,
    values: HeadRows<'_>,
) {
    for panel in slots.start / LANES..slots.end.div_ceil(LANES) {
        let start = slots.start.max(panel * LANES);
        let lanes = start % LANES..slots.end.min((panel + 1) * LANES) - panel * LANES;
        let row = start - slots.start;
        dispatch(isa, Store { layout, block, panel, lanes, row, keys, values });
    }
}

/// Some positions of a panel, whose keys and values begin at a row.
struct Store<'a> {
    layout: &'a KvLayout,
    block: &'a mut [u8],
    panel: usize,
    lanes: Range<usize>,
    row: usize,
    keys: HeadRows<'a>,
    values: HeadRows<'a>,
}

impl Kernel for Store<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Store { layout, block, panel, lanes, row, keys, values } = self;
        let dim = layout.head_dim();
        let (scales, codes) = layout.keys.of_mut(block, panel);
        let key = |lane: usize| keys.row(row + lane - lanes.start, dim);
        match layout.keys.kind {
            KvType::F32 => key_floats::<L, f32>(l, lanes.clone(), key, codes),
            KvType::F16 => key_floats::<L, f16>(l, lanes.clone(), key, codes),
            KvType::BF16 => key_floats::<L, bf16>(l, lanes.clone(), key, codes),
            kind @ (KvType::Q8_0 | KvType::Q4_0) => {
                lanes.clone().for_each(|lane| key_blocks(kind, key(lane), lane, scales, codes));
            }
        }

        let (scales, codes) = layout.values.of_mut(block, panel);
        let bytes = codes.len() / LANES;
        for lane in lanes.clone() {
            let value = values.row(row + lane - lanes.start, dim);
            let codes = &mut codes[lane * bytes..(lane + 1) * bytes];
            match layout.values.kind {
                KvType::F32 => value_floats::<L, f32>(l, value, codes),
                KvType::F16 => value_floats::<L, f16>(l, value, codes),
                KvType::BF16 => value_floats::<L, bf16>(l, value, codes),
                kind @ (KvType::Q8_0 | KvType::Q4_0) => value_blocks(kind, value, lane, scales, codes),
            }
        }
    }
}

/// A position's key into its lane of the panel's scales and codes.
#[inline(always)]
fn key_blocks(kind: KvType, key: &[f32], lane: usize, scales: &mut [u8], codes: &mut [u8]) {
    for (b, x) in key.as_chunks::<BLOCK>().0.iter().enumerate() {
        let Coded { scale, codes: numbers } = coded(kind, x);
        put(scales, b * LANES + lane, scale);
        if kind == KvType::Q8_0 {
            for (i, code) in numbers.iter().enumerate() {
                codes[(b * BLOCK + i) * LANES + lane] = *code as u8;
            }
        } else {
            for (i, [low, high]) in numbers.as_chunks::<2>().0.iter().enumerate() {
                codes[(b * BLOCK / 2 + i) * LANES + lane] = nibbles(*low, *high);
            }
        }
    }
}

/// A position's value into its codes and its place among the panel's scales.
#[inline(always)]
fn value_blocks(kind: KvType, value: &[f32], lane: usize, scales: &mut [u8], codes: &mut [u8]) {
    let (blocks, _) = value.as_chunks::<BLOCK>();
    let per_block = codes.len() / blocks.len();
    for (b, (x, codes)) in blocks.iter().zip(codes.chunks_exact_mut(per_block)).enumerate() {
        let Coded { scale, codes: numbers } = coded(kind, x);
        put(scales, lane * blocks.len() + b, scale);
        if kind == KvType::Q8_0 {
            codes.copy_from_slice(&numbers.map(|code| code as u8));
        } else {
            let (low, high) = numbers.split_at(LANES);
            for (code, (low, high)) in codes.iter_mut().zip(low.iter().zip(high)) {
                *code = nibbles(*low, *high);
            }
        }
    }
}

#[inline(always)]
fn coded(kind: KvType, x: &[f32; BLOCK]) -> Coded {
    if kind == KvType::Q8_0 { q8_0(x) } else { q4_0(x) }
}

#[inline(always)]
fn nibbles(low: i8, high: i8) -> u8 {
    (low + 8) as u8 | ((high + 8) as u8) << 4
}

#[inline(always)]
fn put(scales: &mut [u8], place: usize, scale: f16) {
    scales[place * SCALE..(place + 1) * SCALE].copy_from_slice(&scale.to_le_bytes());
}

/// Keys of some positions, sixteen dimensions at a time: whole cache lines are written one after the other.
#[inline(always)]
fn key_floats<'a, L: Lanes, E: KvElement>(
    l: L,
    lanes: Range<usize>,
    key: impl Fn(usize) -> &'a [f32],
    codes: &mut [u8],
) {
    for (i, dimensions) in vectors_mut::<E>(codes).chunks_mut(LANES).enumerate() {
        let mut rows = [[E::default(); LANES]; LANES];
        for lane in lanes.clone() {
            let key = &key(lane)[i * LANES..];
            rows[lane] = convert::<L, E>(l, &key[..key.len().min(LANES)]);
        }
        for (d, dimension) in dimensions.iter_mut().enumerate() {
            for lane in lanes.clone() {
                dimension[lane] = rows[lane][d];
            }
        }
    }
}

#[inline(always)]
fn value_floats<L: Lanes, E: KvElement>(l: L, value: &[f32], codes: &mut [u8]) {
    for (value, out) in value.chunks(LANES).zip(vectors_mut::<E>(codes)) {
        *out = convert::<L, E>(l, value);
    }
}

/// Up to sixteen values; the others are zero.
#[inline(always)]
fn convert<L: Lanes, E: KvElement>(l: L, x: &[f32]) -> [E; LANES] {
    let mut out = [E::default(); LANES];
    let v = match x.as_array::<LANES>() {
        Some(x) => l.load(x),
        None => l.load_part(x, 0.0),
    };
    E::store(l, v, &mut out);
    out
}
