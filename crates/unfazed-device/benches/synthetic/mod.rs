//! Mixtures of experts with synthetic weights: what benches of whole steps share.

use unfazed_formats::config::{ExpertConfig, Family, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{BlockFormat, Extent, FileId};
use unfazed_store::{MatrixSource, Reader, StoreError};
use unfazed_testkit::random_blocks::random_blocks;
use unfazed_testkit::rng::Rng;

/// Random blocks of one format, the same at every offset; vectors are of ones, and routers of rows that differ.
pub(crate) struct Blocks(Vec<u8>);

impl Blocks {
    pub(crate) fn new(format: BlockFormat) -> Blocks {
        let mut blocks = vec![0; format.block_bytes() * 4096];
        random_blocks(format, 0.03, &mut Rng::new(1, "bench", 0), &mut blocks);
        Blocks(blocks)
    }
}

impl Reader for Blocks {
    fn read(&self, name: &str, _: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        let floats = buf.as_chunks_mut::<4>().0.iter_mut();
        match name {
            "vector" => floats.for_each(|number| *number = 1f32.to_le_bytes()),
            "router" => floats.enumerate().for_each(|(i, number)| {
                let x = (i as u32).wrapping_mul(2_654_435_761) >> 8;
                *number = (x as f32 / (1 << 24) as f32 - 0.5).to_le_bytes();
            }),
            _ => buf.chunks_mut(self.0.len()).for_each(|part| part.copy_from_slice(&self.0[..part.len()])),
        }
        Ok(())
    }
}

/// In the shape of OLMoE-7B, but for `layers` and the vocabulary.
pub(crate) fn olmoe(layers: usize, vocab: usize) -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3Moe,
        layers,
        hidden: 2048,
        heads: 16,
        kv_heads: 16,
        head_dim: 128,
        feed_forward: 0,
        experts: Some(ExpertConfig { count: 64, used: 8, feed_forward: 1024, normalised: true }),
        vocab,
        context: 8192,
        norm_epsilon: 1e-5,
        rope: RopeConfig {
            base: 10_000.0,
            dimensions: 128,
            pairing: RopePairing::Halves,
            scaling: RopeScaling::None,
        },
        tied_embeddings: false,
    }
}

/// A matrix, or a stack of them, that [`Blocks`] gives.
pub(crate) fn source(
    name: &str,
    format: BlockFormat,
    parts: usize,
    [rows, columns]: [usize; 2],
) -> MatrixSource {
    let len = (format.row_bytes(columns).unwrap_or(0) * rows) as u64;
    let extent = Extent { file: FileId(0), offset: 0, len };
    MatrixSource { name: name.to_owned(), format, rows, columns, parts: vec![extent; parts] }
}
