//! Tokenizers that can't be built say why, by name.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)] // A test may.

mod support;

use support::{MERGES, byte_level, sentencepiece, smollm_json};
use unfazed_formats::TokenizerSource;
use unfazed_formats::checkpoint::GgufTokenizer;
use unfazed_tokenizer::Tokenizer;

fn refusal(metadata: GgufTokenizer) -> String {
    Tokenizer::new(&TokenizerSource::Gguf(metadata), 1000).unwrap_err().to_string()
}

fn json_refusal(json: impl Into<Vec<u8>>) -> String {
    let config = serde_json::Value::Null;
    let source = TokenizerSource::HuggingFace { json: json.into(), config, eos: vec![2], bos: None };
    Tokenizer::new(&source, 1000).unwrap_err().to_string()
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_by_name_with_what_is_supported() {
    assert_eq!(
        refusal(byte_level("tekken", MERGES)),
        "tiny.gguf: tokenizer.ggml.pre is \"tekken\", which is not supported (supported: smollm, gpt-2, llama-bpe, \
         qwen2, deepseek-llm, default)"
    );
}

#[test]
fn an_unknown_model_is_refused_by_name() {
    let metadata = GgufTokenizer { model: "bert".to_owned(), ..byte_level("gpt-2", MERGES) };
    assert!(refusal(metadata).starts_with("tiny.gguf: tokenizer.ggml.model is \"bert\""));
}

#[test]
fn more_tokens_than_the_model_has_rows_are_refused() {
    let metadata = byte_level("gpt-2", MERGES);
    let rows = metadata.tokens.len() - 1;
    let error = Tokenizer::new(&TokenizerSource::Gguf(metadata.clone()), rows).unwrap_err().to_string();
    assert!(
        error.contains(&format!("the tokenizer has {} tokens, the model only {rows}", rows + 1)),
        "{error}"
    );
    let json = smollm_json(&metadata);
    let source =
        TokenizerSource::HuggingFace { json, config: serde_json::Value::Null, eos: vec![], bos: None };
    assert!(Tokenizer::new(&source, rows).unwrap_err().to_string().contains("don't belong together"));
}

#[test]
fn merges_of_pieces_that_are_no_tokens_are_refused_with_their_rank() {
    for (merge, what) in
        [("h e\u{144}", "no token"), ("he", "two pieces"), ("", "two pieces"), ("x y", "\"xy\" is no token")]
    {
        let mut metadata = byte_level("gpt-2", MERGES);
        metadata.merges.push(merge.to_owned());
        let json = smollm_json(&metadata);
        let error = refusal(metadata);
        assert!(error.contains(&format!("merge {}", MERGES.len())) && error.contains(what), "{error}");
        let error = json_refusal(json);
        assert!(error.starts_with("tokenizer.json: model.merges: merge"), "{error}");
    }
}

#[test]
fn numbers_of_scores_and_types_that_do_not_fit_are_refused() {
    let mut metadata = sentencepiece();
    metadata.scores.pop();
    assert!(refusal(metadata).contains("tokenizer.ggml.scores"));
    let mut metadata = sentencepiece();
    metadata.types.pop();
    assert!(refusal(metadata).contains("tokenizer.ggml.token_type"));
    let mut metadata = sentencepiece();
    metadata.types[7] = 9;
    assert!(refusal(metadata).contains("token 7 has type 9"));
}

#[test]
fn ids_beyond_the_vocabulary_are_refused_by_their_field() {
    let mut metadata = byte_level("gpt-2", MERGES);
    metadata.eot = Some(70_000);
    assert!(refusal(metadata).contains("tokenizer.ggml.eot_token_id: 70000"));
}

#[test]
fn damaged_json_is_refused_and_not_believed() {
    assert!(json_refusal("{").starts_with("tokenizer.json: JSON"));
    assert!(json_refusal("{}").starts_with("tokenizer.json: tokenizer"));
    assert!(json_refusal("[1, 2]").starts_with("tokenizer.json: "));
    let deep = "[".repeat(100_000);
    assert!(json_refusal(deep).starts_with("tokenizer.json: JSON"));
    let json = String::from_utf8(smollm_json(&byte_level("gpt-2", MERGES))).unwrap();
    let error = json_refusal(json.replace("\"BPE\"", "\"Telepathy\""));
    assert!(error.starts_with("tokenizer.json: tokenizer"), "{error}");
    for at in (0..json.len()).step_by(997) {
        json_refusal(&json[..at]);
    }
}

#[test]
fn empty_and_odd_metadata_never_panics() {
    for model in ["gpt2", "llama"] {
        let metadata = GgufTokenizer { model: model.to_owned(), ..GgufTokenizer::default() };
        let tokenizer = Tokenizer::new(&TokenizerSource::Gguf(metadata), 0).unwrap();
        assert_eq!(tokenizer.vocab_size(), 0);
        assert_eq!(tokenizer.decode(&[0, 1]), "");
        let _ = tokenizer.encode("text", unfazed_tokenizer::SpecialText::Parse, true);
    }
    let mut metadata = sentencepiece();
    metadata.scores.fill(f32::NAN);
    metadata.tokens[20] = String::new();
    let tokenizer = support::build(metadata);
    assert!(tokenizer.encode("the hello", unfazed_tokenizer::SpecialText::Parse, true).is_ok());
}
