//! Queries that share loads of keys and values.

// The loops over queries and vectors index several arrays that live in registers, and are unrolled.
#![allow(clippy::needless_range_loop)]

use super::element::KvElement;
use super::partial::State;
use super::segment::{SEGMENT, Segment};
use crate::LANES;
use crate::lanes::{Lanes, prefetch};
use crate::vector::exponential::exp;

/// Most queries in a group.
pub(super) const GROUP: usize = 8;

/// Up to eight queries at one segment.
pub(super) struct Group<'a, 'b, E> {
    pub(super) segment: &'a Segment<'b, E>,
    pub(super) positions: &'a [usize],
    pub(super) vectors: &'a [f32],
    pub(super) head_dim: usize,
    pub(super) width: usize,
    pub(super) scale: f32,
    pub(super) scores: &'a mut [[f32; SEGMENT]; GROUP],
    pub(super) sums: &'a mut [f32],
    pub(super) states: &'a mut [State],
}

impl<E: KvElement> Group<'_, '_, E> {
    /// All of them (8, 4, 2 or 1): as many vectors side by side for each as there are registers for.
    #[inline(always)]
    pub(super) fn take<L: Lanes>(&mut self, l: L) {
        match (self.positions.len(), L::ACCUMULATORS >= 16) {
            (8, _) => self.run::<L, 8, 2>(l),
            (4, true) => self.run::<L, 4, 4>(l),
            (4, false) => self.run::<L, 4, 1>(l),
            (2, true) => self.run::<L, 2, 4>(l),
            (2, false) => self.run::<L, 2, 2>(l),
            _ => self.run::<L, 1, 4>(l),
        }
    }

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
