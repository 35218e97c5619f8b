//! Panels times a tile of int8 activations: one routine for all formats and instruction sets.
//!
//! 32 columns of some panels at a time are taken apart, once for all rows of the tile, then the rows pass by. Of few rows
//! each is a stream of weights, and what was taken apart stays in registers as far as these go. Of many rows a block of sums
//! fills the registers, since a dot product takes four or five cycles and two are begun in each: then the codes come from
//! the first-level cache, where the accumulators are always.

#![allow(clippy::needless_range_loop)] // Several arrays are indexed alike by panel, row and sum; the loops unroll.

use std::array::from_fn;
use std::hint::black_box;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::activations::{TILE_ROWS, Tile};
use crate::lanes::Lanes;
use crate::panel::{Geometry, LINE, PackedMatrix, Spec};

use super::fetch::{FEW, Fetch};
use super::integers::{IntegerKernel, Integers, Stored, Vectors};
use super::output::Output;
use super::reference;
use super::shape::{Dot, Shape, for_own, for_shape, removed};
use super::unpack::{Chunk, Decoder, GROUPS, Unpack, some};

/// Sixteen floats.
type Floats<I> = <<I as Integers>::Lanes as Lanes>::V;

/// Some panels times a tile.
pub(super) struct Multiply<'a, 'out> {
    pub(super) spec: &'a Spec,
    pub(super) w: &'a PackedMatrix<'a>,
    pub(super) panels: Range<usize>,
    pub(super) tile: &'a Tile,
    pub(super) output: &'a mut Output<'out>,
}

impl IntegerKernel for Multiply<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Integers>(self, isa: I) {
        if const { I::OWN } {
            let format = self.w.layout().format();
            for_own!(format, S => isa.enter(Shaped(self, PhantomData::<S>)), self.run_shaped(isa));
        } else {
            self.run_shaped(isa);
        }
    }
}

impl Multiply<'_, '_> {
    /// By the kernel of the format's shape.
    #[inline(always)]
    fn run_shaped<I: Integers>(self, isa: I) {
        // A function for each shape.
        for_shape!(
            const { matches!(I::DOT, Dot::Pairs) }, self.spec,
            S => isa.enter(Shaped(self, PhantomData::<S>)),
            reference::multiply(self.w, self.panels, self.tile, self.output)
        );
    }
}

/// The same, for a shape.
struct Shaped<'a, 'out, S>(Multiply<'a, 'out>, PhantomData<S>);

impl<S: Shape> IntegerKernel for Shaped<'_, '_, S> {
    type Output = ();

    #[inline(always)]
    fn run<I: Integers>(mut self, isa: I) {
        let Range { mut start, end } = self.0.panels;
        if const { I::BLOCK } && self.0.tile.rows() > FEW {
            let fours = start + (end - start) / 4 * 4;
            self.multiply::<I, 4>(isa, start..fours);
            start = fours;
        }
        if const { I::PANELS == 2 } {
            let pairs = start + (end - start) / 2 * 2;
            self.multiply::<I, 2>(isa, start..pairs);
            start = pairs;
        }
        self.multiply::<I, 1>(isa, start..end);
    }
}

/// The places, with a value in each.
#[inline(always)]
fn filled<T: Copy>(places: &mut [MaybeUninit<T>], value: T) -> &mut [T] {
    for place in places.iter_mut() {
        place.write(value);
    }
    // SAFETY: each of them was written.
    unsafe { places.assume_init_mut() }
}

/// What is known of the format of a kernel of its own.
const fn own<S: Shape>() -> Option<(Spec, Geometry)> {
    match S::FORMAT {
        Some(format) => match Spec::of(format) {
            Some(spec) => Some((spec, Geometry::of(format))),
            None => None,
        },
        None => None,
    }
}

impl<S: Shape> Shaped<'_, '_, S> {
    /// R panels after R panels.
    #[inline(always)]
    fn multiply<I: Integers, const R: usize>(&mut self, isa: I, panels: Range<usize>) {
        if panels.is_empty() {
            return;
        }
        let zero = [isa.lanes().splat(0.0); R];
        // To fill the arrays whole would take a tenth of the time of a small matrix and a single row.
        let mut places = [const { [MaybeUninit::uninit(); TILE_ROWS] }; 2];
        let rows = self.0.tile.rows();
        let [accumulators, partials] = places.each_mut().map(|places| filled(&mut places[..rows], zero));
        let mut chunks: [Chunk; R] = from_fn(|_| Chunk::new());
        for panel in panels.step_by(R) {
            accumulators.fill(zero);
            self.add_panels(isa, panel, &mut chunks, accumulators, partials);
            for (t, accumulators) in accumulators.iter().enumerate() {
                for (r, accumulator) in accumulators.iter().enumerate() {
                    self.0.output.store(t, panel + r, &isa.lanes().array(*accumulator));
                }
            }
        }
    }

