//! The softmax of a query over the positions of a span, to be joined with those of others.

use crate::lanes::{Kernel, Lanes, dispatch};
use crate::vector::exponential::exp;
use crate::{Isa, LANES};

/// The largest score so far, and the exponentials of all others less it, in sixteen partial sums.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub(super) largest: f32,
    pub(super) total: [f32; LANES],
}

impl State {
    /// Of no position.
    pub(super) const EMPTY: State = State { largest: f32::NEG_INFINITY, total: [0.0; LANES] };

    /// Joins with the positions that follow, whose weighted values are `other_sums`: what is relative to a smaller largest
    /// score is scaled down to the larger one.
    #[inline(always)]
    pub(super) fn join<L: Lanes>(&mut self, l: L, sums: &mut [f32], other: &State, other_sums: &[f32]) {
        let largest = if other.largest > self.largest { other.largest } else { self.largest };
        let scale = |x: f32| exp(l, l.sub(l.splat(x), l.splat(largest)));
        let (ours, theirs) = (scale(self.largest), scale(other.largest));
        let add = |a: &mut [f32; LANES], b: &[f32; LANES]| {
            let sum = l.fma(l.load(b), theirs, l.mul(l.load(a), ours));
            l.store(sum, a);
        };
        add(&mut self.total, &other.total);
        for (a, b) in sums.as_chunks_mut().0.iter_mut().zip(other_sums.as_chunks().0) {
            add(a, b);
        }
        self.largest = largest;
    }

    /// The weighted mean of the values.
    #[inline(always)]
    pub(super) fn finish<L: Lanes>(&self, l: L, sums: &[f32], out: &mut [f32]) {
        let inverse = l.splat(1.0 / l.sum(l.load(&self.total)));
        for (sum, out) in sums.as_chunks::<LANES>().0.iter().zip(out.chunks_mut(LANES)) {
            l.store_part(l.mul(l.load(sum), inverse), out);
        }
    }

    /// As numbers behind the weighted values.
    pub(super) fn write(&self, out: &mut [f32]) {
        out[..LANES].copy_from_slice(&self.total);
        out[LANES] = self.largest;
    }

    fn read(from: &[f32]) -> State {
        let mut state = State { largest: from[LANES], ..State::EMPTY };
        state.total.copy_from_slice(&from[..LANES]);
        state
    }
}

/// Numbers that stand for the softmax of one query over a span, for heads of this width.
pub const fn partial_len(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) + 2 * LANES
}

/// Joins a query's spans as [`attend_span`](super::attend_span) left them, in order, at least one: `partial_len(head_dim)`
/// numbers each, which begin `stride` apart. What becomes of them is unspecified. The result goes to `out`, `[head_dim]`.
pub fn join_spans(isa: Isa, spans: &mut [f32], stride: usize, out: &mut [f32]) {
    dispatch(isa, Join { spans, stride, out });
}

struct Join<'a> {
    spans: &'a mut [f32],
    stride: usize,
    out: &'a mut [f32],
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let width = self.out.len().next_multiple_of(LANES);
        let mut spans = self.spans.chunks_mut(self.stride);
        let Some((sums, state)) = spans.next().map(|first| first.split_at_mut(width)) else { return };
        let mut state = State::read(state);
        for other in spans {
            let (other_sums, other) = other.split_at(width);
            state.join(l, sums, &State::read(other), other_sums);
        }
        state.finish(l, sums, self.out);
    }
}
