//! A tiny model as a Hugging Face directory.

use std::collections::HashMap;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use unfazed_formats::BlockFormat;
use unfazed_formats::ModelConfig;
use unfazed_formats::config::{Family, RopeScaling};

use crate::quantise::quantise;
use crate::tensors::tensors;
use crate::tiny::TinyModel;
use crate::{TestkitError, vocabulary};

/// A tensor by its Hugging Face name.
struct Named {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

pub(crate) fn write(
    model: &TinyModel,
    folder: &Path,
    format: BlockFormat,
    shards: usize,
) -> Result<(), TestkitError> {
    let dtype = match format {
        BlockFormat::F32 => Dtype::F32,
        BlockFormat::F16 => Dtype::F16,
        BlockFormat::BF16 => Dtype::BF16,
        other => {
            let reason = "safetensors files are written in F32, F16 and BF16";
            return Err(TestkitError::request("format", &format!("{other:?}"), reason));
        }
    };
    put_json(folder, "config.json", &config_json(&model.config)?)?;
    put_json(folder, "tokenizer.json", &vocabulary::tiny_tokenizer_json())?;
    let tokenizer_config = json!({"tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": vocabulary::SPECIAL[0], "eos_token": vocabulary::SPECIAL[2], "clean_up_tokenization_spaces": false,
        "chat_template": vocabulary::CHAT_TEMPLATE});
    put_json(folder, "tokenizer_config.json", &tokenizer_config)?;
    put_json(
        folder,
        "generation_config.json",
        &json!({"bos_token_id": 0, "eos_token_id": [vocabulary::EOS]}),
    )?;

    let named = named_tensors(model, format);
    if shards <= 1 {
        return put_shard(folder, "model.safetensors", dtype, &named);
    }
    let mut weight_map = serde_json::Map::new();
    for (i, part) in named.chunks(named.len().div_ceil(shards)).enumerate() {
        let file = format!("model-{:05}-of-{shards:05}.safetensors", i + 1);
        weight_map.extend(part.iter().map(|tensor| (tensor.name.clone(), json!(file))));
        put_shard(folder, &file, dtype, part)?;
    }
    put_json(folder, "model.safetensors.index.json", &json!({"metadata": {}, "weight_map": weight_map}))
}

fn put_json(folder: &Path, name: &str, value: &Value) -> Result<(), TestkitError> {
    let path = folder.join(name);
    std::fs::write(&path, value.to_string()).map_err(|error| TestkitError::io(&path, error))
}

fn put_shard(folder: &Path, name: &str, dtype: Dtype, tensors: &[Named]) -> Result<(), TestkitError> {
    let path = folder.join(name);
    let failed = |error: safetensors::SafeTensorError| {
        TestkitError::io(&path, std::io::Error::other(error.to_string()))
    };
    let views = tensors
        .iter()
        .map(|tensor| {
            let view = TensorView::new(dtype, tensor.shape.clone(), &tensor.bytes).map_err(failed)?;
            Ok((tensor.name.as_str(), view))
        })
        .collect::<Result<Vec<_>, TestkitError>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), &path).map_err(failed)
}

fn named_tensors(model: &TinyModel, format: BlockFormat) -> Vec<Named> {
    let mut all = Vec::new();
    for tensor in tensors(&model.config) {
        let weights = model.weights(&tensor);
        // Blocks of floats have one weight: no row can fail to be whole.
        let bytes = quantise(format, &weights).unwrap_or_default();
        match tensor.shape.as_slice() {
            [experts, rows, columns] => {
                for (expert, bytes) in bytes.chunks(bytes.len() / experts).enumerate() {
                    let name = huggingface_name(&tensor.name, Some(expert));
                    all.push(Named { name, shape: vec![*rows, *columns], bytes: bytes.to_vec() });
                }
            }
            shape => {
                all.push(Named { name: huggingface_name(&tensor.name, None), shape: shape.to_vec(), bytes })
            }
        }
    }
    all
}

/// The Hugging Face name of a tensor (of one expert of a stack) by its GGUF name.
fn huggingface_name(name: &str, expert: Option<usize>) -> String {
    let stem = name.trim_end_matches(".weight");
    let (layer, part) = match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) => (format!("model.layers.{layer}."), part),
        None => (String::new(), stem),
    };
    let expert = expert.map(|expert| format!("mlp.experts.{expert}.")).unwrap_or_default();
    let part = match part {
        "token_embd" => "model.embed_tokens",
        "output_norm" => "model.norm",
        "output" => "lm_head",
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate_inp" => "mlp.gate",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "ffn_gate_exps" => "gate_proj",
        "ffn_up_exps" => "up_proj",
        "ffn_down_exps" => "down_proj",
        other => other,
    };
    format!("{layer}{expert}{part}.weight")
}

fn config_json(config: &ModelConfig) -> Result<Value, TestkitError> {
    let (architecture, model_type) = match config.family {
        Family::Llama => ("LlamaForCausalLM", "llama"),
        Family::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
        Family::Qwen3Moe => ("Qwen3MoeForCausalLM", "qwen3_moe"),
    };
    let rope_scaling = match &config.rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear(factor) => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3(llama3) => json!({
            "rope_type": "llama3", "factor": llama3.factor, "low_freq_factor": llama3.low_frequency_factor,
            "high_freq_factor": llama3.high_frequency_factor,
            "original_max_position_embeddings": llama3.original_context,
        }),
        RopeScaling::Yarn(yarn) => {
            let mut value = json!({
                "rope_type": "yarn", "factor": yarn.factor, "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow, "original_max_position_embeddings": yarn.original_context,
            });
            if let (Some(amplitude), Some(fields)) = (yarn.amplitude, value.as_object_mut()) {
                fields.insert("attention_factor".to_owned(), json!(amplitude));
            }
            value
        }
        RopeScaling::PerPair(_) => {
            let reason = "config.json has no list of factors; write GGUF";
            return Err(TestkitError::request("scaling of the frequencies", &"per pair", reason));
        }
    };
    let mut value = json!({
        "architectures": [architecture], "model_type": model_type, "vocab_size": config.vocab,
        "hidden_size": config.hidden, "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim, "hidden_act": "silu",
        "max_position_embeddings": config.context, "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope.base, "rope_scaling": rope_scaling,
        "tie_word_embeddings": config.tied_embeddings, "attention_bias": false, "use_sliding_window": false,
        "bos_token_id": 0, "eos_token_id": vocabulary::EOS,
    });
    if let (Some(experts), Some(fields)) = (config.experts, value.as_object_mut()) {
        fields.insert("num_experts".to_owned(), json!(experts.count));
        fields.insert("num_experts_per_tok".to_owned(), json!(experts.used));
        fields.insert("moe_intermediate_size".to_owned(), json!(experts.feed_forward));
        fields.insert("norm_topk_prob".to_owned(), json!(experts.normalised));
        fields.insert("decoder_sparse_step".to_owned(), json!(1));
        fields.insert("mlp_only_layers".to_owned(), json!([]));
    }
    Ok(value)
}
