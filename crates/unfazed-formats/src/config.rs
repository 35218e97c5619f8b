//! A model's shape, the same whether it came from GGUF metadata or from `config.json`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::FormatError;

/// Which family of architectures a model belongs to (one file each in `unfazed-model`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Family {
    /// Llama and its relatives (SmolLM2): `llama` / `LlamaForCausalLM`.
    Llama,
    /// Dense Qwen3: `qwen3` / `Qwen3ForCausalLM`.
    Qwen3,
    /// Mixture-of-experts Qwen3: `qwen3moe` / `Qwen3MoeForCausalLM`.
    Qwen3Moe,
}

/// Shape of a model. All numbers were checked against bounds and against each other when they were read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Family of architectures.
    pub family: Family,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the dense feed-forward part (unused where every layer has experts).
    pub feed_forward: usize,
    /// Experts, if the family has them.
    pub experts: Option<ExpertConfig>,
    /// Rows of the embedding; token ids are below it.
    pub vocab: usize,
    /// Longest context that the model was trained for, in tokens.
    pub context: usize,
    /// Added to the mean square in RMS norms.
    pub norm_epsilon: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The output projection is the embedding table.
    pub tied_embeddings: bool,
}

/// Shape of a mixture-of-experts feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertConfig {
    /// Experts in a layer.
    pub count: usize,
    /// Experts used for a token.
    pub used: usize,
    /// Width of one expert.
    pub feed_forward: usize,
    /// Weights of the chosen experts are divided by their sum.
    pub normalised: bool,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies (theta).
    pub base: f32,
    /// Rotated dimensions of a head, even, at most `head_dim`.
    pub dimensions: usize,
    /// Which dimensions form a pair. GGUF files of the `llama` family have permuted rows, so their pairs are
    /// neighbours; everything else pairs a dimension with the one half a head further.
    pub pairing: RopePairing,
    /// Change of the frequencies for contexts beyond the trained one.
    pub scaling: RopeScaling,
}

/// Which dimensions rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RopePairing {
    /// `(2i, 2i + 1)`.
    Neighbours,
    /// `(i, i + dimensions / 2)`.
    Halves,
}

/// How frequencies are changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f32),
    /// Each divided by its own factor, one per pair (GGUF `rope_freqs.weight`).
    PerPair(Vec<f32>),
    /// Llama 3's.
    Llama3(Llama3Scaling),
    /// YaRN.
    Yarn(YarnScaling),
}

/// Llama 3's scaling (`rope_type` `llama3`): frequencies with wavelengths far beyond the trained context are divided by
/// `factor`, those well inside it are kept, and between the two the change is gradual.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Llama3Scaling {
    /// What low frequencies are divided by.
    pub factor: f32,
    /// Frequencies that turn less often than this in the trained context are low.
    pub low_frequency_factor: f32,
    /// Those that turn more often than this are high.
    pub high_frequency_factor: f32,
    /// The context that the model was trained for before, in tokens.
    pub original_context: usize,
}

/// YaRN (Peng et al. 2023, "YaRN: Efficient Context Window Extension"): as Llama 3's, with the change gradual over the pairs'
/// indices, and cosines and sines multiplied by `amplitude`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct YarnScaling {
    /// What low frequencies are divided by.
    pub factor: f32,
    /// The context that the model was trained for before, in tokens.
    pub original_context: usize,
    /// Turns in that context from which on a frequency is kept.
    pub beta_fast: f32,
    /// Turns below which it is divided.
    pub beta_slow: f32,
    /// `None`: `0.1 ln(factor) + 1`, the paper's, or 1 for factors up to 1.
    pub amplitude: Option<f32>,
}

impl YarnScaling {
    /// The paper's borders, which files leave out.
    pub const BETA_FAST: f32 = 32.0;
    /// As [`YarnScaling::BETA_FAST`].
    pub const BETA_SLOW: f32 = 1.0;

    /// With the paper's borders and amplitude.
    pub const fn new(factor: f32, original_context: usize) -> YarnScaling {
        let (beta_fast, beta_slow) = (YarnScaling::BETA_FAST, YarnScaling::BETA_SLOW);
        YarnScaling { factor, original_context, beta_fast, beta_slow, amplitude: None }
    }
}

