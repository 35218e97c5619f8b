//! Text to tokens and back with tiny vocabularies.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)] // A test may.

mod support;

use proptest::prelude::*;
use support::{MERGES, build, byte_level, sentencepiece};
use unfazed_tokenizer::{MAX_TEXT_BYTES, SpecialText, Tokenizer, TokenizerError};

const NAMES: [&str; 6] = ["smollm", "gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "default"];

fn texts(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let tokens = tokenizer.encode(text, SpecialText::Plain, false).unwrap();
    tokens.into_iter().map(|token| tokenizer.token_text(token).unwrap()).collect()
}

#[test]
fn the_pre_tokenizer_decides_which_merges_apply() {
    let text = " hello12345!\n";
    let expected: [(&str, &[&str]); 6] = [
        ("smollm", &[" hello", "1", "2", "3", "4", "5", "!", "\n"]),
        ("gpt-2", &[" hello", "1234", "5", "!", "\n"]),
        ("llama-bpe", &[" hello", "123", "4", "5", "!\n"]),
        ("qwen2", &[" hello", "1", "2", "3", "4", "5", "!\n"]),
        ("deepseek-llm", &[" hello", "1234", "5", "!", "\n"]),
        ("default", &[" hello", "123", "4", "5", "!", "\n"]),
    ];
    for (name, expected) in expected {
        assert_eq!(texts(&build(byte_level(name, MERGES)), text), expected, "{name}");
    }
}

#[test]
fn a_word_that_is_a_token_is_not_merged_up_where_the_model_says_so() {
    // `abc` can't be reached by merges.
    let mut metadata = byte_level("llama-bpe", &["b|c"]);
    metadata.tokens.push("abc".to_owned());
    metadata.types.push(1);
    assert_eq!(texts(&build(metadata.clone()), "abc"), ["abc"]);
    metadata.pre = Some("qwen2".to_owned());
    assert_eq!(texts(&build(metadata), "abc"), ["a", "bc"]);
}

#[test]
fn added_tokens_that_are_ordinary_are_found_in_all_text() {
    let tokenizer = build(byte_level("gpt-2", MERGES));
    for special in [SpecialText::Parse, SpecialText::Plain] {
        assert_eq!(tokenizer.encode("   </think>", special, false).unwrap(), [4, 5]);
    }
    assert!(!tokenizer.is_special(5) && tokenizer.is_special(2) && !tokenizer.is_special(1_000_000));
}

#[test]
fn bos_is_added_once_where_the_model_wants_it() {
    let mut metadata = byte_level("llama-bpe", MERGES);
    let tokenizer = build(metadata.clone());
    assert!(tokenizer.wants_bos());
    let encode = |tokenizer: &Tokenizer, text| tokenizer.encode(text, SpecialText::Parse, true).unwrap();
    assert_eq!(encode(&tokenizer, ""), [0]);
    assert_eq!(encode(&tokenizer, "<|endoftext|>"), [0]);
    assert_eq!(encode(&tokenizer, "<|im_end|>"), [0, 2]);
    assert!(tokenizer.encode("", SpecialText::Parse, false).unwrap().is_empty());
    metadata.add_bos = Some(false);
    assert!(encode(&build(metadata), "").is_empty());
    assert!(encode(&build(byte_level("qwen2", MERGES)), "").is_empty());
    assert_eq!(encode(&build(sentencepiece()), ""), [1]);
}

#[test]
fn ends_come_from_the_file_and_from_well_known_names() {
    let tokenizer = build(byte_level("gpt-2", MERGES));
    assert_eq!(tokenizer.end_tokens(), [2, 0]);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(0), Some(2)));
    assert_eq!((tokenizer.bos_text(), tokenizer.eos_text()), ("<|endoftext|>", "<|im_end|>"));
    let special: Vec<&str> = tokenizer.special_tokens().iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(special, support::SPECIAL);
}

#[test]
fn a_token_known_to_end_turns_is_special_whatever_its_type_says() {
    let mut metadata = byte_level("gpt-2", MERGES);
    metadata.types[2] = 1;
    let tokenizer = build(metadata);
    assert!(tokenizer.is_special(2));
    assert_eq!(tokenizer.encode("<|im_end|>", SpecialText::Parse, false).unwrap(), [2]);
    assert!(!tokenizer.encode("<|im_end|>", SpecialText::Plain, false).unwrap().contains(&2));
}

#[test]
fn sentencepiece_merges_by_score_and_falls_back_to_bytes() {
    let tokenizer = build(sentencepiece());
    // A space goes before the text.
    assert_eq!(texts(&tokenizer, "the hello"), [" the", " hello"]);
    // `an` is better than `nd`, so `and` is made of it and `d`.
    assert_eq!(texts(&tokenizer, "and andn"), [" and", " and", "n"]);
    let tokens = tokenizer.encode("é", SpecialText::Plain, false).unwrap();
    assert_eq!(tokens[1..], [4 + 0xc3, 4 + 0xa9]);
    assert_eq!(tokenizer.decode(&tokens), "é");
    assert_eq!(tokenizer.token_bytes(4 + 0xc3).unwrap().as_ref(), [0xc3]);
}

