//! Synthetic models of any size: true shapes, random blocks, a real vocabulary, streamed to disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use unfazed_formats::gguf::Value;
use unfazed_formats::{BlockFormat, ModelConfig};

use crate::gguf_writer::{Entry, GgufLayout, GgufWriter};
use crate::random_blocks::random_blocks;
use crate::rng::Rng;
use crate::tensors::{ModelTensor, Role, tensors};
use crate::{Mix, RouterSkew, TestkitError, metadata};

/// Weights made at a time; whole blocks of every format. Part of what a seed means: another size gives other
/// weights.
const SLICE_WEIGHTS: usize = 1 << 22;

/// A model to be written.
#[derive(Clone, Debug)]
pub struct SyntheticModel {
    /// `general.name`.
    pub name: String,
    /// Its shape.
    pub config: ModelConfig,
    /// Which format each matrix gets.
    pub mix: Mix,
    /// Keys and values of its tokenizer.
    pub tokenizer: Vec<(String, Value)>,
    /// What its weights are drawn from.
    pub seed: u64,
    /// Which experts its routers prefer. It changes routers alone, and none of their random numbers.
    pub router_skew: Option<RouterSkew>,
}

/// Sizes of a model: of the file, and of what a token needs of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Weights of all tensors.
    pub weights: u64,
    /// Bytes read for a decoded token.
    pub active_bytes: u64,
    /// Weights used for a decoded token.
    pub active_weights: u64,
    /// Weights used for a prompt's token: the output is computed for the last one only.
    pub prefill_weights: u64,
    /// Bytes of all experts.
    pub expert_bytes: u64,
    /// Bytes of one expert of one layer (its gate, up and down parts), on average.
    pub one_expert_bytes: u64,
    /// Bytes of everything else but the embedding.
    pub dense_bytes: u64,
    /// Bytes of keys and values for a token, in f16.
    pub kv_bytes_per_token: u64,
}

/// A part of a tensor that one thread makes at a time.
struct Slice<'a> {
    tensor: &'a ModelTensor,
    format: BlockFormat,
    number: usize,
    offset: u64,
    len: usize,
}

impl SyntheticModel {
    /// Sizes, without writing anything.
    pub fn stats(&self) -> Stats {
        let config = &self.config;
        let mut stats = Stats::default();
        for tensor in tensors(config) {
            let weights = tensor.elements() as u64;
            let bytes = self.bytes(&tensor);
            stats.tensor_bytes += bytes;
            stats.weights += weights;
            if tensor.role == Role::Embedding {
                // A token reads one row, or all of them if the table is the output's as well.
                let rows = if config.tied_embeddings { 1 } else { config.vocab.max(1) as u64 };
                stats.active_bytes += bytes / rows;
                stats.active_weights += weights / rows;
                continue;
            }
            match config.experts.filter(|_| tensor.is_experts()) {
                Some(experts) => {
                    stats.expert_bytes += bytes;
                    stats.active_bytes += bytes * experts.used as u64 / experts.count as u64;
                    stats.active_weights += weights * experts.used as u64 / experts.count as u64;
                }
                None => {
                    stats.dense_bytes += bytes;
                    stats.active_bytes += bytes;
                    stats.active_weights += weights;
                }
            }
        }
        let experts = config.experts.map_or(1, |experts| experts.count * config.layers) as u64;
        stats.one_expert_bytes = stats.expert_bytes / experts.max(1);
        stats.prefill_weights = stats.active_weights - (config.vocab * config.hidden) as u64;
        stats.kv_bytes_per_token = 2 * 2 * (config.layers * config.kv_heads * config.head_dim) as u64;
        stats
    }

    /// Writes the file with `threads` threads; the bytes do not depend on how many. `progress` is told how many
    /// bytes were written since it was last called, and the length of the file.
    pub fn write(
        &self,
        path: &Path,
        threads: usize,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(), TestkitError> {
        let all = tensors(&self.config);
        let io = |error| TestkitError::io(path, error);
        let (file, layout) = self.create(path, &all)?;
        progress(layout.header.len() as u64, layout.len);

        let slices = self.slices(&all, &layout);
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let mut buffer = Vec::new();
                    while let Some(slice) = slices.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.fill(slice, &mut buffer);
                        if let Err(error) = file.write_all_at(&buffer, slice.offset) {
                            // Others stop at their next slice.
                            next.store(slices.len(), Ordering::Relaxed);
                            failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).replace(error);
                        }
                        progress(buffer.len() as u64, layout.len);
                    }
                });
            }
        });
        match failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(error) => Err(io(error)),
            None => Ok(()),
        }
    }

    /// Writes the file's headers and leaves a hole where the weights would be: a file of any size that takes no room on disk.
    /// All its weights are zero.
    pub fn write_headers(&self, path: &Path) -> Result<(), TestkitError> {
        self.create(path, &tensors(&self.config)).map(|_| ())
    }

    fn create(&self, path: &Path, all: &[ModelTensor]) -> Result<(File, GgufLayout), TestkitError> {
        let layout = self.writer(all).layout()?;
        let io = |error| TestkitError::io(path, error);
        let file = File::create(path).map_err(io)?;
        file.set_len(layout.len).map_err(io)?;
        file.write_all_at(&layout.header, 0).map_err(io)?;
        Ok((file, layout))
    }

    fn writer(&self, all: &[ModelTensor]) -> GgufWriter {
        let mut metadata = metadata::metadata(&self.config, &self.mix, &self.name);
        metadata.extend(self.tokenizer.iter().cloned());
        let entry = |tensor: &ModelTensor| Entry {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            format: self.mix.format(&self.config, tensor),
        };
        GgufWriter::new(metadata, all.iter().map(entry).collect())
    }

    fn bytes(&self, tensor: &ModelTensor) -> u64 {
        let format = self.mix.format(&self.config, tensor);
        // The mix chooses formats whose blocks fill the rows, so those of the whole tensor are whole as well.
        format.row_bytes(tensor.elements()).unwrap_or_default() as u64
    }

    fn slices<'a>(&self, all: &'a [ModelTensor], layout: &GgufLayout) -> Vec<Slice<'a>> {
        let mut slices = Vec::new();
        for (tensor, (start, len)) in all.iter().zip(&layout.extents) {
            let format = self.mix.format(&self.config, tensor);
            let step = SLICE_WEIGHTS / format.block_weights() * format.block_bytes();
            for number in 0..(*len as usize).div_ceil(step) {
                let done = number * step;
                let len = step.min(*len as usize - done);
                slices.push(Slice { tensor, format, number, offset: start + done as u64, len });
            }
        }
        slices
    }

    fn fill(&self, slice: &Slice<'_>, buffer: &mut Vec<u8>) {
        buffer.resize(slice.len, 0);
        let mut rng = Rng::new(self.seed, &slice.tensor.name, slice.number as u64);
        if slice.tensor.role == Role::Norm {
            let (floats, _) = buffer.as_chunks_mut::<4>();
            floats.iter_mut().for_each(|float| {
                *float = (1.0 + rng.centred(slice.tensor.standard_deviation)).to_le_bytes();
            });
        } else {
            random_blocks(slice.format, slice.tensor.standard_deviation, &mut rng, buffer);
        }
        if let (Role::Router, Some(skew)) = (slice.tensor.role, &self.router_skew) {
            skew.scale(self.seed, slice.tensor, slice.number * SLICE_WEIGHTS, buffer);
        }
    }
}
