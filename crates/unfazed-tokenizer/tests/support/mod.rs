//! Tiny vocabularies.
#![allow(dead_code, clippy::unwrap_used)] // Each test program uses some of it, and a test may unwrap.

use unfazed_formats::TokenizerSource;
use unfazed_formats::checkpoint::GgufTokenizer;
use unfazed_tokenizer::Tokenizer;

pub(crate) const SPECIAL: [&str; 4] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"];

/// The character of GPT-2's byte alphabet, by its definition: printable Latin-1 stands for itself, other bytes
/// are counted up from U+0100.
pub(crate) fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + before).unwrap()
}

pub(crate) fn in_alphabet(text: &str) -> String {
    text.bytes().map(byte_character).collect()
}

/// Byte-level BPE: tokens 0 to 3 are special, 4 and 5 are added but ordinary, byte `b` is token `6 + b`, and each
/// merge (`left|right`) makes one more token.
pub(crate) fn byte_level(pre: &str, merges: &[&str]) -> GgufTokenizer {
    let mut tokens: Vec<String> = SPECIAL.map(str::to_owned).to_vec();
    tokens.extend(["   ", "</think>"].map(str::to_owned));
    let mut types = vec![3, 3, 3, 3, 4, 4];
    tokens.extend((0..=255).map(|byte| byte_character(byte).to_string()));
    let mut ranked = Vec::new();
    for merge in merges {
        let (left, right) = merge.split_once('|').unwrap();
        let (left, right) = (in_alphabet(left), in_alphabet(right));
        tokens.push(format!("{left}{right}"));
        ranked.push(format!("{left} {right}"));
    }
    types.resize(tokens.len(), 1);
    GgufTokenizer {
        file: "tiny.gguf".to_owned(),
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens,
        types,
        merges: ranked,
        bos: Some(0),
        eos: Some(2),
        ..GgufTokenizer::default()
    }
}

pub(crate) const MERGES: &[&str] = &[
    "h|e", "l|l", "he|ll", "hell|o", " |hello", " |he", "1|2", "12|3", "123|4", " | ", "  |  ", "\n|\n",
    "'|s", "!|\n",
];

/// SentencePiece: 0 unknown, 1 and 2 control, 3 user-defined, byte `b` is token `4 + b`, then pieces by falling score.
pub(crate) fn sentencepiece() -> GgufTokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<|user|>"].map(str::to_owned).to_vec();
    let mut types = vec![2, 3, 3, 4];
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    types.extend([6; 256]);
    let mut scores = vec![0.0; tokens.len()];
    let pieces = "\u{2581}t he h e l ll ell hell hello \u{2581}the \u{2581}hello o \u{2581} t th the n an a nd and \u{2581}and";
    for (rank, piece) in pieces.split(' ').enumerate() {
        tokens.push(piece.to_owned());
        types.push(1);
        scores.push(-(rank as f32));
    }
    GgufTokenizer {
        file: "tiny.gguf".to_owned(),
        model: "llama".to_owned(),
        tokens,
        types,
        scores,
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..GgufTokenizer::default()
    }
}

pub(crate) fn build(metadata: GgufTokenizer) -> Tokenizer {
    let rows = metadata.tokens.len() + 8;
    Tokenizer::new(&TokenizerSource::Gguf(metadata), rows).unwrap()
}

/// The `tokenizer.json` of a model with the same vocabulary, as Hugging Face's SmolLM models have it.
pub(crate) fn smollm_json(metadata: &GgufTokenizer) -> Vec<u8> {
    let vocab: serde_json::Map<String, serde_json::Value> =
        metadata.tokens.iter().zip(0u32..).map(|(text, token)| (text.clone(), token.into())).collect();
    let added: Vec<_> = (0u32..)
        .zip(metadata.tokens.iter().zip(&metadata.types))
        .filter(|(_, (_, kind))| matches!(kind, 3 | 4))
        .map(|(id, (content, kind))| {
            serde_json::json!({"id": id, "content": content, "special": *kind == 3, "single_word": false,
                               "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                                        "use_regex": true});
    let digits = serde_json::json!({"type": "Digits", "individual_digits": true});
    let merges: Vec<Vec<&str>> = metadata.merges.iter().map(|merge| merge.split(' ').collect()).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": merges},
    });
    serde_json::to_vec(&json).unwrap()
}