    #[inline(always)]
    fn add_panels<I: Integers, const R: usize>(
        &self,
        isa: I,
        panel: usize,
        chunks: &mut [Chunk; R],
        accumulators: &mut [[Floats<I>; R]],
        partials: &mut [[Floats<I>; R]],
    ) {
        let Multiply { w, tile, .. } = self.0;
        let (spec, geometry) = match const { &own::<S>() } {
            Some((spec, geometry)) => (spec, geometry),
            None => (self.0.spec, &Geometry::of(w.layout().format())),
        };
        let decoder = &Decoder::new(spec, geometry, removed(S::operand(I::DOT), spec));
        let panels: [&[u8]; R] = w.panels(panel);
        let all = tile.columns() / 32;
        let fetch = &Fetch::new(geometry, panels[0].len(), R, tile.rows());
        // What few rows use is not worth a way through memory.
        let direct = R < 4 && (I::BLOCK || tile.rows() <= FEW);
        let mut stored = Stored([[[0; LINE]; 8]; R]);
        for first in (0..all).step_by(GROUPS) {
            let groups = GROUPS.min(all - first);
            for (panel, chunk) in panels.iter().zip(chunks.iter_mut()) {
                let unpack = Unpack { spec, geometry, panel, first, groups, chunk };
                // Where the format is known little is left of it.
                if S::FORMAT.is_some() { unpack.run(isa) } else { isa.enter(unpack) }
            }
            if S::STEP > 1 {
                partials.fill([isa.lanes().splat(0.0); R]);
            }
            for j in 0..groups {
                let group = Group::<I, S, R>::new(isa, chunks, j, tile, first + j);
                let sums = if S::STEP > 1 { &mut *partials } else { &mut *accumulators };
                if direct {
                    let mut codes = [[isa.splat(0); 8]; R];
                    for r in 0..R {
                        fetch.fetch(panels[r], first + j);
                        codes[r] = decoder.codes(isa, panels[r], first + j);
                    }
                    group.add::<4>(&codes, sums);
                } else {
                    for r in 0..R {
                        let codes = decoder.codes(isa, panels[r], first + j);
                        for g in 0..8 {
                            isa.store(codes[g], &mut stored.0[r][g]);
                        }
                    }
                    // Not before: what is fetched would be in the way of what is read.
                    for r in 0..R {
                        fetch.fetch(panels[r], first + j);
                    }
                    // Else the compiler keeps some of them in registers, and sums in memory.
                    let stored = black_box(&stored);
                    match (R, S::SUB) {
                        (4, 32) => group.add::<6>(stored, sums),
                        (4, _) => group.add::<3>(stored, sums),
                        _ => group.add::<4>(stored, sums),
                    }
                }
            }
            if S::STEP > 1 {
                add_superblock::<I, S, R>(isa, chunks, tile, first / GROUPS, partials, accumulators);
            }
        }
    }
}

/// 32 columns of R panels, and what the tile has for them.
struct Group<'a, I: Integers, S, const R: usize> {
    isa: I,
    /// By sub-block.
    scales: [[Floats<I>; R]; 2],
    d: [Floats<I>; R],
    m: [Floats<I>; R],
    quants: &'a [[i8; 32]],
    starts: &'a [i32],
    sums: &'a [f32],
    row_scales: &'a [f32],
    rows: usize,
    shape: PhantomData<S>,
}

impl<'a, I: Integers, S: Shape, const R: usize> Group<'a, I, S, R> {
    /// Sums that are kept for each 32 columns.
    const SUBS: usize = 32 / S::SUB;

    /// Group `j` of the chunks, which is group `group` of the tile.
    #[inline(always)]
    fn new(isa: I, chunks: &'a [Chunk; R], j: usize, tile: &'a Tile, group: usize) -> Self {
        let lanes = isa.lanes();
        let own = S::STEP == 1;
        let block = if own { j } else { 0 };
        let zero = [lanes.splat(0.0); R];
        let (mut scales, mut d, mut m) = ([zero; 2], zero, zero);
        for r in 0..R {
            let chunk = &chunks[r];
            for s in 0..Self::SUBS {
                scales[s][r] = lanes.load(&chunk.scales[j * Self::SUBS + s]);
            }
            d[r] = lanes.load(&chunk.d[block]);
            m[r] = lanes.load(&chunk.m[block]);
        }
        Group {
            isa,
            scales,
            d,
            m,
            quants: tile.quants(group),
            starts: if S::starts(I::DOT) { tile.starts(group, S::SUB) } else { &[] },
            sums: if own && S::MINIMUMS { tile.sums(group) } else { &[] },
            row_scales: if own { tile.scales(group) } else { &[] },
            rows: tile.rows(),
            shape: PhantomData,
        }
    }

