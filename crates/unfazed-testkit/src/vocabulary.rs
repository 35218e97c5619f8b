//! A tiny byte-level vocabulary, or a copy of a file's.

use serde_json::json;
use unfazed_formats::gguf::{Array, Header, Value};

/// The special tokens: their ids are their places.
pub const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Id of the token that ends an answer.
pub const EOS: u32 = 2;

/// Merges, so that some text has tokens of more than a byte.
const MERGES: [(&str, &str); 6] =
    [("h", "e"), ("t", "he"), ("Ġ", "the"), ("Ġ", "a"), ("i", "n"), ("Ġ", "in")];

/// ChatML.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
     message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ \
     '<|im_start|>assistant\n' }}{% endif %}";

/// Tokens of the tiny vocabulary.
pub fn tiny_len() -> usize {
    SPECIAL.len() + 256 + MERGES.len()
}

fn tiny_tokens() -> Vec<String> {
    let special = SPECIAL.iter().map(|token| (*token).to_owned());
    let bytes = (0..=255).map(|byte| byte_char(byte).to_string());
    let merged = MERGES.iter().map(|(left, right)| format!("{left}{right}"));
    special.chain(bytes).chain(merged).collect()
}

/// The character that stands for a byte in byte-level BPE: printable ones stand for themselves, the others follow
/// from U+0100 on.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !printable(*other)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The tiny vocabulary as GGUF metadata.
pub fn tiny_metadata() -> Vec<(String, Value)> {
    let tokens = tiny_tokens();
    let types = (0..tokens.len()).map(|id| if id < SPECIAL.len() { 3 } else { 1 }).collect();
    let merges = MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let ggml = |name: &str, value| (format!("tokenizer.ggml.{name}"), value);
    vec![
        ggml("model", Value::String("gpt2".to_owned())),
        ggml("pre", Value::String("gpt-2".to_owned())),
        ggml("tokens", Value::Array(Array::String(tokens))),
        ggml("token_type", Value::Array(Array::I32(types))),
        ggml("merges", Value::Array(Array::String(merges))),
        ggml("bos_token_id", Value::U32(0)),
        ggml("eos_token_id", Value::U32(EOS)),
        ggml("add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template".to_owned(), Value::String(CHAT_TEMPLATE.to_owned())),
    ]
}

/// The tiny vocabulary as `tokenizer.json`.
pub fn tiny_tokenizer_json() -> serde_json::Value {
    let tokens = tiny_tokens();
    let vocab: serde_json::Map<String, serde_json::Value> =
        tokens.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let added: Vec<_> = SPECIAL
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": MERGES.iter().map(|(left, right)| json!([left, right])).collect::<Vec<_>>()},
    })
}

/// The tokenizer of another file, to be written into a new one.
pub fn copied_metadata(header: &Header) -> Vec<(String, Value)> {
    let tokenizer = header.metadata.iter().filter(|(key, _)| key.starts_with("tokenizer."));
    tokenizer.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}
