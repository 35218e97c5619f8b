//! Tokenizers from a Hugging Face directory: `tokenizer.json` and what `tokenizer_config.json` adds.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use tokenizers::{Decoder, Encoding, Model, NormalizedString, Normalizer, PostProcessor};

use crate::added::{AddedToken, AddedTokens};
use crate::encoder::{Encoder, Pipeline};
use crate::gguf::byte_piece;
use crate::sentencepiece::SPACE;
use crate::tokenizer::Parts;
use crate::vocabulary::{Leading, Piece, Vocabulary, too_many};
use crate::{TokenizerError, byte_level};

const FILE: &str = "tokenizer.json";

fn invalid(field: &'static str, what: impl Into<String>) -> TokenizerError {
    TokenizerError::Invalid { file: FILE.to_owned(), field, what: what.into() }
}

/// Builds a tokenizer from `tokenizer.json`; `config` is `tokenizer_config.json`, `eos` and `bos` are what the
/// model's own configuration names.
pub(crate) fn build(
    json: &[u8],
    config: &Value,
    eos: &[u32],
    bos: Option<u32>,
    vocab: usize,
) -> Result<Parts, TokenizerError> {
    let description: Value =
        serde_json::from_slice(json).map_err(|error| invalid("JSON", error.to_string()))?;
    check_merges(&description)?;
    // The crate's readers index in places where a damaged file can make them panic.
    catch_unwind(AssertUnwindSafe(|| build_checked(json, &description, config, eos, bos, vocab)))
        .unwrap_or_else(|_| Err(invalid("model", "the tokenizers crate panicked on it")))
}

fn build_checked(
    json: &[u8],
    description: &Value,
    config: &Value,
    eos: &[u32],
    bos: Option<u32>,
    vocab: usize,
) -> Result<Parts, TokenizerError> {
    let whole =
        tokenizers::Tokenizer::from_bytes(json).map_err(|error| invalid("tokenizer", error.to_string()))?;
    let texts = texts(&whole, vocab)?;
    let kind = decoding(description);
    let (pieces, leading) = pieces(&whole, &texts, &kind);
    let named = |key: &str| token_text(config, key);
    let token_of = |text: &str| texts.iter().find(|(_, t)| t.content == text).map(|(token, _)| *token);
    let (bos_text, eos_text) = (named("bos_token"), named("eos_token"));
    let eos_token = eos_text.as_deref().and_then(token_of);
    let bos = bos_text.as_deref().and_then(token_of).or(bos);
    let add_bos = config.get("add_bos_token").and_then(Value::as_bool);
    let add_bos = add_bos.unwrap_or_else(|| bos.is_some() && first_added(&whole) == bos);
    let (added, normalized) = added_tokens(&whole)?;
    let pipeline = Pipeline {
        normalizer: whole.get_normalizer().cloned(),
        normalized,
        pre_tokenizer: whole.get_pre_tokenizer().cloned(),
        model: whole.get_model().clone(),
    };
    Ok(Parts {
        vocabulary: Vocabulary::new(FILE, vocab, pieces, leading)?,
        added,
        encoder: Encoder::Pipeline(Box::new(pipeline)),
        bos,
        bos_text,
        eos: eos_token.or_else(|| eos.first().copied()),
        eos_text,
        ends: eos.to_vec(),
        add_bos,
    })
}

/// Every merge is of tokens to a token: the crate takes that for granted.
fn check_merges(description: &Value) -> Result<(), TokenizerError> {
    let model = description.get("model").unwrap_or(&Value::Null);
    let (Some(vocabulary), Some(merges)) =
        (model.get("vocab").and_then(Value::as_object), model.get("merges").and_then(Value::as_array))
    else {
        return Ok(());
    };
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or_default();
    for (rank, merge) in merges.iter().enumerate() {
        let halves = match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let (left, right) = halves.ok_or_else(|| {
            invalid("model.merges", format!("merge {rank} is {merge}, expected two pieces"))
        })?;
        let merged = format!("{left}{}", right.strip_prefix(prefix).unwrap_or(right));
        for piece in [left, right, &merged] {
            if !vocabulary.contains_key(piece) {
                let what = format!("merge {rank} is {merge}, but {piece:?} is no token");
                return Err(invalid("model.merges", what));
            }
        }
    }
    Ok(())
}

