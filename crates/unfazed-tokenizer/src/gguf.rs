//! Tokenizers from GGUF metadata (`tokenizer.ggml.*`).

use std::collections::{HashMap, HashSet};

use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};
use unfazed_formats::checkpoint::GgufTokenizer;

use crate::added::{AddedToken, AddedTokens};
use crate::encoder::{Encoder, Pipeline};
use crate::sentencepiece::{Entry, SPACE, SentencePiece};
use crate::tokenizer::Parts;
use crate::vocabulary::{Leading, Piece, Vocabulary, too_many};
use crate::{TokenizerError, byte_level, end_tokens, pretokenizer};

/// Kinds of tokens, as `tokenizer.ggml.token_type` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";

/// Builds a tokenizer from GGUF metadata.
pub(crate) fn build(metadata: &GgufTokenizer, vocab: usize) -> Result<Parts, TokenizerError> {
    if metadata.tokens.len() > vocab {
        return Err(too_many(&metadata.file, metadata.tokens.len() as u64, vocab));
    }
    let kinds = kinds(metadata)?;
    match metadata.model.as_str() {
        "gpt2" => byte_level_bpe(metadata, &kinds, vocab),
        "llama" => sentencepiece_bpe(metadata, &kinds, vocab),
        other => Err(TokenizerError::Unsupported {
            file: metadata.file.clone(),
            field: "tokenizer.ggml.model",
            value: other.to_owned(),
            supported: "gpt2, llama",
        }),
    }
}

fn invalid(metadata: &GgufTokenizer, field: &'static str, what: String) -> TokenizerError {
    TokenizerError::Invalid { file: metadata.file.clone(), field, what }
}

/// The kind of each token. Converters got types wrong, so tokens that are known to end turns steer the model
/// whatever their type says, and so do those that the file names as BOS, EOS or end of turn and that look it.
fn kinds(metadata: &GgufTokenizer) -> Result<Vec<Kind>, TokenizerError> {
    let field = "tokenizer.ggml.token_type";
    let count = metadata.tokens.len();
    if !metadata.types.is_empty() && metadata.types.len() != count {
        let what = format!("{} types for {count} tokens", metadata.types.len());
        return Err(invalid(metadata, field, what));
    }
    let mut kinds = Vec::with_capacity(count);
    for (token, text) in metadata.tokens.iter().enumerate() {
        let kind = match metadata.types.get(token) {
            None | Some(0 | 1) => Kind::Normal,
            Some(2) => Kind::Unknown,
            Some(3) => Kind::Control,
            Some(4) => Kind::UserDefined,
            Some(5) => Kind::Unused,
            Some(6) => Kind::Byte,
            Some(other) => {
                return Err(invalid(
                    metadata,
                    field,
                    format!("token {token} has type {other}, known are 0 to 6"),
                ));
            }
        };
        kinds.push(if end_tokens::is_well_known(text) { Kind::Control } else { kind });
    }
    for (field, token) in [
        ("tokenizer.ggml.bos_token_id", metadata.bos),
        ("tokenizer.ggml.eos_token_id", metadata.eos),
        ("tokenizer.ggml.eot_token_id", metadata.eot),
        (UNKNOWN, metadata.unknown),
    ] {
        let Some(token) = token else { continue };
        let kind = usize::try_from(token).ok().and_then(|t| kinds.get_mut(t));
        let kind =
            kind.ok_or_else(|| invalid(metadata, field, format!("{token}, but there are {count} tokens")))?;
        let text = metadata.tokens.get(token as usize).map_or("", String::as_str);
        if *kind == Kind::Normal && field != UNKNOWN && looks_like_control(text) {
            *kind = Kind::Control;
        }
    }
    Ok(kinds)
}

/// `<s>` or `[EOS]`, and no ordinary piece that a file names by mistake.
fn looks_like_control(text: &str) -> bool {
    text.len() > 2
        && (text.starts_with('<') && text.ends_with('>') || text.starts_with('[') && text.ends_with(']'))
}

fn is_special(kind: Kind) -> bool {
    matches!(kind, Kind::Control | Kind::Unknown)
}

/// Tokens with their texts and kinds.
fn tokens<'a>(metadata: &'a GgufTokenizer, kinds: &'a [Kind]) -> impl Iterator<Item = (u32, &'a str, Kind)> {
    (0u32..).zip(&metadata.tokens).zip(kinds).map(|((token, text), kind)| (token, text.as_str(), *kind))
}

/// Control, unknown and user-defined tokens are found in text as they stand. Of several with the same text the
/// first counts.
fn added_tokens(metadata: &GgufTokenizer, kinds: &[Kind]) -> Result<AddedTokens, TokenizerError> {
    let mut seen = HashSet::new();
    let added = tokens(metadata, kinds)
        .filter(|(_, _, kind)| is_special(*kind) || *kind == Kind::UserDefined)
        .filter(|(_, text, _)| seen.insert(*text))
        .map(|(token, text, kind)| AddedToken::new(token, text, is_special(kind)));
    AddedTokens::new(&metadata.file, added)
}

