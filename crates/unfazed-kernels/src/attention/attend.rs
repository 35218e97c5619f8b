//! Queries against all positions that they see.
//!
//! Positions are taken in segments of 128 and spans of 512, counted from position 0, so the order of all additions depends
//! on nothing but a query's own position. In each segment: scores; the largest so far; exponentials, added up in sixteen
//! partial sums; what was added up before is scaled down if the largest grew (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax"); values weighted by the exponentials are added position by position. Each span begins anew and
//! is joined with those before it in order, so that threads can share a long context without a change of bits. Queries
//! share loads of keys and values in groups of up to eight, and each does the same additions alone as in a group.

use super::KvLayout;
use super::element::KvElement;
use super::group::{GROUP, Group};
use super::partial::{State, partial_len};
use super::segment::{InPages, SEGMENT, Segment, Segments, Unpacked};
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::{Isa, LANES};

/// Positions in a span.
pub const SPAN: usize = 4 * SEGMENT;

/// Queries of heads that share keys and values, in one layer and sequence.
pub struct Queries<'a> {
    /// For each query its position: it sees positions 0 to that one. Neighbours should be near each other.
    pub positions: &'a [usize],
    /// The queries, `[positions.len(), head_dim]`.
    pub vectors: &'a [f32],
    /// Where the results go, `[positions.len(), head_dim]`, of a span `[positions.len(), partial_len(head_dim)]`.
    pub out: &'a mut [f32],
}

/// Room for the work on up to so many queries at once.
pub struct AttentionScratch {
    work: Work,
    unpacked: Unpacked,
}

struct Work {
    scores: Box<[[f32; SEGMENT]; GROUP]>,
    /// Of the span at hand, and of all before it.
    span: Sums,
    before: Sums,
}

/// For each query the softmax so far and the weighted sum of values, `[width]`.
struct Sums {
    states: Vec<State>,
    values: Vec<f32>,
}

impl Sums {
    fn new(queries: usize, width: usize) -> Sums {
        Sums { states: vec![State::EMPTY; queries], values: vec![0.0; queries * width] }
    }

    fn clear(&mut self, queries: usize, width: usize) {
        self.states[..queries].fill(State::EMPTY);
        self.values[..queries * width].fill(0.0);
    }
}

impl AttentionScratch {
    /// Room for `queries` of width `head_dim`.
    pub fn new(queries: usize, head_dim: usize) -> AttentionScratch {
        let sums = || Sums::new(queries, head_dim.next_multiple_of(LANES));
        let scores = Box::new([[0.0; SEGMENT]; GROUP]);
        let work = Work { scores, span: sums(), before: sums() };
        AttentionScratch { work, unpacked: Unpacked::new(head_dim) }
    }

    /// Bytes of such a scratch.
    pub fn bytes(queries: usize, head_dim: usize) -> usize {
        let each = head_dim.next_multiple_of(LANES) * size_of::<f32>() + size_of::<State>();
        size_of::<[[f32; SEGMENT]; GROUP]>() + 2 * queries * each + Unpacked::bytes(head_dim)
    }
}

/// Causal attention: softmax of the scores (query times key, divided by the square root of `head_dim`), times the
/// values. `block` gives the block of the layer and head in the sequence's n-th page ([`KvLayout::block`]); it is
/// asked for pages up to that of the last position. There are at most as many queries as the scratch has room for.
///
/// # Panics
///
/// If a block does not begin on the boundary of an f32.
pub fn attend<'b>(
    isa: Isa,
    layout: &KvLayout,
    block: &dyn Fn(usize) -> &'b [u8],
    queries: Queries<'_>,
    scratch: &mut AttentionScratch,
) {
    run(isa, layout, block, queries, None, scratch);
}

/// The same for the positions of one span alone, that is from `span * SPAN` on; each query sees at least one of them. It is
/// asked for their pages. [`join_spans`](super::join_spans) makes results of all spans of a query.
///
/// # Panics
///
/// As [`attend`].
pub fn attend_span<'b>(
    isa: Isa,
    layout: &KvLayout,
    block: &dyn Fn(usize) -> &'b [u8],
    span: usize,
    queries: Queries<'_>,
    scratch: &mut AttentionScratch,
) {
    run(isa, layout, block, queries, Some(span), scratch);
}

