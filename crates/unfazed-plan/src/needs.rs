//! What a model needs, in bytes.

use unfazed_formats::{BlockFormat, KvTypes, ModelConfig, TensorInfo};

use crate::{Arena, Bytes, PAGE_TOKENS, Tokens};

/// Rows of a step whose logits may be wanted at once (prompt log probabilities come in such pieces).
pub const LOGIT_ROWS: usize = 64;

/// What a slot of the expert store keeps beside an expert's panels: whose they are, their generation, their hash.
pub const SLOT_RECORD: Bytes = Bytes(64);
/// Pages of memory that slots and read buffers are made of, and the alignment of direct reads.
pub const MEMORY_PAGE: Bytes = Bytes(4096);

/// Rows of a panel in which weights are packed.
const PANEL_ROWS: u64 = 16;
/// A panel may have three quarters of a line of scales that a block too few leaves, and is filled up to a whole line.
const PANEL_EXCESS: u64 = 112;
/// Each tensor begins on a line's boundary.
const TENSOR_EXCESS: u64 = 64;

/// Weights as packed: the files' bits (or more, see [`packed_block`]) in panels of 16 rows, the last one filled up; vectors
/// as f32. An upper bound (a test of the device holds its panels to this).
pub fn packed_weights<'t>(tensors: impl IntoIterator<Item = &'t TensorInfo>) -> Bytes {
    tensors.into_iter().map(packed).fold(Bytes(0), Bytes::saturating_add)
}

/// One tensor as packed.
pub(crate) fn packed(tensor: &TensorInfo) -> Bytes {
    Bytes(packed_bytes(tensor))
}

fn packed_bytes(tensor: &TensorInfo) -> u64 {
    let [matrices @ .., rows, columns] = &tensor.shape[..] else {
        let elements = tensor.shape.iter().fold(1, |product: u64, count| product.saturating_mul(*count));
        return elements.saturating_mul(size_of::<f32>() as u64).saturating_add(TENSOR_EXCESS);
    };
    let blocks = columns.div_ceil(tensor.format.block_weights() as u64);
    let panel = blocks
        .saturating_mul(packed_block(tensor.format))
        .saturating_mul(PANEL_ROWS)
        .saturating_add(PANEL_EXCESS);
    let matrices = matrices.iter().fold(1, |product: u64, count| product.saturating_mul(*count));
    panel.saturating_mul(rows.div_ceil(PANEL_ROWS)).saturating_mul(matrices).saturating_add(TENSOR_EXCESS)
}

/// Bytes of a row's block in a panel. The formats of ternary digits, grids and signs are expanded to plain codes there.
fn packed_block(format: BlockFormat) -> u64 {
    match format {
        BlockFormat::TQ1_0 => 66,
        BlockFormat::IQ1_S | BlockFormat::IQ2_XXS => 106,
        BlockFormat::IQ1_M | BlockFormat::IQ2_XS | BlockFormat::IQ2_S | BlockFormat::Q3_K => 114,
        BlockFormat::IQ3_XXS | BlockFormat::IQ3_S | BlockFormat::IQ4_XS => 138,
        _ => format.block_bytes() as u64,
    }
}

/// One KV page: keys and values of [`PAGE_TOKENS`] positions in all layers (a test of the device holds its pages to this).
/// For types that the model's heads are not whole blocks of it is beyond all memory.
pub fn page(model: &ModelConfig, types: KvTypes) -> Bytes {
    let position = types.position_bytes(model.head_dim).and_then(|[key, value]| key.checked_add(value));
    product([position.unwrap_or(usize::MAX), model.layers, model.kv_heads, PAGE_TOKENS])
}

/// Activations and logits of the largest step ([`Arena`]). An upper bound on what the CPU device lays out (a test of the
/// device holds it to this).
pub fn scratch(model: &ModelConfig, chunk: Tokens, parallel: usize) -> Bytes {
    Arena::new(model, chunk.0.max(parallel)).bytes
}

fn product<const N: usize>(factors: [usize; N]) -> Bytes {
    Bytes(factors.into_iter().fold(1u64, |product, factor| product.saturating_mul(factor as u64)))
}
