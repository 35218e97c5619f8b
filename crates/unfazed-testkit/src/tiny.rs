//! Tiny models: in memory, as GGUF files and as Hugging Face directories. The weights depend on the seed and the
//! tensor's name alone, so the same model can be had in every format and layout.

use std::path::{Path, PathBuf};

use unfazed_formats::config::{Family, RopeScaling};
use unfazed_formats::gguf::Value;
use unfazed_formats::{BlockFormat, ModelConfig};

use crate::gguf_writer::{Entry, GgufWriter};
use crate::quantise::quantise;
use crate::rng::Rng;
use crate::tensors::{ModelTensor, Role, tensors};
use crate::{Mix, TestkitError, huggingface_writer, metadata, shape, vocabulary};

/// Name of the tensor with the factors of the frequencies.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// A tiny model.
#[derive(Clone, Debug, PartialEq)]
pub struct TinyModel {
    /// Its shape; change fields before writing.
    pub config: ModelConfig,
    /// Which format each matrix gets in a GGUF file.
    pub mix: Mix,
    /// What its weights are drawn from.
    pub seed: u64,
}

impl TinyModel {
    /// A model of a family with every matrix in one format.
    pub fn new(family: Family, format: BlockFormat) -> TinyModel {
        let config = shape::tiny(family, vocabulary::tiny_len());
        TinyModel { config, mix: Mix::uniform(format), seed: 1 }
    }

    /// The weights of a tensor, rows in the order of Hugging Face files.
    pub fn weights(&self, tensor: &ModelTensor) -> Vec<f32> {
        let mut rng = Rng::new(self.seed, &tensor.name, 0);
        let mean = if tensor.role == Role::Norm { 1.0 } else { 0.0 };
        (0..tensor.elements()).map(|_| mean + rng.centred(tensor.standard_deviation)).collect()
    }

    /// The file as one GGUF.
    pub fn gguf(&self) -> Result<Vec<u8>, TestkitError> {
        let stored = self.stored()?;
        self.writer(self.metadata(), &stored).to_bytes(|i| Ok(data_of(&stored, i)))
    }

    /// Writes the file as one GGUF.
    pub fn write_gguf(&self, path: &Path) -> Result<(), TestkitError> {
        std::fs::write(path, self.gguf()?).map_err(|error| TestkitError::io(path, error))
    }

    /// Writes the model split into `parts` files `STEM-0000I-of-0000N.gguf` and tells their paths.
    pub fn write_split(&self, folder: &Path, stem: &str, parts: usize) -> Result<Vec<PathBuf>, TestkitError> {
        let stored = self.stored()?;
        let each = stored.len().div_ceil(parts.max(1));
        let mut paths = Vec::new();
        for number in 0..parts {
            let start = (number * each).min(stored.len());
            let part = stored.get(start..(start + each).min(stored.len())).unwrap_or_default();
            let mut metadata = if number == 0 { self.metadata() } else { Vec::new() };
            metadata.push(("split.no".to_owned(), Value::U16(number as u16)));
            metadata.push(("split.count".to_owned(), Value::U16(parts as u16)));
            metadata.push(("split.tensors.count".to_owned(), Value::I32(stored.len() as i32)));
            let bytes = self.writer(metadata, part).to_bytes(|i| Ok(data_of(part, i)))?;
            let path = folder.join(format!("{stem}-{:05}-of-{parts:05}.gguf", number + 1));
            std::fs::write(&path, bytes).map_err(|error| TestkitError::io(&path, error))?;
            paths.push(path);
        }
        Ok(paths)
    }

    /// Writes the model as a Hugging Face directory with its weights in `format` (F32, F16 or BF16), in `shards`
    /// safetensors files.
    pub fn write_huggingface(
        &self,
        folder: &Path,
        format: BlockFormat,
        shards: usize,
    ) -> Result<(), TestkitError> {
        huggingface_writer::write(self, folder, format, shards)
    }

    fn metadata(&self) -> Vec<(String, Value)> {
        let mut all = metadata::metadata(&self.config, &self.mix, "tiny");
        all.extend(vocabulary::tiny_metadata());
        all
    }

    fn writer(&self, metadata: Vec<(String, Value)>, stored: &[(Entry, Vec<u8>)]) -> GgufWriter {
        GgufWriter::new(metadata, stored.iter().map(|(entry, _)| entry.clone()).collect())
    }

    /// Every tensor as a GGUF file has it.
    fn stored(&self) -> Result<Vec<(Entry, Vec<u8>)>, TestkitError> {
        let mut all = Vec::new();
        if let RopeScaling::PerPair(factors) = &self.config.rope.scaling {
            let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
            let shape = vec![factors.len()];
            all.push((Entry { name: ROPE_FACTORS.to_owned(), shape, format: BlockFormat::F32 }, bytes));
        }
        for tensor in tensors(&self.config) {
            let format = self.mix.format(&self.config, &tensor);
            let mut weights = self.weights(&tensor);
            if let (Family::Llama, Role::Rotated(heads)) = (self.config.family, tensor.role) {
                weights = permuted(&weights, heads, self.config.head_dim, tensor.columns());
            }
            let bytes = quantise(format, &weights).ok_or_else(|| {
                let reason = format!("tensor {} has no whole blocks of {format:?}", tensor.name);
                TestkitError::request("number of columns", &tensor.columns(), reason)
            })?;
            all.push((Entry { name: tensor.name, shape: tensor.shape, format }, bytes));
        }
        Ok(all)
    }
}

fn data_of(stored: &[(Entry, Vec<u8>)], i: usize) -> Vec<u8> {
    stored.get(i).map(|(_, bytes)| bytes.clone()).unwrap_or_default()
}

/// The rows of queries or keys as GGUF files of the `llama` family have them: the two halves of each head are
/// interleaved, so that dimensions which rotate together are neighbours.
fn permuted(weights: &[f32], heads: usize, head_dim: usize, columns: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = weights.chunks(columns).collect();
    let half = head_dim / 2;
    let order =
        (0..heads).flat_map(|head| (0..head_dim).map(move |i| head * head_dim + i % 2 * half + i / 2));
    order.filter_map(|row| rows.get(row)).flat_map(|row| row.iter().copied()).collect()
}