/// Text of a token.
struct Text {
    content: String,
    /// An added token: its text is not in the vocabulary's alphabet.
    as_it_stands: bool,
    special: bool,
}

fn texts(whole: &tokenizers::Tokenizer, vocab: usize) -> Result<BTreeMap<u32, Text>, TokenizerError> {
    let mut texts = BTreeMap::new();
    for (content, token) in whole.get_model().get_vocab() {
        texts.insert(token, Text { content, as_it_stands: false, special: false });
    }
    if let Some((&last, _)) = texts.last_key_value()
        && usize::try_from(last).is_ok_and(|last| last >= vocab)
    {
        return Err(too_many(FILE, u64::from(last) + 1, vocab));
    }
    for (token, added) in whole.get_added_tokens_decoder() {
        // Some models list added tokens that their embedding has no row for. They can't be used.
        if usize::try_from(token).is_ok_and(|token| token < vocab) {
            // One that is found in normalized text stands for that.
            let vocabulary = whole.get_added_vocabulary();
            let normalized =
                vocabulary.simple_id_to_token(token).filter(|text| !added.special && *text != added.content);
            let as_it_stands = normalized.is_none();
            let content = normalized.unwrap_or(added.content);
            texts.insert(token, Text { content, as_it_stands, special: added.special });
        }
    }
    Ok(texts)
}

/// Added tokens: those found in text as it stands and those found in normalized text. Special ones are found
/// as they stand whatever the file says: normalized text no longer tells whose text it was.
fn added_tokens(whole: &tokenizers::Tokenizer) -> Result<(AddedTokens, AddedTokens), TokenizerError> {
    let mut as_it_stands = Vec::new();
    let mut normalized = Vec::new();
    let mut seen = HashSet::new();
    let listed: BTreeMap<_, _> = whole.get_added_tokens_decoder().into_iter().collect();
    for (token, added) in listed {
        if !seen.insert(added.content.clone()) {
            continue;
        }
        let mut found = AddedToken::new(token, added.content, added.special);
        found.single_word = added.single_word;
        found.strip_left = added.lstrip;
        found.strip_right = added.rstrip;
        match whole.get_normalizer() {
            Some(normalizer) if added.normalized && !added.special => {
                let mut text = NormalizedString::from(found.text.as_str());
                normalizer.normalize(&mut text).map_err(|error| invalid("normalizer", error.to_string()))?;
                found.text = text.get().to_owned();
                normalized.push(found);
            }
            _ => as_it_stands.push(found),
        }
    }
    Ok((AddedTokens::new(FILE, as_it_stands)?, AddedTokens::new(FILE, normalized)?))
}

/// How tokens become text.
#[derive(Debug, PartialEq, Eq)]
enum Decoding {
    /// Each character of a token is a byte.
    ByteLevel,
    /// U+2581 is a space, `<0x0A>` a byte; so many spaces at the beginning of a text are dropped.
    SentencePiece { leading_spaces: usize },
    /// Whatever the file's decoder makes of it.
    Other,
}

