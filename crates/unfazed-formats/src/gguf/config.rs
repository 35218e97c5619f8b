//! The model's shape from metadata, by the keys of the GGUF specification.

use super::metadata::Metadata;
use crate::config::{
    ExpertConfig, Family, FieldNames, ModelConfig, RopeConfig, RopePairing, RopeScaling, YarnScaling, bounds,
};
use crate::{BlockFormat, ByteSource, FormatError, TensorInfo};

/// Base of the frequencies where `rope.freq_base` is not given.
const ROPE_BASE_DEFAULT: f32 = 10_000.0;

/// The `expert_gating_func` that is a softmax.
const GATING_SOFTMAX: u64 = 1;

/// The tensor of factors that change the frequencies, one per pair.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";
const ARCHITECTURE: &str = "general.architecture";

/// Metadata with the architecture that its keys begin with.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn required(
        &self,
        key: &str,
        bounds: std::ops::RangeInclusive<usize>,
        reason: &str,
    ) -> Result<usize, FormatError> {
        self.metadata.required_size(&self.name(key), bounds, reason)
    }

    fn size(&self, key: &str, bounds: std::ops::RangeInclusive<usize>) -> Result<Option<usize>, FormatError> {
        self.metadata.size(&self.name(key), bounds)
    }
}

/// The shape of a model. `tensor` finds tensors by name; `factors` are those of `rope_freqs.weight`.
pub fn model_config<'t>(
    metadata: &Metadata,
    tensor: impl Fn(&str) -> Option<&'t TensorInfo>,
    factors: Option<Vec<f32>>,
) -> Result<ModelConfig, FormatError> {
    let architecture = metadata.required_string(ARCHITECTURE, "it says how to run the model")?;
    let family = match architecture {
        "llama" => Family::Llama,
        "qwen3" => Family::Qwen3,
        "qwen3moe" => Family::Qwen3Moe,
        _ => return Err(metadata.unsupported(ARCHITECTURE, "llama, qwen3 and qwen3moe are")),
    };
    let keys = Keys { metadata, architecture };
    refuse_what_is_not_computed(&keys, family)?;

    let hidden = keys.required("embedding_length", bounds::WIDTH, "it is the width of the model")?;
    let heads = keys.required("attention.head_count", bounds::HEADS, "attention needs it")?;
    let kv_heads = keys.size("attention.head_count_kv", bounds::HEADS)?.unwrap_or(heads);
    let head_dim = head_dim(&keys, hidden, heads)?;
    let feed_forward = match family {
        Family::Qwen3Moe => keys.size("feed_forward_length", 0..=*bounds::WIDTH.end())?.unwrap_or(0),
        Family::Llama | Family::Qwen3 => {
            keys.required("feed_forward_length", bounds::WIDTH, "the feed-forward parts need it")?
        }
    };
    let epsilon_key = keys.name("attention.layer_norm_rms_epsilon");
    let epsilon = metadata.f32(&epsilon_key)?;
    let config = ModelConfig {
        family,
        layers: keys.required("block_count", bounds::LAYERS, "it is the number of layers")?,
        hidden,
        heads,
        kv_heads,
        head_dim,
        feed_forward,
        experts: (family == Family::Qwen3Moe).then(|| experts(&keys, feed_forward)).transpose()?,
        vocab: vocab(&keys, tensor(EMBEDDING), hidden)?,
        context: keys.required("context_length", bounds::CONTEXT, "it bounds the positions")?,
        norm_epsilon: epsilon.ok_or_else(|| metadata.missing(&epsilon_key, "the norms need it"))?,
        rope: rope(&keys, family, head_dim, factors)?,
        tied_embeddings: tensor(OUTPUT).is_none(),
    };
    config.check(&FieldNames {
        file: metadata.file().to_owned(),
        kv_heads: keys.name("attention.head_count_kv"),
        experts_used: keys.name("expert_used_count"),
        norm_epsilon: epsilon_key,
        rope_base: keys.name("rope.freq_base"),
        rope_dimensions: keys.name("rope.dimension_count"),
        rope_scaling: keys.name("rope.scaling"),
    })?;
    Ok(config)
}

