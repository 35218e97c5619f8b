//! From a panel to what kernels multiply: what all formats have in common.

#![allow(clippy::needless_range_loop)] // Groups, vectors and lanes are indexed alike.

use std::array::from_fn;

use half::f16;
use unfazed_formats::block::affine::{Bits, Half};
use unfazed_formats::block::small_floats::e8m0_half;

use crate::LANES;
use crate::lanes::Lanes;
use crate::panel::{Geometry, LINE, SCALES, Scales, Spec, Values, bf16_lanes};

use super::integers::{IntegerKernel, Integers};

/// Groups of 32 columns in a chunk.
pub(super) const GROUPS: usize = 8;

/// Up to 256 columns of a panel, taken apart. A lane is a row.
#[repr(align(64))]
pub(super) struct Chunk {
    /// Codes by group of 32 columns and by four columns of it: byte `c` of lane `r` of vector `g` is row `r`, column
    /// `4g + c`.
    pub(super) codes: [[[u8; LINE]; 8]; GROUPS],
    /// Scale of each sub-block; 1 if there are none.
    pub(super) scales: [[f32; LANES]; 2 * GROUPS],
    /// Integer minimums of sub-blocks `2i` and `2i + 1`, side by side in a lane.
    pub(super) minimums: [[i16; 2 * LANES]; GROUPS],
    /// Scale of the block, by group; in superblocks the first.
    pub(super) d: [[f32; LANES]; GROUPS],
    /// Factor of the minimums, likewise.
    pub(super) m: [[f32; LANES]; GROUPS],
}

impl Chunk {
    pub(super) fn new() -> Chunk {
        Chunk {
            codes: [[[0; LINE]; 8]; GROUPS],
            scales: [[1.0; LANES]; 2 * GROUPS],
            minimums: [[0; 2 * LANES]; GROUPS],
            d: [[1.0; LANES]; GROUPS],
            m: [[0.0; LANES]; GROUPS],
        }
    }
}

/// Takes some groups of a panel apart, from group `first` on, which begins a block. A chunk serves one format.
pub(super) struct Unpack<'a> {
    pub(super) spec: &'a Spec,
    pub(super) geometry: &'a Geometry,
    /// What is taken from the stored codes.
    pub(super) removed: u8,
    pub(super) panel: &'a [u8],
    pub(super) first: usize,
    pub(super) groups: usize,
    pub(super) chunk: &'a mut Chunk,
}

impl IntegerKernel for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Integers>(self, isa: I) {
        let Unpack { spec, geometry, removed, panel, first, groups, chunk } = self;
        let each = geometry.groups;
        let mut block = geometry.block_of(first);
        for done in (0..groups).step_by(each) {
            let (scales, at) = (&panel[geometry.scales_at(block)..], geometry.block_at(block));
            let (header, codes) = panel[at..][..geometry.block].split_at(geometry.header);
            unpack_scales(isa, spec, scales, header, done, chunk);
            let codes = codes.chunks_exact(geometry.group).zip(&mut chunk.codes[done..]);
            for (bytes, codes) in codes.take(groups - done) {
                let unpacked = unpack_group(isa, spec, removed, bytes);
                for (vector, line) in unpacked.into_iter().zip(codes) {
                    isa.store(vector, line);
                }
            }
            block += 1;
        }
    }
}

/// The codes of 32 columns.
#[inline(always)]
fn unpack_group<I: Integers>(isa: I, spec: &Spec, removed: u8, bytes: &[u8]) -> [I::Bytes; 8] {
    let (lines, _) = bytes.as_chunks::<LINE>();
    let line = |i: usize| isa.load(&lines[i]);
    let nibble = |g: usize| bits(isa, line(g % 4), g as u32 / 4 * 4, 0, 15);
    let pair = |first: usize, g: usize, to: u32| bits(isa, line(first + g / 4), g as u32 % 4 * 2, to, 3);
    let bit = |at: usize, g: usize, to: u32| bits(isa, line(at), g as u32, to, 1);
    let codes: [I::Bytes; 8] = match spec.bits {
        Bits::Two => from_fn(|g| pair(0, g, 0)),
        Bits::Three => from_fn(|g| isa.or(pair(0, g, 0), bit(2, g, 2))),
        Bits::Four => from_fn(nibble),
        Bits::Five => from_fn(|g| isa.or(nibble(g), bit(4, g, 4))),
        Bits::Six => from_fn(|g| isa.or(nibble(g), pair(4, g, 4))),
        Bits::Eight => from_fn(line),
    };
    match spec.values {
        Values::Table(table) => {
            let entry = spec.offset().wrapping_sub(removed);
            let table = table.map(|value| (value as u8).wrapping_add(entry));
            codes.map(|codes| isa.look_up(&table, codes))
        }
        Values::Less(_) if removed > 0 => codes.map(|codes| isa.sub(codes, isa.splat(removed))),
        Values::Less(_) => codes,
    }
}