    /// Adds the products with all rows, U at a time, to their sums: partial sums of a superblock, else accumulators.
    #[inline(always)]
    fn add<const U: usize>(&self, codes: impl Vectors<I, R>, sums: &mut [[Floats<I>; R]]) {
        let mut rest = self.add_some::<U>(codes, 0, sums);
        if U > 4 {
            rest = self.add_some::<4>(codes, self.rows - rest.len(), rest);
        }
        rest = self.add_some::<2>(codes, self.rows - rest.len(), rest);
        self.add_some::<1>(codes, self.rows - rest.len(), rest);
    }

    /// The same for rows from `t` on; returns the sums of the rows that are left.
    #[inline(always)]
    fn add_some<'s, const U: usize>(
        &self,
        codes: impl Vectors<I, R>,
        t: usize,
        sums: &'s mut [[Floats<I>; R]],
    ) -> &'s mut [[Floats<I>; R]] {
        let (some, rest) = sums.as_chunks_mut::<U>();
        for (i, sums) in some.iter_mut().enumerate() {
            if S::STEP > 1 {
                self.add_sub_blocks(codes, t + i * U, sums);
            } else {
                self.add_block(codes, t + i * U, sums);
            }
        }
        rest
    }

    /// Adds the products of 32 columns of a superblock with rows `t..t + U` to partial sums.
    #[inline(always)]
    fn add_sub_blocks<const U: usize>(
        &self,
        codes: impl Vectors<I, R>,
        t: usize,
        sums: &mut [[Floats<I>; R]; U],
    ) {
        let lanes = self.isa.lanes();
        let mut p = *sums;
        for s in 0..Self::SUBS {
            let dots = self.dots::<U>(codes, s, t);
            if Self::SUBS == 1 {
                // Read no earlier: there are registers for the integer sums alone.
                p = *black_box(&mut *sums);
            }
            for u in 0..U {
                for r in 0..R {
                    p[u][r] = lanes.fma(self.isa.floats(dots[u][r]), self.scales[s][r], p[u][r]);
                }
            }
        }
        *sums = p;
    }

    /// Adds the products of a block with rows `t..t + U` to accumulators.
    #[inline(always)]
    fn add_block<const U: usize>(
        &self,
        codes: impl Vectors<I, R>,
        t: usize,
        accumulators: &mut [[Floats<I>; R]; U],
    ) {
        let lanes = self.isa.lanes();
        // All that may be out of bounds comes first: a branch between the dot products costs registers.
        let row_scales: &[f32; U] = some(self.row_scales, t);
        let quant_sums: &[f32; U] = if S::MINIMUMS { some(self.sums, t) } else { &[0.0; U] };
        let mut p = [[lanes.splat(0.0); R]; U];
        for s in 0..Self::SUBS {
            let dots = self.dots::<U>(codes, s, t);
            for u in 0..U {
                for r in 0..R {
                    let dot = self.isa.floats(dots[u][r]);
                    p[u][r] = if S::SUB == 16 { lanes.fma(dot, self.scales[s][r], p[u][r]) } else { dot };
                }
            }
        }
        for u in 0..U {
            for r in 0..R {
                let mut p = lanes.mul(self.d[r], p[u][r]);
                if S::MINIMUMS {
                    p = lanes.fma(self.m[r], lanes.splat(quant_sums[u]), p);
                }
                accumulators[u][r] = lanes.fma(p, lanes.splat(row_scales[u]), accumulators[u][r]);
            }
        }
    }

    /// The integer products of sub-block `s` with rows `t..t + U`.
    #[inline(always)]
    fn dots<const U: usize>(&self, codes: impl Vectors<I, R>, s: usize, t: usize) -> [[I::Ints; R]; U] {
        let quants: &[[i8; 32]; U] = some(self.quants, t);
        let starts =
            if S::starts(I::DOT) { &self.starts[t * Self::SUBS..][..U * Self::SUBS][s..] } else { &[] };
        if S::SUB == 16 {
            self.isa.dots::<S, R, U, 4>(codes, quants, 4 * s, starts)
        } else {
            self.isa.dots::<S, R, U, 8>(codes, quants, 0, starts)
        }
    }
}