/// Keys that would change the result if they were passed over.
fn refuse_what_is_not_computed(keys: &Keys<'_>, family: Family) -> Result<(), FormatError> {
    let metadata = keys.metadata;
    if family != Family::Qwen3Moe && metadata.u64(&keys.name("expert_count"))?.is_some_and(|count| count > 0)
    {
        let supported = format!("no experts are for {}; qwen3moe has them", keys.architecture);
        return Err(metadata.unsupported(&keys.name("expert_count"), supported));
    }
    let shared = keys.name("expert_shared_count");
    if metadata.u64(&shared)?.is_some_and(|count| count > 0) {
        return Err(metadata.unsupported(&shared, "no shared experts are"));
    }
    let gating = keys.name("expert_gating_func");
    if metadata.u64(&gating)?.is_some_and(|gating| gating != GATING_SOFTMAX) {
        return Err(metadata.unsupported(&gating, "1 (softmax) is"));
    }
    let normalised = keys.name("expert_weights_norm");
    if metadata.bool(&normalised)? == Some(false) {
        return Err(metadata.unsupported(&normalised, "true is"));
    }
    let scale = keys.name("expert_weights_scale");
    if metadata.f32(&scale)?.is_some_and(|scale| scale != 1.0 && scale != 0.0) {
        return Err(metadata.unsupported(&scale, "1 is"));
    }
    Ok(())
}

/// Keys and values have the same width, which is a head's share of the model's unless it is given.
fn head_dim(keys: &Keys<'_>, hidden: usize, heads: usize) -> Result<usize, FormatError> {
    let key_length = keys.size("attention.key_length", bounds::HEAD_DIM)?;
    let head_dim = match key_length {
        Some(length) => length,
        None if hidden.is_multiple_of(heads) && bounds::HEAD_DIM.contains(&(hidden / heads)) => {
            hidden / heads
        }
        None => {
            let reason = format!("without attention.key_length it must share out embedding_length, {hidden}");
            return Err(keys.metadata.invalid(&keys.name("attention.head_count"), reason));
        }
    };
    match keys.size("attention.value_length", bounds::HEAD_DIM)? {
        Some(length) if length != head_dim => {
            let supported = format!("only the width of keys, {head_dim}, is");
            Err(keys.metadata.unsupported(&keys.name("attention.value_length"), supported))
        }
        _ => Ok(head_dim),
    }
}

fn experts(keys: &Keys<'_>, feed_forward: usize) -> Result<ExpertConfig, FormatError> {
    let count = keys.required("expert_count", bounds::EXPERTS, "the router needs it")?;
    let used = keys.required("expert_used_count", bounds::EXPERTS, "the router needs it")?;
    let width = match keys.size("expert_feed_forward_length", bounds::WIDTH)? {
        Some(width) => width,
        // Files from before the key existed: the dense width is that of the experts used together.
        None if feed_forward > 0 && feed_forward.is_multiple_of(used) => feed_forward / used,
        None => {
            let key = keys.name("expert_feed_forward_length");
            return Err(keys.metadata.missing(&key, "it is the width of an expert"));
        }
    };
    Ok(ExpertConfig { count, used, feed_forward: width, normalised: true })
}

/// The embedding table decides; what metadata say must agree with it.
fn vocab(keys: &Keys<'_>, embedding: Option<&TensorInfo>, hidden: usize) -> Result<usize, FormatError> {
    let metadata = keys.metadata;
    let embedding =
        embedding.ok_or_else(|| metadata.missing(&format!("tensor {EMBEDDING}"), "every model has it"))?;
    let rows = match embedding.shape.as_slice() {
        [rows, columns] if *columns == hidden as u64 => usize::try_from(*rows).ok(),
        _ => None,
    };
    let Some(rows) = rows.filter(|rows| bounds::VOCAB.contains(rows)) else {
        return Err(FormatError::invalid(
            metadata.file(),
            format_args!("shape of tensor {EMBEDDING}"),
            format_args!("{:?}", embedding.shape),
            format!("it must be [1 to {}, {hidden}]", bounds::VOCAB.end()),
        ));
    };
    match keys.size("vocab_size", bounds::VOCAB)? {
        Some(size) if size != rows => {
            let reason = format!("tensor {EMBEDDING} has {rows} rows");
            Err(metadata.invalid(&keys.name("vocab_size"), reason))
        }
        _ => Ok(rows),
    }
}

