//! A model's weights by what a plan may do with them: those that every token uses stay in memory, experts need not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unfazed_formats::{ModelConfig, TensorInfo};

use crate::needs::packed;
use crate::{Bytes, needs};

/// Matrices that are used together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrices {
    /// As packed for the kernels.
    pub packed: Bytes,
    /// In the model's files.
    pub file: Bytes,
    /// Multiply-adds for one row of activations.
    pub macs: u64,
}

/// The experts of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLayer {
    /// The layer's number.
    pub layer: usize,
    /// One expert: gate, up and down together; the largest where they differ.
    pub expert: Matrices,
}

/// The two halves of one layer, which may be in different places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Its norm, projections and attention's output.
    pub attention: Matrices,
    /// Its norm and dense network, or its router; without experts.
    pub feed_forward: Matrices,
    /// All experts, as packed.
    pub experts: Bytes,
}

/// A model's weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// Everything as packed, experts included ([`needs::packed_weights`]).
    pub all: Bytes,
    /// Everything but experts, as packed.
    pub dense: Bytes,
    /// What every position uses: attention, routers, norms, dense networks.
    pub body: Matrices,
    /// The output table, used by rows that ask for logits.
    pub output: Matrices,
    /// Layers with experts; empty for a dense model.
    pub layers: Vec<ExpertLayer>,
    /// Every layer, from the first.
    pub blocks: Vec<Block>,
}

/// What is known of a layer's experts: of all alike (one tensor for all), and of each (a tensor for each).
#[derive(Default)]
struct Found {
    stacked: Matrices,
    single: BTreeMap<usize, Matrices>,
}

impl Weights {
    /// Takes a model's tensors apart. Reads descriptions only, never data.
    pub fn of<'t>(model: &ModelConfig, tensors: impl IntoIterator<Item = &'t TensorInfo>) -> Weights {
        let mut weights = Weights { blocks: vec![Block::default(); model.layers], ..Weights::default() };
        let mut found: BTreeMap<usize, Found> = BTreeMap::new();
        for tensor in tensors {
            weights.all = weights.all.saturating_add(packed(tensor));
            weights.add_to_block(model, tensor);
            match model.experts.and_then(|_| experts_in(tensor)) {
                Some((layer, None)) => found.entry(layer).or_default().stacked.add(&one_of_stack(tensor)),
                Some((layer, Some(expert))) => {
                    found.entry(layer).or_default().single.entry(expert).or_default().add(&matrices(tensor));
                }
                None => weights.add_dense(model, tensor),
            }
        }
        weights.layers = found.into_iter().map(|(layer, found)| found.layer(layer)).collect();
        weights
    }

    fn add_dense(&mut self, model: &ModelConfig, tensor: &TensorInfo) {
        let part = matrices(tensor);
        self.dense = self.dense.saturating_add(part.packed);
        // Embedding and output have the same shape, and may be the same table. Of the embedding single rows are read; the
        // larger of two is the output, or as large.
        if tensor.shape == [model.vocab as u64, model.hidden as u64] {
            if part.packed > self.output.packed {
                self.output = part;
            }
        } else {
            self.body.add(&part);
        }
    }

    fn add_to_block(&mut self, model: &ModelConfig, tensor: &TensorInfo) {
        let Some(block) = layer_of(&tensor.name).and_then(|layer| self.blocks.get_mut(layer)) else { return };
        if model.experts.and_then(|_| experts_in(tensor)).is_some() {
            block.experts = block.experts.saturating_add(packed(tensor));
        } else if of_attention(&tensor.name) {
            block.attention.add(&matrices(tensor));
        } else {
            block.feed_forward.add(&matrices(tensor));
        }
    }

    /// Bytes of one expert in its slot: panels and the slot's record, in whole pages, so that a slot can be given back to
    /// the system alone.
    pub fn slot_bytes(&self, layer: &ExpertLayer) -> Bytes {
        whole_pages(layer.expert.packed.saturating_add(needs::SLOT_RECORD))
    }
}

impl Found {
    fn layer(&self, layer: usize) -> ExpertLayer {
        let mut expert = self.single.values().max_by_key(|part| part.packed).copied().unwrap_or_default();
        expert.add(&self.stacked);
        ExpertLayer { layer, expert }
    }
}

impl Matrices {
    fn add(&mut self, other: &Matrices) {
        self.packed = self.packed.saturating_add(other.packed);
        self.file = self.file.saturating_add(other.file);
        self.macs = self.macs.saturating_add(other.macs);
    }
}

fn matrices(tensor: &TensorInfo) -> Matrices {
    // A vector is added or multiplied by: no matrix product.
    let macs = if tensor.shape.len() < 2 { 0 } else { product(&tensor.shape) };
    Matrices { packed: packed(tensor), file: Bytes(tensor.extent.len), macs }
}

fn one_of_stack(tensor: &TensorInfo) -> Matrices {
    let [count, shape @ ..] = &tensor.shape[..] else { return Matrices::default() };
    let one = TensorInfo { shape: shape.to_vec(), ..tensor.clone() };
    Matrices { file: Bytes(tensor.extent.len.div_ceil((*count).max(1))), ..matrices(&one) }
}

fn product(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |product, count| product.saturating_mul(*count))
}

/// Rounded up to whole pages of memory.
pub(crate) fn whole_pages(bytes: Bytes) -> Bytes {
    Bytes(bytes.0.checked_next_multiple_of(needs::MEMORY_PAGE.0).unwrap_or(u64::MAX))
}

/// The layer whose experts a tensor holds, by the GGUF specification's names (`blk.3.ffn_up_exps.weight`, all experts) or
/// those of Hugging Face checkpoints (`model.layers.3.mlp.experts.7.up_proj.weight`, one), and which one if one.
fn experts_in(tensor: &TensorInfo) -> Option<(usize, Option<usize>)> {
    let layer = layer_of(&tensor.name)?;
    let stacked = || tensor.name.split('.').any(|word| word.ends_with("_exps"));
    match (behind(&tensor.name, "experts"), &tensor.shape[..]) {
        (Some(expert), [_, _]) => Some((layer, Some(expert))),
        (None, [_, _, _]) if stacked() => Some((layer, None)),
        _ => None,
    }
}

/// The layer that a tensor belongs to, by the same names.
fn layer_of(name: &str) -> Option<usize> {
    behind(name, "blk").or_else(|| behind(name, "layers"))
}

/// The number behind a word of a name.
fn behind(name: &str, word: &str) -> Option<usize> {
    let mut words = name.split('.').skip_while(|other| *other != word);
    words.nth(1)?.parse().ok()
}

/// Whether a layer's tensor belongs to its attention: `attn_norm`, `attn_q` and so on, `self_attn.q_proj`, and
/// `input_layernorm`. (`post_attention_layernorm` is the network's norm.)
fn of_attention(name: &str) -> bool {
    name.split('.').any(|word| word.starts_with("attn") || word == "self_attn" || word == "input_layernorm")
}