/// Ends superblock `b`: scales the partial sums of all rows, with the minimums, and adds them to the accumulators.
#[inline(always)]
fn add_superblock<I: Integers, S: Shape, const R: usize>(
    isa: I,
    chunks: &[Chunk; R],
    tile: &Tile,
    b: usize,
    partials: &[[Floats<I>; R]],
    accumulators: &mut [[Floats<I>; R]],
) {
    let lanes = isa.lanes();
    let rows = accumulators.len();
    let (row_scales, partials) = (&tile.scales(b)[..rows], &partials[..rows]);
    let fours = if S::MINIMUMS && S::SUB == 32 { &tile.pairs::<4>(b)[..rows] } else { &[] };
    let eights = if S::MINIMUMS && S::SUB == 16 { &tile.pairs::<8>(b)[..rows] } else { &[] };
    let (mut d, mut m) = ([lanes.splat(0.0); R], [lanes.splat(0.0); R]);
    for r in 0..R {
        (d[r], m[r]) = (lanes.load(&chunks[r].d[0]), lanes.load(&chunks[r].m[0]));
    }
    for t in 0..rows {
        let row_scale = lanes.splat(row_scales[t]);
        for r in 0..R {
            let mut p = lanes.mul(d[r], partials[t][r]);
            if S::MINIMUMS {
                let minimums = &chunks[r].minimums;
                let sum = if S::SUB == 16 {
                    isa.pair_dots(minimums, &eights[t])
                } else {
                    isa.pair_dots::<4>(some(minimums, 0), &fours[t])
                };
                p = lanes.fma(m[r], isa.floats(sum), p);
            }
            accumulators[t][r] = lanes.fma(p, row_scale, accumulators[t][r]);
        }
    }
}

#[cfg(test)]
mod tests {
    use unfazed_formats::BlockFormat;

    use super::*;
    use crate::Isa;
    use crate::activations::{Grain, QuantisedRows};
    use crate::matmul::integers::portable::{KINDS, Portable};
    use crate::panel::{PanelBuffer, PanelLayout};

    const ROWS: usize = 40;

    /// The product by the definition, or by the kernels with a kind of dot product.
    fn product(w: &PackedMatrix<'_>, rows: &QuantisedRows, count: usize, kind: Option<usize>) -> Vec<u32> {
        let layout = w.layout();
        let (format, panels) = (layout.format(), 0..layout.panels());
        let mut tile = Tile::new();
        let indices: Vec<usize> = (0..count).collect();
        tile.gather_for(KINDS[kind.unwrap_or(0)], Isa::Reference, format, rows, &indices);
        let mut out = vec![0.0; count * ROWS];
        let mut output = Output::new(layout, &panels, count, &mut out, ROWS);
        let Some(spec) = &Spec::of(format) else { unreachable!("{format:?}") };
        let task = Multiply { spec, w, panels: panels.clone(), tile: &tile, output: &mut output };
        match kind {
            None => reference::multiply(w, panels, &tile, task.output),
            Some(0) => Portable::<0, 2>.enter(task),
            Some(1) => Portable::<1, 1>.enter(task),
            _ => Portable::<2, 1>.enter(task),
        }
        out.into_iter().map(|y: f32| if y.is_nan() { u32::MAX } else { y.to_bits() }).collect()
    }

    #[test]
    fn every_kind_of_dot_product_gives_the_bits_of_the_definition() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let columns = 512;
        for format in BlockFormat::all() {
            if Spec::of(format).is_none() {
                continue;
            }
            for extreme in [None, Some(0x00), Some(0x7e), Some(0xff)] {
                let layout = PanelLayout::new(format, ROWS, columns).expect("whole blocks");
                let mut bytes = PanelBuffer::new(layout.bytes());
                // Packing leaves no sign in UE4M3.
                let mask = if format == BlockFormat::NVFP4 { 0x7f } else { 0xff };
                bytes.iter_mut().for_each(|byte| *byte = extreme.unwrap_or_else(&mut random) & mask);
                let w = PackedMatrix::new(layout, &bytes).expect("of the layout's size");
                let mut rows = QuantisedRows::new();
                rows.resize(Grain::of(format), 7, columns);
                for row in 0..7 {
                    let x: Vec<f32> = (0..columns)
                        .map(|i| match row {
                            0 => 1.0,
                            1 => [1.0, -1.0][i % 2],
                            2 => [1.0, 1.0, -1.0, -1.0][i % 4],
                            _ => f32::from(random() as i8),
                        })
                        .collect();
                    rows.quantise(Isa::Reference, row, &x);
                }
                let want = product(&w, &rows, 7, None);
                for kind in 0..KINDS.len() {
                    assert_eq!(product(&w, &rows, 7, Some(kind)), want, "{format:?} {:?}", KINDS[kind]);
                }
            }
        }
    }
}
