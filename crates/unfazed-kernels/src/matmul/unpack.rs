//! From a panel to what kernels multiply: what all formats have in common.

#![allow(clippy::needless_range_loop)] // Groups, vectors and lanes are indexed alike.

use half::f16;
use unfazed_formats::block::affine::{Bits, Half};
use unfazed_formats::block::small_floats::e8m0_half;

use crate::LANES;
use crate::lanes::Lanes;
use crate::panel::{Geometry, LINE, SCALES, Scales, Spec, Values, bf16_lanes};

use super::integers::{IntegerKernel, Integers};

/// Groups of 32 columns in a chunk.
pub(super) const GROUPS: usize = 8;

/// The scales of up to 256 columns of a panel, taken apart. A lane is a row.
#[repr(align(64))]
pub(super) struct Chunk {
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
            scales: [[1.0; LANES]; 2 * GROUPS],
            minimums: [[0; 2 * LANES]; GROUPS],
            d: [[1.0; LANES]; GROUPS],
            m: [[0.0; LANES]; GROUPS],
        }
    }
}

/// How codes are taken from a format's panels.
pub(super) struct Decoder<'a> {
    geometry: &'a Geometry,
    bits: Bits,
    /// What the stored codes stand for, if not for themselves.
    table: Option<[u8; 16]>,
    /// What is taken from the stored codes.
    removed: u8,
}

impl<'a> Decoder<'a> {
    /// For a format, and kernels that want `removed` taken from its codes.
    #[inline(always)]
    pub(super) fn new(spec: &Spec, geometry: &'a Geometry, removed: u8) -> Decoder<'a> {
        let mut decoder = Decoder { geometry, bits: spec.bits, table: None, removed };
        if let Values::Table(table) = spec.values {
            let mut entries = [0; 16];
            for i in 0..16 {
                entries[i] = (table[i] as u8).wrapping_add(spec.offset().wrapping_sub(removed));
            }
            decoder.table = Some(entries);
        }
        decoder
    }

    /// The codes of group `group` of a panel.
    #[inline(always)]
    pub(super) fn codes<I: Integers>(&self, isa: I, panel: &[u8], group: usize) -> [I::Bytes; 8] {
        let (lines, _) = panel[self.geometry.group_at(group)..].as_chunks::<LINE>();
        let mut codes = match self.bits {
            Bits::Two => planes::<I, 2>(isa, some(lines, 0)),
            Bits::Three => planes::<I, 3>(isa, some(lines, 0)),
            Bits::Four => planes::<I, 4>(isa, some(lines, 0)),
            Bits::Five => planes::<I, 5>(isa, some(lines, 0)),
            Bits::Six => planes::<I, 6>(isa, some(lines, 0)),
            Bits::Eight => planes::<I, 8>(isa, some(lines, 0)),
        };
        if let Some(table) = &self.table {
            for g in 0..8 {
                codes[g] = isa.look_up(table, codes[g]);
            }
        } else if self.removed > 0 {
            let removed = isa.splat(self.removed);
            for g in 0..8 {
                codes[g] = isa.sub(codes[g], removed);
            }
        }
        codes
    }
}

/// Takes the scales of some groups of a panel apart, from group `first` on, which begins a block. A chunk serves one format.
pub(super) struct Unpack<'a> {
    pub(super) spec: &'a Spec,
    pub(super) geometry: &'a Geometry,
    pub(super) panel: &'a [u8],
    pub(super) first: usize,
    pub(super) groups: usize,
    pub(super) chunk: &'a mut Chunk,
}

impl IntegerKernel for Unpack<'_> {
    type Output = ();

    // Loops instead of closures in what follows: a closure is a function without the instruction set.
    #[inline(always)]
    fn run<I: Integers>(self, isa: I) {
        let lanes = isa.lanes();
        let Unpack { spec, geometry, panel, first, groups, chunk } = self;
        for done in (0..groups).step_by(spec.groups) {
            let block = geometry.block_of(first + done);
            let scales = &panel[geometry.scales_at(block)..];
            let header = &panel[geometry.block_at(block)..][..geometry.header];
            let (d, m) = (&mut chunk.d[done], &mut chunk.m[done]);
            match spec.scales {
                Scales::Affine(Half::BF16) => (*d, *m) = (bf16_lanes(scales), bf16_lanes(&header[SCALES..])),
                Scales::E8m0 => {
                    for lane in 0..LANES {
                        d[lane] = e8m0_half(scales[lane]);
                    }
                }
                Scales::Ue4m3 => {}
                _ => lanes.store(lanes.mul(lanes.load_half(&halves(scales)), lanes.splat(spec.factor)), d),
            }
            match spec.scales {
                Scales::F16 | Scales::E8m0 | Scales::Affine(Half::BF16) => {}
                Scales::Affine(Half::F16) => lanes.store(lanes.load_half(&halves(&header[SCALES..])), m),
                Scales::Ue4m3 => unpack_ue4m3(isa, header, &mut chunk.scales[2 * done..]),
                Scales::Bytes(_) => widen(isa, header, &mut chunk.scales),
                Scales::K4 | Scales::K6 => {
                    let dmin = lanes.load_half(&halves(&header[SCALES..]));
                    lanes.store(lanes.mul(dmin, lanes.splat(-1.0)), m);
                    unpack_k_scales(isa, spec, &header[2 * SCALES..], chunk);
                }
            }
            if spec.step() == 1 {
                // The other groups of the block have the same.
                for other in done + 1..groups.min(done + spec.groups) {
                    (chunk.d[other], chunk.m[other]) = (chunk.d[done], chunk.m[done]);
                }
            }
        }
    }
}

