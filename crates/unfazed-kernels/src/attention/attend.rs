//! Queries against all positions that they see.
//!
//! Positions are taken in segments of 128, counted from position 0, so the order of all additions depends on nothing
//! but a query's own position. In each segment: scores; the largest so far; exponentials, added up in sixteen partial
//! sums; what was added up before is scaled down if the largest grew (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax"); values weighted by the exponentials are added position by position. Queries share loads
//! of keys and values in groups of up to eight, and each does the same additions alone as in a group.

// The loops over queries and vectors index several arrays that live in registers, and are unrolled.
#![allow(clippy::needless_range_loop)]

use super::{KvElement, KvLayout};
use crate::lanes::{Kernel, Lanes, dispatch, prefetch};
use crate::vector::exponential::exp;
use crate::{Isa, LANES};

/// Positions in a segment: keys and values of a head of 128 dimensions and their scores stay in the first two caches.
const SEGMENT: usize = 128;
const PANELS: usize = SEGMENT / LANES;

/// Most queries in a group.
const GROUP: usize = 8;

/// Queries of heads that share keys and values, in one layer and sequence.
pub struct Queries<'a> {
    /// For each query its position: it sees positions 0 to that one. Neighbours should be near each other.
    pub positions: &'a [usize],
    /// The queries, `[positions.len(), head_dim]`.
    pub vectors: &'a [f32],
    /// Where the results go, `[positions.len(), head_dim]`.
    pub out: &'a mut [f32],
}

/// Room for the work on up to so many queries at once.
pub struct AttentionScratch {
    scores: Box<[[f32; SEGMENT]; GROUP]>,
    /// For each query the weighted sum of values, `[width]`.
    sums: Vec<f32>,
    states: Vec<State>,
}

/// The softmax of one query so far.
#[derive(Clone, Copy)]
struct State {
    largest: f32,
    total: [f32; LANES],
}

impl AttentionScratch {
    /// Room for `queries` of width `head_dim`.
    pub fn new(queries: usize, head_dim: usize) -> AttentionScratch {
        let state = State { largest: f32::NEG_INFINITY, total: [0.0; LANES] };
        AttentionScratch {
            scores: Box::new([[0.0; SEGMENT]; GROUP]),
            sums: vec![0.0; queries * head_dim.next_multiple_of(LANES)],
            states: vec![state; queries],
        }
    }

    /// Bytes of such a scratch.
    pub fn bytes(queries: usize, head_dim: usize) -> usize {
        let each = head_dim.next_multiple_of(LANES) * size_of::<f32>() + size_of::<State>();
        size_of::<[[f32; SEGMENT]; GROUP]>() + queries * each
    }
}

/// Causal attention: softmax of the scores (query times key, divided by the square root of `head_dim`), times the
/// values. `block` gives the block of the layer and head in the sequence's n-th page (`block_len` elements); it is
/// asked for pages up to that of the last position. There are at most as many queries as the scratch has room for.
pub fn attend<'b, E: KvElement>(
    isa: Isa,
    layout: &KvLayout,
    block: impl Fn(usize) -> &'b [E],
    queries: Queries<'_>,
    scratch: &mut AttentionScratch,
) {
    dispatch(isa, Attend { layout, block, queries, scratch });
}

struct Attend<'a, F> {
    layout: &'a KvLayout,
    block: F,
    queries: Queries<'a>,
    scratch: &'a mut AttentionScratch,
}

