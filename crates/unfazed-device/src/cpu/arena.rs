//! Activations of a step, laid out once for the largest.

use unfazed_formats::ModelConfig;
use unfazed_kernels::attention::partial_len;
use unfazed_store::{Buffer, StoreError};

use super::attention::PARTIALS;
use super::compute::Scratch;
use super::mixture::FEW_ROWS;

/// Widths of a row's activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub(super) hidden: usize,
    /// heads * head_dim.
    pub(super) query: usize,
    /// kv_heads * head_dim.
    pub(super) kv: usize,
    pub(super) head_dim: usize,
    pub(super) experts: usize,
    pub(super) used: usize,
    pub(super) vocab: usize,
}

impl Widths {
    /// Of a model, or `None` if a product overflows.
    pub(super) fn of(model: &ModelConfig) -> Option<Widths> {
        Some(Widths {
            hidden: model.hidden,
            query: model.heads.checked_mul(model.head_dim)?,
            kv: model.kv_heads.checked_mul(model.head_dim)?,
            head_dim: model.head_dim,
            experts: model.experts.map_or(0, |experts| experts.count),
            used: model.experts.map_or(0, |experts| experts.used),
            vocab: model.vocab,
        })
    }
}

/// Activations, each `[rows, width]`. A step of fewer rows uses the front of each.
pub(super) struct Arena {
    pub(super) residual: Buffer<f32>,
    pub(super) normed: Buffer<f32>,
    pub(super) query: Buffer<f32>,
    pub(super) key: Buffer<f32>,
    pub(super) value: Buffer<f32>,
    pub(super) context: Buffer<f32>,
    /// Cosines and sines for each row's position, `[rows, head_dim]` at most.
    pub(super) rope: Buffer<f32>,
    /// Room for parts of softmaxes.
    pub(super) partials: Buffer<f32>,
    /// What the router says, `[rows, experts]`.
    pub(super) router: Buffer<f32>,
    /// Experts' outputs of a step of few rows, `[few rows * used, hidden]`.
    pub(super) outputs: Buffer<f32>,
    /// `[logit rows, vocab]`.
    pub(super) logits: Buffer<f32>,
}

impl Arena {
    pub(super) fn new(widths: &Widths, rows: usize, logit_rows: usize) -> Result<Arena, StoreError> {
        let buffer = |what, rows: usize, width: usize| Buffer::zeroed(what, rows.saturating_mul(width));
        let few = rows.min(FEW_ROWS).saturating_mul(widths.used);
        Ok(Arena {
            residual: buffer("the residual", rows, widths.hidden)?,
            normed: buffer("normed rows", rows, widths.hidden)?,
            query: buffer("queries", rows, widths.query)?,
            key: buffer("keys", rows, widths.kv)?,
            value: buffer("values", rows, widths.kv)?,
            context: buffer("contexts", rows, widths.query)?,
            rope: buffer("rotations", rows, widths.head_dim)?,
            partials: buffer("parts of softmaxes", PARTIALS, partial_len(widths.head_dim))?,
            router: buffer("router outputs", rows, widths.experts)?,
            outputs: buffer("experts' outputs", few, widths.hidden)?,
            logits: buffer("logits", logit_rows, widths.vocab)?,
        })
    }
}

/// Upper bound on the bytes that a CPU device needs beside weights and KV pages: activations of `max_rows` rows, rounded
/// and laid out copies of what enters matrices, `max_logit_rows` rows of logits, and each thread's scratch.
/// Saturates instead of overflowing. Float activations (a test mode) need more.
pub fn arena_bytes(model: &ModelConfig, max_rows: usize, max_logit_rows: usize, threads: usize) -> u64 {
    let Some(widths) = Widths::of(model) else { return u64::MAX };
    let rows = max_rows as u64;
    let product = |a: u64, b: usize| a.saturating_mul(b as u64);
    let floats = [2 * widths.hidden, 2 * widths.query, 2 * widths.kv, widths.head_dim, widths.experts];
    let activations = product(rows, floats.iter().fold(0usize, |sum, width| sum.saturating_add(*width)));
    let few = product(product(rows.min(FEW_ROWS as u64), widths.used), widths.hidden);
    let logits = product(max_logit_rows as u64, widths.vocab);

    // A number that enters a matrix is kept twice, rounded and laid out in tiles: float weights want it as it is,
    // twice 4 bytes; an int8 with its share of scales and sums takes less than half of that.
    let input = product(rows, widths.hidden.max(widths.query)).saturating_mul(3);
    let (entries, inner) = match &model.experts {
        Some(experts) => (product(rows, experts.used), experts.feed_forward),
        None => (rows, model.feed_forward),
    };
    let gathered = if widths.used > 0 { product(entries, widths.hidden) } else { 0 };
    let operands = [input, gathered, product(entries, inner).saturating_mul(2)];

    let partials = product(PARTIALS as u64, partial_len(widths.head_dim));
    let numbers =
        operands.into_iter().chain([activations, few, logits, partials]).fold(0, u64::saturating_add);
    let group = model.heads / model.kv_heads.max(1);
    let scratch = product(threads as u64, Scratch::bytes(group, widths.head_dim));
    numbers.saturating_mul(size_of::<f32>() as u64).saturating_add(scratch)
}
