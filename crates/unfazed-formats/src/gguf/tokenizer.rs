//! `tokenizer.ggml.*`.

use super::metadata::Metadata;
use crate::FormatError;
use crate::checkpoint::GgufTokenizer;

const TOKENS: &str = "tokenizer.ggml.tokens";

/// What the tokenizer is built from. `vocab` is the number of rows of the embedding: there may not be more
/// tokens than that.
pub fn tokenizer(metadata: &Metadata, vocab: usize) -> Result<GgufTokenizer, FormatError> {
    let model =
        metadata.required_string("tokenizer.ggml.model", "it says which kind of tokenizer to build")?;
    let tokens = metadata.strings(TOKENS)?.ok_or_else(|| metadata.missing(TOKENS, "it is the vocabulary"))?;
    if tokens.is_empty() || tokens.len() > vocab {
        return Err(metadata.invalid(TOKENS, format!("the embedding has {vocab} rows")));
    }
    let id =
        |name: &str| -> Result<Option<u32>, FormatError> {
            let key = format!("tokenizer.ggml.{name}");
            match metadata.u64(&key)? {
                Some(id) if id >= tokens.len() as u64 => Err(metadata
                    .invalid(&key, format!("it must be below the number of tokens, {}", tokens.len()))),
                found => Ok(found.map(|id| id as u32)),
            }
        };
    let flag = |name: &str| metadata.bool(&format!("tokenizer.ggml.{name}"));
    let scores = per_token("scores", metadata, Metadata::f32s, tokens.len())?;
    let types = per_token("token_type", metadata, Metadata::i32s, tokens.len())?;
    Ok(GgufTokenizer {
        file: metadata.file().to_owned(),
        model: model.to_owned(),
        pre: metadata.string("tokenizer.ggml.pre")?.map(str::to_owned),
        tokens: tokens.to_vec(),
        scores,
        types,
        merges: metadata.strings("tokenizer.ggml.merges")?.unwrap_or_default().to_vec(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        unknown: id("unknown_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
    })
}

/// An array with one element per token, or none at all.
fn per_token<'m, T: Clone + 'm>(
    name: &str,
    metadata: &'m Metadata,
    get: impl Fn(&'m Metadata, &str) -> Result<Option<&'m [T]>, FormatError>,
    tokens: usize,
) -> Result<Vec<T>, FormatError> {
    let key = format!("tokenizer.ggml.{name}");
    let values = get(metadata, &key)?.unwrap_or_default();
    if !values.is_empty() && values.len() != tokens {
        return Err(metadata.invalid(&key, format!("there are {tokens} tokens")));
    }
    Ok(values.to_vec())
}
