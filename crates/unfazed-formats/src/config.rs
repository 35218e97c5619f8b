//! A model's shape, the same whether it came from GGUF metadata or from `config.json`.

/// Which family of architectures a model belongs to (one file each in `unfazed-model`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama and its relatives (SmolLM2): `llama` / `LlamaForCausalLM`.
    Llama,
    /// Dense Qwen3: `qwen3` / `Qwen3ForCausalLM`.
    Qwen3,
    /// Mixture-of-experts Qwen3: `qwen3moe` / `Qwen3MoeForCausalLM`.
    Qwen3Moe,
}

/// Shape of a model. All numbers were checked against bounds and against each other when they were read.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// `(2i, 2i + 1)`.
    Neighbours,
    /// `(i, i + dimensions / 2)`.
    Halves,
}

/// How frequencies are changed.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f32),
    /// Each divided by its own factor, one per pair (GGUF `rope_freqs.weight`, or computed from Llama 3's
    /// `rope_scaling`).
    PerPair(Vec<f32>),
}
