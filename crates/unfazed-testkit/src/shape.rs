//! Shapes of models.

use unfazed_formats::ModelConfig;
use unfazed_formats::config::{ExpertConfig, Family, RopeConfig, RopePairing, RopeScaling};

/// A shape by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// A few MB, four layers, 8 experts of which 2 are used: for tests.
    Tiny,
    /// The same width without experts, of the `llama` family.
    TinyLlama,
    /// The same width without experts, of the `qwen3` family.
    TinyQwen3,
    /// OLMoE-1B-7B's shape: 6.9 billion weights, 1.3 billion used for a token.
    Olmoe7b,
    /// Qwen3-30B-A3B's shape: 30 billion weights, 3 billion used for a token.
    Qwen3A3b,
}

impl Preset {
    /// All presets.
    pub const ALL: [Preset; 5] =
        [Preset::Tiny, Preset::TinyLlama, Preset::TinyQwen3, Preset::Olmoe7b, Preset::Qwen3A3b];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Tiny => "tiny",
            Preset::TinyLlama => "tiny-llama",
            Preset::TinyQwen3 => "tiny-qwen3",
            Preset::Olmoe7b => "olmoe-7b",
            Preset::Qwen3A3b => "qwen3-30b-a3b",
        }
    }

    /// The preset of a name.
    pub fn from_name(name: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// The shape with a vocabulary of `vocab` tokens.
    pub fn config(self, vocab: usize) -> ModelConfig {
        match self {
            Preset::Tiny => tiny(Family::Qwen3Moe, vocab),
            Preset::TinyLlama => tiny(Family::Llama, vocab),
            Preset::TinyQwen3 => tiny(Family::Qwen3, vocab),
            Preset::Olmoe7b => ModelConfig {
                layers: 16,
                hidden: 2048,
                heads: 16,
                kv_heads: 16,
                head_dim: 128,
                feed_forward: 8 * 1024,
                experts: Some(ExpertConfig { count: 64, used: 8, feed_forward: 1024, normalised: true }),
                context: 8192,
                rope: rope(Family::Qwen3Moe, 128, 1e4),
                ..tiny(Family::Qwen3Moe, vocab)
            },
            Preset::Qwen3A3b => ModelConfig {
                layers: 48,
                hidden: 2048,
                heads: 32,
                kv_heads: 4,
                head_dim: 128,
                feed_forward: 8 * 768,
                experts: Some(ExpertConfig { count: 128, used: 8, feed_forward: 768, normalised: true }),
                context: 40960,
                rope: rope(Family::Qwen3Moe, 128, 1e6),
                ..tiny(Family::Qwen3Moe, vocab)
            },
        }
    }
}

/// A tiny model of a family. Every matrix has whole blocks of 256 columns, so that it can be stored in any format.
pub fn tiny(family: Family, vocab: usize) -> ModelConfig {
    let experts = ExpertConfig { count: 8, used: 2, feed_forward: 256, normalised: true };
    ModelConfig {
        family,
        layers: 4,
        hidden: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        feed_forward: 512,
        experts: (family == Family::Qwen3Moe).then_some(experts),
        vocab,
        context: 2048,
        norm_epsilon: 1e-6,
        rope: rope(family, 64, 1e4),
        tied_embeddings: false,
    }
}

fn rope(family: Family, head_dim: usize, base: f32) -> RopeConfig {
    let pairing = if family == Family::Llama { RopePairing::Neighbours } else { RopePairing::Halves };
    RopeConfig { base, dimensions: head_dim, pairing, scaling: RopeScaling::None }
}