/// The codes of 32 columns from the planes of their bits.
#[inline(always)]
fn planes<I: Integers, const BITS: usize>(isa: I, lines: &[[u8; LINE]; BITS]) -> [I::Bytes; 8] {
    let mut codes = [isa.splat(0); 8];
    match BITS {
        2 | 3 => add_pairs(isa, lines, 0, &mut codes),
        4..=6 => add_nibbles(isa, lines, &mut codes),
        _ => {
            for g in 0..8 {
                codes[g] = isa.load(&lines[g]);
            }
        }
    }
    match BITS {
        3 => add_bits(isa, &lines[2], 2, &mut codes),
        5 => add_bits(isa, &lines[4], 4, &mut codes),
        6 => add_pairs(isa, &lines[4..], 4, &mut codes),
        _ => {}
    }
    codes
}

/// Adds the low 4 bits of codes.
#[inline(always)]
fn add_nibbles<I: Integers>(isa: I, lines: &[[u8; LINE]], codes: &mut [I::Bytes; 8]) {
    for i in 0..4 {
        let line = isa.load(&lines[i]);
        codes[i] = isa.or(codes[i], bits(isa, line, 0, 0, 15));
        codes[i + 4] = isa.or(codes[i + 4], bits(isa, line, 4, 0, 15));
    }
}

/// Adds 2 bits from bit `to` on.
#[inline(always)]
fn add_pairs<I: Integers>(isa: I, lines: &[[u8; LINE]], to: u32, codes: &mut [I::Bytes; 8]) {
    for i in 0..2 {
        let line = isa.load(&lines[i]);
        for s in 0..4 {
            let pair = bits(isa, line, 2 * s as u32, to, 3);
            codes[4 * i + s] = isa.or(codes[4 * i + s], pair);
        }
    }
}

/// Adds bit `to`.
#[inline(always)]
fn add_bits<I: Integers>(isa: I, line: &[u8; LINE], to: u32, codes: &mut [I::Bytes; 8]) {
    let line = isa.load(line);
    for g in 0..8 {
        codes[g] = isa.or(codes[g], bits(isa, line, g as u32, to, 1));
    }
}

/// The bits of each byte from bit `from` on, as many as `mask` has, moved to bit `to`.
#[inline(always)]
fn bits<I: Integers>(isa: I, bytes: I::Bytes, from: u32, to: u32, mask: u8) -> I::Bytes {
    let moved = if from >= to { isa.shift_right(bytes, from - to) } else { isa.shift_left(bytes, to - from) };
    isa.and(moved, isa.splat(mask << to))
}

/// Half of each UE4M3 scale.
#[inline(always)]
fn unpack_ue4m3<I: Integers>(isa: I, header: &[u8], to: &mut [[f32; LANES]]) {
    let lanes = isa.lanes();
    for (bytes, to) in header.as_chunks::<LANES>().0.iter().zip(to) {
        let mut halves = [f16::ZERO; LANES];
        for lane in 0..LANES {
            halves[lane] = f16::from_bits(u16::from(bytes[lane]) << 7);
        }
        // As f16 the exponent's bias is greater by 8.
        lanes.store(lanes.mul(lanes.load_half(&halves), lanes.splat(128.0)), to);
    }
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
    widen(isa, &scales.as_flattened()[..count * LANES], &mut chunk.scales);
    let (pairs, _) = minimums.as_flattened()[..count * LANES].as_chunks::<{ 2 * LANES }>();
    for (pairs, to) in pairs.iter().zip(&mut chunk.minimums) {
        for i in 0..2 * LANES {
            to[i] = i16::from(pairs[i]);
        }
    }
}

/// Signed bytes as floats, sixteen after sixteen.
#[inline(always)]
fn widen<I: Integers>(isa: I, bytes: &[u8], to: &mut [[f32; LANES]]) {
    let lanes = isa.lanes();
    for (bytes, to) in bytes.as_chunks::<LANES>().0.iter().zip(to) {
        lanes.store(lanes.load_bytes(bytes), to);
    }
}

/// The 16 f16 at the start of `bytes`.
#[inline(always)]
fn halves(bytes: &[u8]) -> [f16; LANES] {
    let bytes: &[u8; SCALES] = some(bytes, 0);
    let mut halves = [f16::ZERO; LANES];
    for lane in 0..LANES {
        halves[lane] = f16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]);
    }
    halves
}

/// Elements `t..t + N`, by reference: values loaded early would be broadcast from registers, on a port that the dot
/// products need.
#[inline(always)]
pub(super) fn some<T, const N: usize>(all: &[T], t: usize) -> &[T; N] {
    match all[t..].first_chunk() {
        Some(some) => some,
        None => unreachable!("{N} of {} from {t} on", all.len()),
    }
}