/// Keys and values of a segment and of the one behind it, which is prefetched; slices are empty beyond the last position.
struct Segment<'b, E> {
    start: usize,
    keys: [&'b [[E; LANES]]; 2 * PANELS],
    values: [&'b [[E; LANES]]; 2 * PANELS],
}

impl<'b, E: KvElement> Segment<'b, E> {
    #[inline(always)]
    fn at(layout: &KvLayout, start: usize, end: usize, block: &impl Fn(usize) -> &'b [E]) -> Segment<'b, E> {
        let mut segment = Segment { start, keys: [&[]; 2 * PANELS], values: [&[]; 2 * PANELS] };
        let per_page = layout.page_tokens() / LANES;
        let first = start / LANES;
        for panel in first..(first + 2 * PANELS).min(end.div_ceil(LANES)) {
            let (block, in_page) = (block(panel / per_page), panel % per_page);
            segment.keys[panel - first] = block[layout.keys(in_page)].as_chunks().0;
            segment.values[panel - first] = block[layout.values(in_page)].as_chunks().0;
        }
        segment
    }
}

impl<'b, E: KvElement, F: Fn(usize) -> &'b [E]> Kernel for Attend<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Queries { positions, vectors, out } = self.queries;
        let (head_dim, width) = (self.layout.head_dim(), self.layout.width());
        let sums = &mut self.scratch.sums[..positions.len() * width];
        let states = &mut self.scratch.states[..positions.len()];
        sums.fill(0.0);
        states.fill(State { largest: f32::NEG_INFINITY, total: [0.0; LANES] });
        let scale = 1.0 / (head_dim as f32).sqrt();

        let end = positions.iter().max().map_or(0, |last| last + 1);
        for start in (0..end).step_by(SEGMENT) {
            let segment = Segment::at(self.layout, start, end, &self.block);
            let mut first = 0;
            while first < positions.len() {
                let limit = (positions.len() - first).min(L::ACCUMULATORS);
                let n = [GROUP, 4, 2, 1].into_iter().find(|n| *n <= limit).unwrap_or(1);
                let mut group = Group {
                    segment: &segment,
                    positions: &positions[first..first + n],
                    vectors: &vectors[first * head_dim..(first + n) * head_dim],
                    head_dim,
                    width,
                    scale,
                    scores: &mut self.scratch.scores,
                    sums: &mut sums[first * width..(first + n) * width],
                    states: &mut states[first..first + n],
                };
                // Queries in a group times panels side by side: as many accumulators as there are registers for.
                match (n, L::ACCUMULATORS >= 16) {
                    (8, _) => group.run::<L, 8, 2>(l),
                    (4, true) => group.run::<L, 4, 4>(l),
                    (4, false) => group.run::<L, 4, 1>(l),
                    (2, true) => group.run::<L, 2, 4>(l),
                    (2, false) => group.run::<L, 2, 2>(l),
                    _ => group.run::<L, 1, 4>(l),
                }
                first += n;
            }
        }

        for ((state, sums), out) in states.iter().zip(sums.chunks(width)).zip(out.chunks_mut(head_dim)) {
            let inverse = l.splat(1.0 / l.sum(l.load(&state.total)));
            for (sum, out) in sums.as_chunks::<LANES>().0.iter().zip(out.chunks_mut(LANES)) {
                l.store_part(l.mul(l.load(sum), inverse), out);
            }
        }
    }
}

/// Up to eight queries at one segment.
struct Group<'a, 'b, E> {
    segment: &'a Segment<'b, E>,
    positions: &'a [usize],
    vectors: &'a [f32],
    head_dim: usize,
    width: usize,
    scale: f32,
    scores: &'a mut [[f32; SEGMENT]; GROUP],
    sums: &'a mut [f32],
    states: &'a mut [State],
}

impl<E: KvElement> Group<'_, '_, E> {
    /// `N` queries, `P` vectors side by side for each.
    #[inline(always)]
    fn run<L: Lanes, const N: usize, const P: usize>(&mut self, l: L) {
        // How many positions of the segment each query sees.
        let mut visible = [0; N];
        for (visible, position) in visible.iter_mut().zip(self.positions) {
            *visible = (position + 1).saturating_sub(self.segment.start).min(SEGMENT);
        }
        let panels = visible.into_iter().fold(0, usize::max).div_ceil(LANES);
        let mut panel = 0;
        while panel + P <= panels {
            self.score::<L, N, P>(l, panel);
            panel += P;
        }
        while panel < panels {
            self.score::<L, N, 1>(l, panel);
            panel += 1;
        }

        let mut corrections = [l.splat(1.0); N];
        for i in 0..N {
            if visible[i] > 0 {
                corrections[i] = self.exponentials(l, i, visible[i]);
            }
        }

        let vectors = self.width / LANES;
        let mut vector = 0;
        while vector + P <= vectors {
            self.add_values::<L, N, P>(l, vector, &visible, &corrections);
            vector += P;
        }
        while vector < vectors {
            self.add_values::<L, N, 1>(l, vector, &visible, &corrections);
            vector += 1;
        }
    }

