//! What the plan may do with memory: how much there is, how many experts are kept, how keys and values are kept.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use unfazed_formats::{KvType, KvTypes};
use unfazed_plan::{Bytes, ExpertCache, Settings, StreamExperts};
use unfazed_store::experts::PolicyKind;

use super::words;

/// A value, or `auto`, which leaves it to the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice<T>(pub(crate) Option<T>);

impl<T> Choice<T> {
    /// Reads `auto`, or what `parse` reads.
    pub(crate) fn parse(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Choice<T>, String> {
        match text {
            "auto" => Ok(Choice(None)),
            text => parse(text).map(|value| Choice(Some(value))),
        }
    }
}

/// The value, if a flag says one.
pub(crate) fn chosen<T: Copy>(flag: &Option<Choice<T>>) -> Option<T> {
    flag.as_ref().and_then(|choice| choice.0)
}

/// Memory, and what of a model is in it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryFlags {
    /// All memory that the engine may use, as 24G or 24GiB; auto: what is free under all limits [default: auto]
    #[arg(long, value_name = "BYTES|auto", value_parser = parse_memory, aliases = words::aliases("memory"))]
    memory: Option<Choice<Bytes>>,

    /// Experts kept in memory, as a number of slots in all layers together or as a size (6144, 8GiB); auto: as many as fit
    /// [default: auto]
    #[arg(long, value_name = "N|SIZE|auto", value_parser = parse_expert_cache, aliases = words::aliases("expert-cache"))]
    expert_cache: Option<Choice<ExpertCache>>,

    /// Read experts from disk when they are needed: auto: if not all fit into memory; on; off
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = stream_experts(),
          aliases = words::aliases("stream-experts"))]
    stream_experts: StreamExperts,

    /// Refuse a setting that does not fit, instead of changing it with a line that says so
    #[arg(long)]
    strict: bool,
}

impl MemoryFlags {
    /// Settings of memory alone.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            memory: chosen(&self.memory),
            expert_cache: chosen(&self.expert_cache),
            stream_experts: self.stream_experts,
            strict: self.strict,
            ..Settings::default()
        }
    }
}

/// Experts that are read when they are needed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct ExpertFlags {
    /// Which expert leaves memory when another one comes, where experts are read when they are needed
    #[arg(long, value_name = "POLICY", default_value_t = PolicyKind::default(), value_parser = policies())]
    pub(crate) expert_policy: PolicyKind,

    /// Write which experts each step uses to a file, which `unfazed cache-replay` tries policies and sizes on
    #[arg(long, value_name = "FILE")]
    pub(crate) expert_trace: Option<PathBuf>,
}

fn policies() -> impl TypedValueParser<Value = PolicyKind> {
    PossibleValuesParser::new(PolicyKind::ALL.map(PolicyKind::name))
        .try_map(|name| name.parse::<PolicyKind>())
}

/// Flags of the KV cache.
#[derive(Debug, Args)]
pub(crate) struct CacheFlags {
    /// What keys and values are kept as: smaller types hold longer contexts, at some loss; one for both or K,V: f32, f16,
    /// bf16, q8_0, q4_0 [default: f16]
    #[arg(long, value_name = "K[,V]", value_parser = parse_kv_types, aliases = words::aliases("kv-type"))]
    kv_type: Option<KvTypes>,

    /// What keys are kept as (also -ctk) [default: as --kv-type]
    #[arg(long, value_name = "TYPE", value_parser = kv_type())]
    cache_type_k: Option<KvType>,

    /// What values are kept as (also -ctv) [default: as --kv-type]
    #[arg(long, value_name = "TYPE", value_parser = kv_type())]
    cache_type_v: Option<KvType>,
}

impl CacheFlags {
    /// What keys and values are kept as.
    pub(crate) fn types(&self) -> KvTypes {
        let both = self.kv_type.unwrap_or_default();
        KvTypes {
            keys: self.cache_type_k.unwrap_or(both.keys),
            values: self.cache_type_v.unwrap_or(both.values),
        }
    }
}

/// Takes a type of keys or values by name, and names all of them in help and errors.
fn kv_type() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new(KvType::ALL.map(KvType::name)).try_map(|name| name.parse::<KvType>())
}

fn parse_kv_types(text: &str) -> Result<KvTypes, String> {
    let kind = |name: &str| name.parse::<KvType>().map_err(|error| format!("{name:?} is {error}"));
    match text.split_once(',') {
        Some((keys, values)) => Ok(KvTypes { keys: kind(keys)?, values: kind(values)? }),
        None => Ok(KvTypes::both(kind(text)?)),
    }
}

fn parse_memory(text: &str) -> Result<Choice<Bytes>, String> {
    Choice::parse(text, |text| match text.parse() {
        // A gigabyte count without its unit is a mistake that would end in a refusal for want of memory.
        Ok(Bytes(0)) => Err("no model fits into nothing: give a size such as 24GiB, or auto".to_owned()),
        Ok(Bytes(bytes)) if bytes < 1 << 20 => {
            Err(format!("{bytes} bytes hold no model: give a unit, as in {text}GiB"))
        }
        parsed => parsed.map_err(|error| format!("{error}, and not auto")),
    })
}

fn parse_expert_cache(text: &str) -> Result<Choice<ExpertCache>, String> {
    Choice::parse(text, |text| {
        if let Ok(slots) = text.parse::<usize>() {
            return Ok(ExpertCache::Slots(slots));
        }
        let size = text.parse().map(ExpertCache::Bytes);
        size.map_err(|_| "not a number of slots such as 6144, a size such as 8GiB, or auto".to_owned())
    })
}

fn stream_experts() -> impl TypedValueParser<Value = StreamExperts> {
    PossibleValuesParser::new(StreamExperts::ALL.map(StreamExperts::name)).try_map(|name| {
        StreamExperts::ALL.into_iter().find(|choice| choice.name() == name).ok_or("no such choice")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_its_unit_is_refused_with_what_was_meant() {
        assert_eq!(parse_memory("24GiB"), Ok(Choice(Some(Bytes(24 << 30)))));
        assert_eq!(parse_memory("auto"), Ok(Choice(None)));
        assert!(parse_memory("24").is_err_and(|error| error.contains("24GiB")));
        assert!(parse_memory("0").is_err_and(|error| error.contains("24GiB")));
        assert!(parse_memory("lots").is_err_and(|error| error.contains("24G")));
    }

    #[test]
    fn a_cache_is_slots_or_a_size() {
        assert_eq!(parse_expert_cache("64"), Ok(Choice(Some(ExpertCache::Slots(64)))));
        assert_eq!(parse_expert_cache("64M"), Ok(Choice(Some(ExpertCache::Bytes(Bytes(64 << 20))))));
        assert!(parse_expert_cache("64 slots").is_err());
    }

    #[test]
    fn types_of_keys_and_values_come_alone_or_in_pairs() {
        let types = |keys, values| Ok(KvTypes { keys, values });
        assert_eq!(parse_kv_types("q8_0"), types(KvType::Q8_0, KvType::Q8_0));
        assert_eq!(parse_kv_types("f16,q4_0"), types(KvType::F16, KvType::Q4_0));
        assert!(parse_kv_types("f16,q3_k").is_err_and(|error| error.contains("q3_k")));
    }
}
