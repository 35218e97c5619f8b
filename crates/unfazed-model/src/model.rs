//! A model: its checked sources, and its weights on a device.

use unfazed_device::{Batch, Device, DeviceError, StepOutput};
use unfazed_formats::config::Family;
use unfazed_formats::{Checkpoint, Headers, ModelConfig};
use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, Source, VectorSource};

use crate::ModelError;
use crate::catalog::Catalog;
use crate::cost::{self, Cost};
use crate::decoder::{Decoder, Loaded};
use crate::{llama, qwen3, qwen3moe};

/// Where all weights of a model are: every tensor found and checked, nothing read yet.
pub struct Sources {
    config: ModelConfig,
    weights: Decoder<MatrixSource, VectorSource, LayerExperts>,
    bytes: u64,
}

/// A model whose weights are on a device.
pub struct Model<D: Device> {
    config: ModelConfig,
    weights: Loaded<D>,
}

impl Sources {
    /// Finds the tensors of a model's family and checks their shapes, formats and lengths against its
    /// configuration. Tensors that the family does not have are refused by name (a bias that is left out gives fluent
    /// nonsense), except those that change nothing: `rope_freqs.weight` (already in the configuration),
    /// `*.rotary_emb.inv_freq`, and an output table beside tied embeddings.
    ///
    /// # Errors
    ///
    /// All but [`ModelError::Device`].
    pub fn find(headers: &Headers) -> Result<Sources, ModelError> {
        let family = match headers.config.family {
            Family::Llama => llama::NAME,
            Family::Qwen3 => qwen3::NAME,
            Family::Qwen3Moe => qwen3moe::NAME,
        };
        let mut catalog = Catalog::new(headers, family);
        let weights = match headers.config.family {
            Family::Llama => llama::find(&mut catalog)?,
            Family::Qwen3 => qwen3::find(&mut catalog)?,
            Family::Qwen3Moe => qwen3moe::find(&mut catalog)?,
        };
        Ok(Sources { config: headers.config.clone(), weights, bytes: catalog.finish()? })
    }

    /// Bytes in the files of all tensors, those of experts included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of these, bytes of experts.
    pub fn expert_bytes(&self) -> u64 {
        let layers = self.weights.layers.iter().filter_map(|layer| Some(&layer.mixture()?.experts));
        let stacks = layers.flat_map(|LayerExperts { gate, up, down }| [gate, up, down]);
        let parts = stacks.flat_map(|stack| &stack.parts);
        parts.fold(0, |sum: u64, part| sum.saturating_add(part.len))
    }

    /// The experts of each layer; `None` for layers without.
    pub fn experts(&self) -> Vec<Option<LayerExperts>> {
        self.weights.layers.iter().map(|layer| Some(layer.mixture()?.experts.clone())).collect()
    }

    /// What a step costs at least.
    pub fn cost(&self) -> Cost {
        cost::cost(&self.weights)
    }

    /// All weights, in the order of loading; those of experts only if a device has all of them in memory (`experts`).
    pub fn in_order(&self, experts: bool) -> Vec<Source<'_>> {
        let mut order = Vec::new();
        self.weights.in_order(&mut order, experts);
        order
    }

    /// Loads the weights, in an order that follows from the headers alone.
    ///
    /// # Errors
    ///
    /// What the device says: reads that fail, memory that is not there.
    pub fn load<D: Device>(&self, device: &mut D) -> Result<Model<D>, ModelError> {
        Ok(Model { config: self.config.clone(), weights: self.weights.load(device)? })
    }
}

impl<D: Device> Model<D> {
    /// Finds, checks and loads the weights of a checkpoint.
    ///
    /// # Errors
    ///
    /// Those of [`Sources::find`] and [`Sources::load`].
    pub fn load(checkpoint: &Checkpoint, device: &mut D) -> Result<Model<D>, ModelError> {
        Sources::find(&checkpoint.into())?.load(device)
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Computes a step: keys and values of all rows go to their pages, and the logits of the rows that ask for them come
    /// back.
    ///
    /// # Errors
    ///
    /// What the device says, above all of a batch that it was not laid out for.
    pub fn forward<'d>(&self, device: &'d mut D, batch: &Batch) -> Result<StepOutput<'d>, DeviceError> {
        device.begin(batch)?;
        self.weights.forward(device, &self.config);
        device.finish()
    }
}
