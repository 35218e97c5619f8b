//! What tests of readers share.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::indexing_slicing)]

pub mod simulated;

use unfazed_formats::{BlockFormat, Extent, FileId};
use unfazed_store::MatrixSource;
use unfazed_store::experts::LayerExperts;

/// An extent of the first file.
pub fn extent(offset: u64, len: u64) -> Extent {
    Extent { file: FileId(0), offset, len }
}

/// The experts of a layer in f32: gate and up `[width, hidden]`, down `[hidden, width]`. `offset` says where a part (gate, up,
/// down) of an expert is.
pub fn layer_experts(
    layer: u32,
    experts: u32,
    [hidden, width]: [usize; 2],
    offset: impl Fn(usize, u32) -> usize,
) -> LayerExperts {
    let len = (hidden * width * 4) as u64;
    let stack = |part, name: &str, rows, columns| MatrixSource {
        name: format!("blk.{layer}.{name}_exps.weight"),
        format: BlockFormat::F32,
        rows,
        columns,
        parts: (0..experts).map(|expert| extent(offset(part, expert) as u64, len)).collect(),
    };
    LayerExperts {
        gate: stack(0, "ffn_gate", width, hidden),
        up: stack(1, "ffn_up", width, hidden),
        down: stack(2, "ffn_down", hidden, width),
    }
}

/// Bytes that tell where they are.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