    /// Scores of `N` queries at `P` panels.
    #[inline(always)]
    fn score<L: Lanes, const N: usize, const P: usize>(&mut self, l: L, panel: usize) {
        let dim = self.head_dim;
        let empty: &[[E; LANES]] = &[];
        let (mut keys, mut ahead, mut queries) = ([empty; P], [empty; P], [&[0.0f32; 0][..]; N]);
        for j in 0..P {
            keys[j] = &self.segment.keys[panel + j][..dim];
            ahead[j] = self.segment.keys[panel + P + j];
        }
        for i in 0..N {
            queries[i] = &self.vectors[i * dim..(i + 1) * dim];
        }
        let mut scores = [[l.splat(0.0); P]; N];
        for d in 0..dim {
            let mut key = [l.splat(0.0); P];
            for j in 0..P {
                if N <= 2 {
                    prefetch(ahead[j].as_ptr().wrapping_add(d));
                }
                key[j] = E::load(l, &keys[j][d]);
            }
            for i in 0..N {
                let query = l.splat(queries[i][d]);
                for j in 0..P {
                    scores[i][j] = l.fma(query, key[j], scores[i][j]);
                }
            }
        }
        let scale = l.splat(self.scale);
        for i in 0..N {
            let (out, _) = self.scores[i].as_chunks_mut::<LANES>();
            for j in 0..P {
                l.store(l.mul(scores[i][j], scale), &mut out[panel + j]);
            }
        }
    }

    /// Replaces the scores of query `i` by exponentials; returns what everything before is to be multiplied by.
    #[inline(always)]
    fn exponentials<L: Lanes>(&mut self, l: L, i: usize, visible: usize) -> L::V {
        let (scores, state) = (&mut self.scores[i], &mut self.states[i]);
        let scores = &mut scores[..visible.next_multiple_of(LANES)];
        scores[visible..].fill(f32::NEG_INFINITY);
        let (scores, _) = scores.as_chunks_mut::<LANES>();
        let mut largest = l.splat(state.largest);
        for x in scores.iter() {
            largest = l.max(largest, l.load(x));
        }
        let largest = l.largest(largest);
        let correction = exp(l, l.splat(state.largest - largest));
        let mut total = l.mul(l.load(&state.total), correction);
        for x in scores {
            let e = exp(l, l.sub(l.load(x), l.splat(largest)));
            total = l.add(total, e);
            l.store(e, x);
        }
        l.store(total, &mut state.total);
        state.largest = largest;
        correction
    }

    /// Adds the values of the segment to `P` vectors of each of `N` sums. A query adds what it sees and nothing else:
    /// zero times a value that is not finite would spoil it.
    #[inline(always)]
    fn add_values<L: Lanes, const N: usize, const P: usize>(
        &mut self,
        l: L,
        vector: usize,
        visible: &[usize; N],
        corrections: &[L::V; N],
    ) {
        let width = self.width / LANES;
        let common = visible.iter().copied().fold(SEGMENT, usize::min);
        let most = visible.iter().copied().fold(0, usize::max);
        let mut sums = [[l.splat(0.0); P]; N];
        for i in 0..N {
            let (old, _) = self.sums[i * self.width..(i + 1) * self.width].as_chunks::<LANES>();
            for j in 0..P {
                sums[i][j] = l.mul(l.load(&old[vector + j]), corrections[i]);
            }
        }
        for panel in 0..most.div_ceil(LANES) {
            let values = self.segment.values[panel];
            let ahead = self.segment.values[panel + 1].as_ptr();
            let start = panel * LANES;
            for position in start..most.min(start + LANES) {
                let at = (position - start) * width + vector;
                let stored = &values[at..at + P];
                let mut value = [l.splat(0.0); P];
                for j in 0..P {
                    if N <= 2 {
                        prefetch(ahead.wrapping_add(at + j));
                    }
                    value[j] = E::load(l, &stored[j]);
                }
                let all = position < common;
                for i in 0..N {
                    if all || position < visible[i] {
                        let weight = l.splat(self.scores[i][position]);
                        for j in 0..P {
                            sums[i][j] = l.fma(weight, value[j], sums[i][j]);
                        }
                    }
                }
            }
        }
        for i in 0..N {
            let (out, _) = self.sums[i * self.width..(i + 1) * self.width].as_chunks_mut::<LANES>();
            for j in 0..P {
                l.store(sums[i][j], &mut out[vector + j]);
            }
        }
    }
}