fn byte_level_bpe(metadata: &GgufTokenizer, kinds: &[Kind], vocab: usize) -> Result<Parts, TokenizerError> {
    let name = metadata.pre.as_deref().unwrap_or("default");
    let named = pretokenizer::named(name).ok_or_else(|| TokenizerError::Unsupported {
        file: metadata.file.clone(),
        field: "tokenizer.ggml.pre",
        value: name.to_owned(),
        supported: pretokenizer::SUPPORTED,
    })?;
    let pre_tokenizer =
        named.build().map_err(|error| invalid(metadata, "tokenizer.ggml.pre", error.to_string()))?;
    let pieces = tokens(metadata, kinds).map(|(token, text, kind)| {
        let bytes = match kind {
            Kind::Normal | Kind::Unused | Kind::Byte => byte_level::bytes_of(text),
            Kind::Control | Kind::Unknown | Kind::UserDefined => text.as_bytes().to_vec(),
        };
        (token, Piece { bytes, special: is_special(kind) })
    });
    let pipeline = Pipeline {
        normalizer: None,
        normalized: AddedTokens::default(),
        pre_tokenizer: Some(pre_tokenizer),
        model: bpe(metadata, kinds, named.ignore_merges)?.into(),
    };
    Ok(Parts {
        vocabulary: Vocabulary::new(&metadata.file, vocab, pieces, Leading::Same)?,
        added: added_tokens(metadata, kinds)?,
        encoder: Encoder::Pipeline(Box::new(pipeline)),
        bos: metadata.bos,
        bos_text: None,
        eos: metadata.eos,
        eos_text: None,
        ends: metadata.eot.into_iter().collect(),
        add_bos: metadata.add_bos.unwrap_or(named.add_bos),
    })
}

fn bpe(metadata: &GgufTokenizer, kinds: &[Kind], ignore_merges: bool) -> Result<BPE, TokenizerError> {
    let field = "tokenizer.ggml.merges";
    let mut vocabulary = Vocab::default();
    // Text must not become a special token by way of a whole word that happens to be its text.
    for (token, text, _) in tokens(metadata, kinds).filter(|(_, _, kind)| !is_special(*kind)) {
        vocabulary.entry(text.to_owned()).or_insert(token);
    }
    let mut merges = Merges::with_capacity(metadata.merges.len());
    for (rank, merge) in metadata.merges.iter().enumerate() {
        // The first character may be a space itself.
        let skip = merge.chars().next().map_or(0, char::len_utf8);
        let at = merge.get(skip..).and_then(|rest| rest.find(' ')).map(|at| at + skip);
        let halves = at.and_then(|at| Some((merge.get(..at)?, merge.get(at + 1..)?)));
        let Some((left, right)) = halves else {
            return Err(invalid(metadata, field, format!("merge {rank} is {merge:?}, expected two pieces")));
        };
        for piece in [left, right, &format!("{left}{right}")] {
            if !vocabulary.contains_key(piece) {
                let what = format!("merge {rank} is {merge:?}, but {piece:?} is no token");
                return Err(invalid(metadata, field, what));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    BpeBuilder::new()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(ignore_merges)
        .build()
        .map_err(|error| invalid(metadata, field, error.to_string()))
}

fn sentencepiece_bpe(
    metadata: &GgufTokenizer,
    kinds: &[Kind],
    vocab: usize,
) -> Result<Parts, TokenizerError> {
    if metadata.scores.len() != metadata.tokens.len() {
        let what = format!("{} scores for {} tokens", metadata.scores.len(), metadata.tokens.len());
        return Err(invalid(metadata, "tokenizer.ggml.scores", what));
    }
    let mut pieces = HashMap::new();
    let mut bytes: [Option<u32>; 256] = [None; 256];
    let mut table = Vec::with_capacity(metadata.tokens.len());
    for ((token, text, kind), &score) in tokens(metadata, kinds).zip(&metadata.scores) {
        let byte = byte_piece(text).filter(|_| kind == Kind::Byte || metadata.types.is_empty());
        let stands_for = match (byte, kind) {
            (Some(byte), _) => {
                if let Some(slot) = bytes.get_mut(usize::from(byte)) {
                    *slot = slot.or(Some(token));
                }
                vec![byte]
            }
            (None, Kind::Normal | Kind::UserDefined | Kind::Unused) => {
                let unused = kind == Kind::Unused;
                pieces.entry(text.to_owned()).or_insert(Entry { token, score, unused });
                text.replace(SPACE, " ").into_bytes()
            }
            (None, _) => text.as_bytes().to_vec(),
        };
        table.push((token, Piece { bytes: stands_for, special: is_special(kind) }));
    }
    let all_bytes: Option<Vec<u32>> = bytes.into_iter().collect();
    let all_bytes = all_bytes.and_then(|bytes| bytes.into_boxed_slice().try_into().ok());
    let prefix = metadata.add_space_prefix.unwrap_or(true);
    let leading = if prefix { Leading::DropSpaces(1) } else { Leading::Same };
    let unknown = metadata.unknown.or_else(|| {
        tokens(metadata, kinds).find(|(_, _, kind)| *kind == Kind::Unknown).map(|(token, _, _)| token)
    });
    Ok(Parts {
        vocabulary: Vocabulary::new(&metadata.file, vocab, table, leading)?,
        added: added_tokens(metadata, kinds)?,
        encoder: Encoder::SentencePiece(SentencePiece::new(pieces, all_bytes, unknown, prefix)),
        bos: metadata.bos,
        bos_text: None,
        eos: metadata.eos,
        eos_text: None,
        ends: metadata.eot.into_iter().collect(),
        add_bos: metadata.add_bos.unwrap_or(true),
    })
}

/// The byte of a piece like `<0x0A>`.
pub(crate) fn byte_piece(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}