fn decoding(description: &Value) -> Decoding {
    let mut steps = Vec::new();
    flatten(description.get("decoder").unwrap_or(&Value::Null), &mut steps);
    let kind = |step: &Value| step.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if steps.iter().any(|step| kind(step) == "ByteLevel") {
        return Decoding::ByteLevel;
    }
    let mut leading_spaces = 0;
    let mut writes_spaces = false;
    for step in steps {
        match kind(step).as_str() {
            "ByteFallback" | "Fuse" => {}
            "Replace"
                if step.pointer("/pattern/String").and_then(Value::as_str) == Some("\u{2581}")
                    && step.get("content").and_then(Value::as_str) == Some(" ") =>
            {
                writes_spaces = true;
            }
            "Strip"
                if step.get("content").and_then(Value::as_str) == Some(" ")
                    && step.get("stop").and_then(Value::as_u64) == Some(0) =>
            {
                let start = step.get("start").and_then(Value::as_u64).unwrap_or(0);
                leading_spaces = usize::try_from(start).unwrap_or(usize::MAX);
            }
            "Metaspace" if step.get("replacement").and_then(Value::as_str) == Some("\u{2581}") => {
                writes_spaces = true;
                let never = step.get("prepend_scheme").and_then(Value::as_str) == Some("never")
                    || step.get("add_prefix_space").and_then(Value::as_bool) == Some(false);
                leading_spaces = if never { 0 } else { usize::MAX };
            }
            _ => return Decoding::Other,
        }
    }
    if writes_spaces { Decoding::SentencePiece { leading_spaces } } else { Decoding::Other }
}

fn flatten<'a>(decoder: &'a Value, steps: &mut Vec<&'a Value>) {
    match decoder.get("decoders").and_then(Value::as_array) {
        Some(inner) => inner.iter().for_each(|step| flatten(step, steps)),
        None if decoder.is_object() => steps.push(decoder),
        None => {}
    }
}

fn pieces(
    whole: &tokenizers::Tokenizer,
    texts: &BTreeMap<u32, Text>,
    kind: &Decoding,
) -> (Vec<(u32, Piece)>, Leading) {
    let mut first = BTreeMap::new();
    let mut pieces = Vec::with_capacity(texts.len());
    for (&token, text) in texts {
        let content = text.content.as_str();
        let bytes = match kind {
            _ if text.as_it_stands && (text.special || *kind != Decoding::Other) => {
                content.as_bytes().to_vec()
            }
            Decoding::ByteLevel => byte_level::bytes_of(content),
            Decoding::SentencePiece { .. } => byte_piece(content)
                .map_or_else(|| content.replace(SPACE, " ").into_bytes(), |byte| vec![byte]),
            Decoding::Other => {
                let (at_start, further_on) = decode_alone(whole, content);
                if at_start != further_on {
                    first.insert(token, at_start.into_bytes());
                }
                further_on.into_bytes()
            }
        };
        pieces.push((token, Piece { bytes, special: text.special }));
    }
    let leading = match kind {
        Decoding::ByteLevel => Leading::Same,
        Decoding::SentencePiece { leading_spaces } => Leading::DropSpaces(*leading_spaces),
        Decoding::Other => Leading::Table(first),
    };
    (pieces, leading)
}

/// What a decoder makes of a token at the beginning of a text and further on; the token itself if there is no
/// decoder.
fn decode_alone(whole: &tokenizers::Tokenizer, token: &str) -> (String, String) {
    const BEFORE: &str = "x";
    let decode = |tokens: &[&str]| {
        let tokens = tokens.iter().map(|t| (*t).to_owned()).collect();
        whole.get_decoder()?.decode(tokens).ok()
    };
    let at_start = decode(&[token]).unwrap_or_else(|| token.to_owned());
    let before = decode(&[BEFORE, BEFORE]);
    let further_on = decode(&[BEFORE, BEFORE, token])
        .and_then(|text| text.strip_prefix(before.as_deref()?).map(str::to_owned))
        .unwrap_or_else(|| at_start.clone());
    (at_start, further_on)
}

/// Text of a token that `tokenizer_config.json` names: a string, or an object with a `content`.
fn token_text(config: &Value, key: &str) -> Option<String> {
    let named = config.get(key)?;
    named.as_str().or_else(|| named.get("content")?.as_str()).map(str::to_owned)
}

/// The first token that the post-processor puts before a text.
fn first_added(whole: &tokenizers::Tokenizer) -> Option<u32> {
    let processed = whole.get_post_processor()?.process(Encoding::default(), None, true).ok()?;
    processed.get_ids().first().copied()
}