fn rope(
    keys: &Keys<'_>,
    family: Family,
    head_dim: usize,
    factors: Option<Vec<f32>>,
) -> Result<RopeConfig, FormatError> {
    let metadata = keys.metadata;
    let type_key = keys.name("rope.scaling.type");
    let factor_key = keys.name("rope.scaling.factor");
    let scaling = match (metadata.string(&type_key)?, factors) {
        (None | Some("none"), None) => RopeScaling::None,
        (None | Some("none"), Some(factors)) => RopeScaling::PerPair(factors),
        (Some("linear"), None) => {
            let factor = metadata.f32(&factor_key)?;
            RopeScaling::Linear(
                factor.ok_or_else(|| metadata.missing(&factor_key, "linear scaling needs it"))?,
            )
        }
        (Some("yarn"), None) => yarn(keys, &factor_key)?,
        (Some("linear" | "yarn"), Some(_)) => {
            return Err(metadata.unsupported(&type_key, "together with rope_freqs.weight nothing is"));
        }
        (Some(_), _) => return Err(metadata.unsupported(&type_key, "none, linear and yarn are")),
    };
    Ok(RopeConfig {
        base: metadata.f32(&keys.name("rope.freq_base"))?.unwrap_or(ROPE_BASE_DEFAULT),
        dimensions: keys.size("rope.dimension_count", bounds::HEAD_DIM)?.unwrap_or(head_dim),
        pairing: if family == Family::Llama { RopePairing::Neighbours } else { RopePairing::Halves },
        scaling,
    })
}

fn yarn(keys: &Keys<'_>, factor_key: &str) -> Result<RopeScaling, FormatError> {
    let metadata = keys.metadata;
    for key in ["rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"].map(|key| keys.name(key)) {
        if metadata.f32(&key)?.is_some_and(|factor| factor != 1.0) {
            return Err(metadata.unsupported(&key, "1 is"));
        }
    }
    let multiplier = keys.name("rope.scaling.yarn_log_multiplier");
    if metadata.get(&multiplier).is_some() {
        return Err(metadata.unsupported(&multiplier, "nothing is"));
    }
    let factor = metadata.f32(factor_key)?.ok_or_else(|| metadata.missing(factor_key, "YaRN needs it"))?;
    let original = match keys.size("rope.scaling.original_context_length", bounds::CONTEXT)? {
        Some(original) => original,
        None => keys.required("context_length", bounds::CONTEXT, "YaRN needs it")?,
    };
    let beta = |key| metadata.f32(&keys.name(key));
    Ok(RopeScaling::Yarn(YarnScaling {
        beta_fast: beta("rope.scaling.yarn_beta_fast")?.unwrap_or(YarnScaling::BETA_FAST),
        beta_slow: beta("rope.scaling.yarn_beta_slow")?.unwrap_or(YarnScaling::BETA_SLOW),
        ..YarnScaling::new(factor, original)
    }))
}

/// The factors of `rope_freqs.weight`, one per pair.
pub(crate) fn rope_factors(source: &dyn ByteSource, tensor: &TensorInfo) -> Result<Vec<f32>, FormatError> {
    let field = format_args!("tensor {}", tensor.name);
    let pairs_max = *bounds::HEAD_DIM.end() as u64 / 2;
    if tensor.format != BlockFormat::F32 || tensor.shape.len() != 1 || tensor.elements() > pairs_max {
        let value = format_args!("{:?} {:?}", tensor.format, tensor.shape);
        let reason = format!("it must be F32 with one factor per pair, at most {pairs_max}");
        return Err(FormatError::invalid(source.name(), field, value, reason));
    }
    let mut bytes = vec![0; tensor.extent.len as usize];
    let result = source.read_exact_at(&mut bytes, tensor.extent.offset);
    result.map_err(|error| FormatError::io(source.name(), field, error))?;
    let (factors, _) = bytes.as_chunks::<4>();
    Ok(factors.iter().map(|factor| f32::from_le_bytes(*factor)).collect())
}
