//! The model's shape from `config.json`, with the defaults of the `transformers` library.

use serde_json::Value;

use super::fields::Fields;
use super::rope::rope;
use crate::FormatError;
use crate::config::{ExpertConfig, Family, FieldNames, ModelConfig, bounds};

/// `rms_norm_eps` where it is not given.
const NORM_EPSILON_DEFAULT: f32 = 1e-6;

/// Width of a head in Qwen3 where it is not given.
const QWEN3_HEAD_DIM_DEFAULT: usize = 128;

/// The shape of a model. `has_output` tells whether `lm_head.weight` is in the files.
pub(crate) fn model_config(fields: &Fields, has_output: bool) -> Result<ModelConfig, FormatError> {
    let family = family(fields)?;
    refuse_what_is_not_computed(fields, family)?;
    let hidden = fields.required_size("hidden_size", bounds::WIDTH)?;
    let heads = fields.required_size("num_attention_heads", bounds::HEADS)?;
    let head_dim = head_dim(fields, family, hidden, heads)?;
    let feed_forward = match family {
        Family::Qwen3Moe => fields.size("intermediate_size", 0..=*bounds::WIDTH.end())?.unwrap_or(0),
        Family::Llama | Family::Qwen3 => fields.required_size("intermediate_size", bounds::WIDTH)?,
    };
    let rope = rope(fields, head_dim)?;
    let config = ModelConfig {
        family,
        layers: fields.required_size("num_hidden_layers", bounds::LAYERS)?,
        hidden,
        heads,
        kv_heads: match family {
            Family::Llama => fields.size("num_key_value_heads", bounds::HEADS)?.unwrap_or(heads),
            Family::Qwen3 | Family::Qwen3Moe => fields.required_size("num_key_value_heads", bounds::HEADS)?,
        },
        head_dim,
        feed_forward,
        experts: (family == Family::Qwen3Moe).then(|| experts(fields)).transpose()?,
        vocab: fields.required_size("vocab_size", bounds::VOCAB)?,
        context: fields.required_size("max_position_embeddings", bounds::CONTEXT)?,
        norm_epsilon: fields.f32("rms_norm_eps")?.unwrap_or(NORM_EPSILON_DEFAULT),
        rope,
        tied_embeddings: tied(fields, has_output)?,
    };
    config.check(&FieldNames {
        file: fields.file().to_owned(),
        kv_heads: "num_key_value_heads".to_owned(),
        experts_used: "num_experts_per_tok".to_owned(),
        norm_epsilon: "rms_norm_eps".to_owned(),
        rope_base: "rope_theta".to_owned(),
        rope_dimensions: "head_dim".to_owned(),
        rope_scaling: "rope_scaling".to_owned(),
    })?;
    Ok(config)
}

fn family(fields: &Fields) -> Result<Family, FormatError> {
    const NAME: &str = "architectures";
    let value = fields.get(NAME).ok_or_else(|| fields.missing(NAME, "it says how to run the model"))?;
    let architecture = match value.as_array().map(Vec::as_slice) {
        Some([Value::String(architecture)]) => architecture.as_str(),
        _ => return Err(fields.invalid(NAME, "it must be a list of one name")),
    };
    match architecture {
        "LlamaForCausalLM" => Ok(Family::Llama),
        "Qwen3ForCausalLM" => Ok(Family::Qwen3),
        "Qwen3MoeForCausalLM" => Ok(Family::Qwen3Moe),
        _ => {
            let supported = "LlamaForCausalLM, Qwen3ForCausalLM and Qwen3MoeForCausalLM are";
            Err(fields.unsupported(NAME, supported))
        }
    }
}

/// Fields that would change the result if they were passed over.
fn refuse_what_is_not_computed(fields: &Fields, family: Family) -> Result<(), FormatError> {
    for name in ["attention_bias", "mlp_bias", "use_sliding_window"] {
        if fields.bool(name)? == Some(true) {
            return Err(fields.unsupported(name, "false is"));
        }
    }
    if fields.string("hidden_act")?.is_some_and(|activation| activation != "silu") {
        return Err(fields.unsupported("hidden_act", "silu is"));
    }
    for name in ["quantization_config", "quantization"] {
        if fields.get(name).is_some() {
            return Err(
                fields.unsupported(name, "weights in BF16, F16 and F32 are; quantised models as GGUF")
            );
        }
    }
    let full = |kind: &Value| kind.as_str() == Some("full_attention");
    match fields.get("layer_types") {
        Some(Value::Array(kinds)) if kinds.iter().all(full) => {}
        None => {}
        Some(_) => return Err(fields.unsupported("layer_types", "full_attention in every layer is")),
    }
    if family == Family::Qwen3Moe {
        match fields.get("mlp_only_layers") {
            Some(Value::Array(layers)) if layers.is_empty() => {}
            None => {}
            Some(_) => return Err(fields.unsupported("mlp_only_layers", "an empty list is")),
        }
        if fields.size("decoder_sparse_step", 0..=*bounds::LAYERS.end())?.is_some_and(|step| step != 1) {
            return Err(fields.unsupported("decoder_sparse_step", "1 is: experts in every layer"));
        }
    }
    Ok(())
}

fn head_dim(fields: &Fields, family: Family, hidden: usize, heads: usize) -> Result<usize, FormatError> {
    if let Some(head_dim) = fields.size("head_dim", bounds::HEAD_DIM)? {
        return Ok(head_dim);
    }
    if family == Family::Qwen3 {
        return Ok(QWEN3_HEAD_DIM_DEFAULT);
    }
    let shared = hidden.is_multiple_of(heads).then_some(hidden / heads);
    shared.filter(|head_dim| bounds::HEAD_DIM.contains(head_dim)).ok_or_else(|| {
        fields.invalid(
            "num_attention_heads",
            format!("without head_dim it must share out hidden_size, {hidden}"),
        )
    })
}

fn experts(fields: &Fields) -> Result<ExpertConfig, FormatError> {
    Ok(ExpertConfig {
        count: fields.required_size("num_experts", bounds::EXPERTS)?,
        used: fields.required_size("num_experts_per_tok", bounds::EXPERTS)?,
        feed_forward: fields.required_size("moe_intermediate_size", bounds::WIDTH)?,
        normalised: fields.bool("norm_topk_prob")?.unwrap_or(false),
    })
}

/// The library's default is untied in all three families, yet writers leave the field or the tensor out. What is
/// refused is a file that says it has an output table of its own and has none.
fn tied(fields: &Fields, has_output: bool) -> Result<bool, FormatError> {
    match fields.bool("tie_word_embeddings")? {
        Some(false) if !has_output => {
            Err(fields.invalid("tie_word_embeddings", "there is no tensor lm_head.weight in the files"))
        }
        Some(tied) => Ok(tied),
        None => Ok(!has_output),
    }
}