#[test]
fn sentencepiece_puts_a_space_behind_special_tokens_too_and_none_if_the_model_says_so() {
    let mut metadata = sentencepiece();
    let encode = |tokenizer: &Tokenizer| tokenizer.encode("a<s>a", SpecialText::Parse, false).unwrap();
    let tokenizer = build(metadata.clone());
    assert_eq!(tokenizer.decode(&encode(&tokenizer)), "a<s> a");
    metadata.add_space_prefix = Some(false);
    let tokenizer = build(metadata);
    assert_eq!(tokenizer.decode(&encode(&tokenizer)), "a<s>a");
}

#[test]
fn text_cannot_become_a_control_token_by_way_of_merges_or_whole_words() {
    let mut metadata = sentencepiece();
    metadata.tokens.extend(["<", ">", "s", "<s", "s>"].map(str::to_owned));
    metadata.types.extend([1; 5]);
    metadata.scores.extend([0.0; 5]);
    assert!(!build(metadata).encode("<s>", SpecialText::Plain, false).unwrap().contains(&1));
    let mut metadata = byte_level("llama-bpe", MERGES);
    metadata.tokens[3] = "stop".to_owned();
    assert!(!build(metadata).encode("stop", SpecialText::Plain, false).unwrap().contains(&3));
}

#[test]
fn text_beyond_the_limit_is_refused() {
    let text = "a".repeat(MAX_TEXT_BYTES + 1);
    let error = build(sentencepiece()).encode(&text, SpecialText::Plain, false);
    assert!(matches!(error, Err(TokenizerError::TextTooLong { bytes, .. }) if bytes == text.len()));
}

proptest! {
    #[test]
    fn byte_level_text_survives_the_way_there_and_back(
        text in "(\\PC|[ \t\r\n]|[0-9]|hello|'s|世界|é|<\\|im_end\\|>){0,40}",
        name in prop::sample::select(&NAMES[..]),
    ) {
        let tokenizer = build(byte_level(name, MERGES));
        for special in [SpecialText::Parse, SpecialText::Plain] {
            let tokens = tokenizer.encode(&text, special, false).unwrap();
            prop_assert_eq!(tokenizer.decode(&tokens), text.as_str());
        }
    }

    #[test]
    fn any_text_at_all_is_encoded(text in any::<String>(), name in prop::sample::select(&NAMES[..])) {
        let tokenizer = build(byte_level(name, MERGES));
        let tokens = tokenizer.encode(&text, SpecialText::Plain, false).unwrap();
        prop_assert_eq!(tokenizer.decode(&tokens), text.as_str());
        prop_assert!(tokens.iter().all(|token| !tokenizer.is_special(*token)));
    }

    #[test]
    fn sentencepiece_text_survives_the_way_there_and_back(text in "(\\PC|[ \n]|the|hello|and){0,40}") {
        // SentencePiece can't tell U+2581 from a space.
        let text = text.replace('\u{2581}', " ");
        let tokenizer = build(sentencepiece());
        let tokens = tokenizer.encode(&text, SpecialText::Plain, false).unwrap();
        prop_assert_eq!(tokenizer.decode(&tokens), text);
    }

    #[test]
    fn sentencepiece_agrees_with_the_definition(text in "[thelonad ]{0,24}") {
        let metadata = sentencepiece();
        let tokenizer = build(metadata.clone());
        let tokens = tokenizer.encode(&text, SpecialText::Plain, false).unwrap();
        let pieces: Vec<&str> = tokens.iter().map(|token| metadata.tokens[*token as usize].as_str()).collect();
        prop_assert_eq!(pieces.concat(), naive(&metadata, &text).concat());
        if text.chars().all(|c| metadata.tokens.contains(&c.to_string()) || c == ' ') {
            prop_assert_eq!(pieces, naive(&metadata, &text));
        }
    }
}

/// SentencePiece BPE as it is defined: again and again, merge the leftmost of the best pairs.
fn naive(metadata: &unfazed_formats::checkpoint::GgufTokenizer, text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let spaced = format!("\u{2581}{}", text.replace(' ', "\u{2581}"));
    let mut symbols: Vec<String> = spaced.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for left in 0..symbols.len() - 1 {
            let merged = format!("{}{}", symbols[left], symbols[left + 1]);
            let Some(token) = metadata.tokens.iter().position(|t| *t == merged) else { continue };
            let score = metadata.scores[token];
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, left));
            }
        }
        let Some((_, left)) = best else { break };
        let right = symbols.remove(left + 1);
        symbols[left].push_str(&right);
    }
    symbols
        .into_iter()
        .flat_map(|symbol| match metadata.tokens.contains(&symbol) {
            true => vec![symbol],
            false => symbol.bytes().map(|byte| format!("<0x{byte:02X}>")).collect(),
        })
        .collect()
}
