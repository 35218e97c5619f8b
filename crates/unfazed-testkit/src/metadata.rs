//! GGUF metadata from a model's shape.

use unfazed_formats::ModelConfig;
use unfazed_formats::config::{Family, RopeScaling};
use unfazed_formats::gguf::Value;

use crate::Mix;

/// Keys and values that describe a model, without its tokenizer.
pub fn metadata(config: &ModelConfig, mix: &Mix, name: &str) -> Vec<(String, Value)> {
    let architecture = match config.family {
        Family::Llama => "llama",
        Family::Qwen3 => "qwen3",
        Family::Qwen3Moe => "qwen3moe",
    };
    let mut all = vec![
        ("general.architecture".to_owned(), Value::String(architecture.to_owned())),
        ("general.name".to_owned(), Value::String(name.to_owned())),
        ("general.file_type".to_owned(), Value::U32(mix.file_type())),
        ("general.quantization_version".to_owned(), Value::U32(2)),
    ];
    let mut put = |key: &str, value: Value| all.push((format!("{architecture}.{key}"), value));
    let size = |size: usize| Value::U32(size as u32);
    put("context_length", size(config.context));
    put("embedding_length", size(config.hidden));
    put("block_count", size(config.layers));
    put("feed_forward_length", size(config.feed_forward));
    put("attention.head_count", size(config.heads));
    put("attention.head_count_kv", size(config.kv_heads));
    put("attention.key_length", size(config.head_dim));
    put("attention.value_length", size(config.head_dim));
    put("attention.layer_norm_rms_epsilon", Value::F32(config.norm_epsilon));
    put("rope.freq_base", Value::F32(config.rope.base));
    put("rope.dimension_count", size(config.rope.dimensions));
    match &config.rope.scaling {
        RopeScaling::Linear(factor) => {
            put("rope.scaling.type", Value::String("linear".to_owned()));
            put("rope.scaling.factor", Value::F32(*factor));
        }
        RopeScaling::Yarn(yarn) => {
            put("rope.scaling.type", Value::String("yarn".to_owned()));
            put("rope.scaling.factor", Value::F32(yarn.factor));
            put("rope.scaling.original_context_length", size(yarn.original_context));
            put("rope.scaling.yarn_beta_fast", Value::F32(yarn.beta_fast));
            put("rope.scaling.yarn_beta_slow", Value::F32(yarn.beta_slow));
        }
        // Factors of pairs are a tensor, and Llama 3's are written as such.
        RopeScaling::None | RopeScaling::PerPair(_) | RopeScaling::Llama3(_) => {}
    }
    put("vocab_size", size(config.vocab));
    if let Some(experts) = config.experts {
        put("expert_count", size(experts.count));
        put("expert_used_count", size(experts.used));
        put("expert_feed_forward_length", size(experts.feed_forward));
    }
    all
}