fn run<'b>(
    isa: Isa,
    layout: &KvLayout,
    block: &dyn Fn(usize) -> &'b [u8],
    queries: Queries<'_>,
    span: Option<usize>,
    scratch: &mut AttentionScratch,
) {
    let AttentionScratch { work, unpacked } = scratch;
    match InPages::serves(layout.types()) {
        true => dispatch(isa, Attend { layout, block, queries, span, segments: &mut InPages, work }),
        false => dispatch(isa, Attend { layout, block, queries, span, segments: unpacked, work }),
    }
}

struct Attend<'a, 'b, S> {
    layout: &'a KvLayout,
    block: &'a dyn Fn(usize) -> &'b [u8],
    queries: Queries<'a>,
    /// The only span that is of interest.
    span: Option<usize>,
    segments: &'a mut S,
    work: &'a mut Work,
}

impl<S: Segments> Kernel for Attend<'_, '_, S> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Attend { layout, block, queries, span: single, segments, work } = self;
        let Queries { positions, vectors, out } = queries;
        let (head_dim, width) = (layout.head_dim(), layout.width());
        let end = positions.iter().max().map_or(0, |last| last + 1);
        let spans = single.map_or(0..end.div_ceil(SPAN), |span| span..span + 1);
        for span in spans.clone() {
            work.span.clear(positions.len(), width);
            let span_end = end.min((span + 1) * SPAN);
            // What lies behind a single span may be written at this moment.
            let known = if single.is_some() { span_end } else { end };
            for start in (span * SPAN..span_end).step_by(SEGMENT) {
                let segment = segments.at(l, layout, start, known, block);
                work.add(l, &segment, positions, vectors, [head_dim, width]);
            }
            if span == spans.start {
                std::mem::swap(&mut work.span, &mut work.before);
            } else {
                work.join_span(l, span * SPAN, positions, width);
            }
        }

        let Sums { states, values } = &work.before;
        let results = states.iter().zip(values.chunks(width)).take(positions.len());
        if single.is_none() {
            for ((state, values), out) in results.zip(out.chunks_mut(head_dim)) {
                state.finish(l, values, out);
            }
        } else {
            for ((state, values), out) in results.zip(out.chunks_mut(partial_len(head_dim))) {
                out[..width].copy_from_slice(values);
                state.write(&mut out[width..]);
            }
        }
    }
}

impl Work {
    /// Adds a segment to the span at hand.
    #[inline(always)]
    fn add<L: Lanes, E: KvElement>(
        &mut self,
        l: L,
        segment: &Segment<'_, E>,
        positions: &[usize],
        vectors: &[f32],
        [head_dim, width]: [usize; 2],
    ) {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mut first = 0;
        while first < positions.len() {
            let limit = (positions.len() - first).min(L::ACCUMULATORS);
            let n = [GROUP, 4, 2, 1].into_iter().find(|n| *n <= limit).unwrap_or(1);
            let mut group = Group {
                segment,
                positions: &positions[first..first + n],
                vectors: &vectors[first * head_dim..(first + n) * head_dim],
                head_dim,
                width,
                scale,
                scores: &mut self.scores,
                sums: &mut self.span.values[first * width..(first + n) * width],
                states: &mut self.span.states[first..first + n],
            };
            group.take(l);
            first += n;
        }
    }

    /// Joins the span at hand, from position `start` on, with those before, for the queries that see it.
    #[inline(always)]
    fn join_span<L: Lanes>(&mut self, l: L, start: usize, positions: &[usize], width: usize) {
        let Work { span, before, .. } = self;
        let ours = before.states.iter_mut().zip(before.values.chunks_mut(width));
        let theirs = span.states.iter().zip(span.values.chunks(width));
        for ((position, (state, values)), (other, other_values)) in positions.iter().zip(ours).zip(theirs) {
            if *position >= start {
                state.join(l, values, other, other_values);
            }
        }
    }
}