/// The bits of each byte from bit `from` on, as many as `mask` has, moved to bit `to`.
#[inline(always)]
fn bits<I: Integers>(isa: I, bytes: I::Bytes, from: u32, to: u32, mask: u8) -> I::Bytes {
    let moved = if from >= to { isa.shift_right(bytes, from - to) } else { isa.shift_left(bytes, to - from) };
    isa.and(moved, isa.splat(mask << to))
}

/// The scales and minimums of a block, whose first group is group `done` of the chunk.
#[inline(always)]
fn unpack_scales<I: Integers>(
    isa: I,
    spec: &Spec,
    scales: &[u8],
    header: &[u8],
    done: usize,
    chunk: &mut Chunk,
) {
    let lanes = isa.lanes();
    let half = |bytes: &[u8]| lanes.load_half(&halves(bytes));
    let (mut d, mut m) = ([1.0; LANES], [0.0; LANES]);
    match spec.scales {
        Scales::Affine(Half::BF16) => (d, m) = (bf16_lanes(scales), bf16_lanes(&header[SCALES..])),
        Scales::E8m0 => d = from_fn(|lane| e8m0_half(scales[lane])),
        Scales::Ue4m3 => {}
        _ => lanes.store(lanes.mul(half(scales), lanes.splat(spec.factor)), &mut d),
    }
    match spec.scales {
        Scales::F16 | Scales::E8m0 | Scales::Affine(Half::BF16) => {}
        Scales::Affine(Half::F16) => lanes.store(half(&header[SCALES..]), &mut m),
        Scales::Ue4m3 => {
            for (bytes, scales) in header.as_chunks::<LANES>().0.iter().zip(&mut chunk.scales[2 * done..]) {
                // As f16 the exponent's bias is greater by 8; a half of the scale is wanted.
                let halves = bytes.map(|byte| f16::from_bits(u16::from(byte) << 7));
                lanes.store(lanes.mul(lanes.load_half(&halves), lanes.splat(128.0)), scales);
            }
        }
        Scales::Bytes(_) => widen(header, &mut chunk.scales),
        Scales::K4 | Scales::K6 => {
            lanes.store(lanes.mul(half(&header[SCALES..]), lanes.splat(-1.0)), &mut m);
            unpack_k_scales(isa, spec, &header[2 * SCALES..], chunk);
        }
    }
    let end = GROUPS.min(done + spec.groups);
    // Superblocks have one for all.
    let end = if spec.step() == 1 { end } else { done + 1 };
    chunk.d[done..end].fill(d);
    chunk.m[done..end].fill(m);
}

/// The integer scales and minimums of a superblock of the K formats.
#[inline(always)]
fn unpack_k_scales<I: Integers>(isa: I, spec: &Spec, bytes: &[u8], chunk: &mut Chunk) {
    let (lines, _) = bytes.as_chunks::<LINE>();
    let six = spec.scales == Scales::K6;
    let mut scales = [[0; LINE]; 4];
    let mut minimums = [[0; LINE]; 4];
    for i in 0..if six { 2 } else { 4 } {
        let low = isa.load(&lines[i]);
        let (mut scale, mut minimum) = (bits(isa, low, 0, 0, 15), bits(isa, low, 4, 0, 15));
        if six {
            let high = isa.load(&lines[2]);
            scale = isa.or(scale, bits(isa, high, 4 * i as u32, 4, 3));
            minimum = isa.or(minimum, bits(isa, high, 4 * i as u32 + 2, 4, 3));
        }
        isa.store(scale, &mut scales[i]);
        isa.store(minimum, &mut minimums[i]);
    }
    let count = if six { 8 } else { 16 };
    widen(&scales.as_flattened()[..count * LANES], &mut chunk.scales);
    let (pairs, _) = minimums.as_flattened()[..count * LANES].as_chunks::<{ 2 * LANES }>();
    for (pairs, to) in pairs.iter().zip(&mut chunk.minimums) {
        *to = pairs.map(i16::from);
    }
}

/// Signed bytes as floats, sixteen after sixteen.
#[inline(always)]
fn widen(bytes: &[u8], to: &mut [[f32; LANES]]) {
    for (bytes, to) in bytes.as_chunks::<LANES>().0.iter().zip(to) {
        *to = bytes.map(|byte| f32::from(byte as i8));
    }
}

/// The 16 f16 at the start of `bytes`.
#[inline(always)]
fn halves(bytes: &[u8]) -> [f16; LANES] {
    let bytes = &bytes[..SCALES];
    from_fn(|lane| f16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]))
}