/// Bounds of what a model may ask for. They are far beyond any model known, and small enough that products of
/// them do not overflow and that nothing absurd is allocated.
pub mod bounds {
    use std::ops::RangeInclusive;

    /// Transformer blocks.
    pub const LAYERS: RangeInclusive<usize> = 1..=4096;
    /// Width of the residual stream, and of feed-forward parts.
    pub const WIDTH: RangeInclusive<usize> = 1..=(1 << 20);
    /// Heads.
    pub const HEADS: RangeInclusive<usize> = 1..=4096;
    /// Width of a head.
    pub const HEAD_DIM: RangeInclusive<usize> = 2..=4096;
    /// Experts in a layer.
    pub const EXPERTS: RangeInclusive<usize> = 1..=(1 << 16);
    /// Rows of the embedding.
    pub const VOCAB: RangeInclusive<usize> = 1..=(1 << 24);
    /// Positions.
    pub const CONTEXT: RangeInclusive<usize> = 1..=(1 << 28);
}

/// What a layout calls the fields that are checked against each other.
pub(crate) struct FieldNames {
    pub(crate) file: String,
    pub(crate) kv_heads: String,
    pub(crate) experts_used: String,
    pub(crate) norm_epsilon: String,
    pub(crate) rope_base: String,
    pub(crate) rope_dimensions: String,
    pub(crate) rope_scaling: String,
}

impl ModelConfig {
    /// Checks what no field can be checked for alone. Each field is within its bounds already.
    pub(crate) fn check(&self, names: &FieldNames) -> Result<(), FormatError> {
        let invalid = |field: &str, value: &dyn fmt::Display, reason: String| {
            Err(FormatError::invalid(&names.file, field, value, reason))
        };
        if !self.heads.is_multiple_of(self.kv_heads) {
            return invalid(
                &names.kv_heads,
                &self.kv_heads,
                format!("it must divide the {} heads", self.heads),
            );
        }
        if let Some(experts) = self.experts
            && experts.used > experts.count
        {
            let reason = format!("there are only {} experts", experts.count);
            return invalid(&names.experts_used, &experts.used, reason);
        }
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon < 1.0) {
            let reason = "it must be above 0 and below 1".to_owned();
            return invalid(&names.norm_epsilon, &self.norm_epsilon, reason);
        }
        let rope = &self.rope;
        if !(rope.base >= 1.0 && rope.base.is_finite()) {
            return invalid(&names.rope_base, &rope.base, "it must be finite and at least 1".to_owned());
        }
        if rope.dimensions == 0 || !rope.dimensions.is_multiple_of(2) || rope.dimensions > self.head_dim {
            let reason = format!("it must be even and at most the width of a head, {}", self.head_dim);
            return invalid(&names.rope_dimensions, &rope.dimensions, reason);
        }
        let factors: &[f32] = match &rope.scaling {
            RopeScaling::None => &[],
            RopeScaling::Linear(factor) => &[*factor],
            RopeScaling::Llama3(Llama3Scaling {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                ..
            }) => {
                if !(*low > 0.0 && *low < *high) {
                    let reason =
                        format!("it must be above the factor of low frequencies, {low}, and that above 0");
                    return invalid(&names.rope_scaling, high, reason);
                }
                &[*factor, *low, *high]
            }
            RopeScaling::Yarn(YarnScaling {
                factor, beta_fast: fast, beta_slow: slow, amplitude, ..
            }) => {
                if !(*slow > 0.0 && *slow < *fast) {
                    let reason = format!("it must be above beta_slow, {slow}, and that above 0");
                    return invalid(&names.rope_scaling, fast, reason);
                }
                if rope.base <= 1.0 {
                    let reason = "YaRN needs frequencies that differ, and a base above 1".to_owned();
                    return invalid(&names.rope_base, &rope.base, reason);
                }
                &[*factor, *fast, *slow, amplitude.unwrap_or(1.0)]
            }
            RopeScaling::PerPair(factors) => {
                let pairs = rope.dimensions / 2;
                if factors.len() != pairs {
                    let value = format!("{} factors", factors.len());
                    return invalid(&names.rope_scaling, &value, format!("there are {pairs} pairs"));
                }
                factors
            }
        };
        match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
            Some(factor) => {
                invalid(&names.rope_scaling, factor, "a factor must be finite and above 0".to_owned())
            }
            None => Ok(()),
        }
    }
}
