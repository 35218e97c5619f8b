//! What a model needs, in bytes.

use unfazed_formats::ModelConfig;

use crate::{Bytes, PAGE_TOKENS, Tokens};

/// Rows of a step whose logits may be wanted at once (prompt log probabilities come in such pieces).
pub const LOGIT_ROWS: usize = 64;

/// A value of a head takes a whole number of these in a page.
const VALUE_LANES: usize = 16;

/// Weights as packed: the file's bits, with panels of 16 rows filled up. The excess is bounded by rows that do not
/// fill a panel: a sixty-fourth covers every real model.
pub fn packed_weights(file: Bytes) -> Bytes {
    Bytes(file.0.saturating_add(file.0 / 64))
}

/// One KV page: keys and values of [`PAGE_TOKENS`] positions in all layers, f16. Values are filled up to a multiple of
/// 16 elements (a test of the device holds its pages to this).
pub fn page(model: &ModelConfig) -> Bytes {
    let values = model.head_dim.div_ceil(VALUE_LANES).saturating_mul(VALUE_LANES);
    product([2, model.layers, model.kv_heads, model.head_dim.saturating_add(values), PAGE_TOKENS])
}

/// Activations and logits of the largest step. An upper bound on what the CPU device lays out (a test of the device
/// holds it to this).
pub fn scratch(model: &ModelConfig, chunk: Tokens, parallel: usize) -> Bytes {
    let heads = product([model.heads.saturating_add(2 * model.kv_heads), model.head_dim]).0;
    let context = product([model.heads, model.head_dim]).0;
    let hidden = model.hidden as u64;
    let feed_forward = match &model.experts {
        Some(experts) => {
            let one = (2 * experts.feed_forward as u64).saturating_add(hidden);
            (experts.used as u64).saturating_mul(one).saturating_add(experts.count as u64)
        }
        None => 2 * model.feed_forward as u64,
    };
    // Activations are f32, and int8 copies of those that feed a matrix, with scales, come to less than the f32.
    let row = [hidden * 2, heads, context, feed_forward].into_iter().fold(0u64, u64::saturating_add);
    let rows = chunk.0.max(parallel) as u64;
    let logits = product([LOGIT_ROWS.min(rows as usize).max(1), model.vocab]).0;
    Bytes(row.saturating_mul(rows).saturating_mul(8).saturating_add(logits.saturating_mul(4)))
}

fn product<const N: usize>(factors: [usize; N]) -> Bytes {
    Bytes(factors.into_iter().fold(1u64, |product, factor| product.saturating_mul(factor as u64)))
}
