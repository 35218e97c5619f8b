//! Tokens to text as they arrive.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)] // A test may.

mod support;

use proptest::prelude::*;
use support::{MERGES, build, byte_level, sentencepiece};
use unfazed_tokenizer::{SpecialText, Tokenizer};

fn tokenizer(spm: bool) -> Tokenizer {
    build(if spm { sentencepiece() } else { byte_level("gpt-2", MERGES) })
}

#[test]
fn a_character_of_several_tokens_comes_out_whole() {
    for spm in [false, true] {
        let tokenizer = tokenizer(spm);
        let tokens = tokenizer.encode("👋🏽", SpecialText::Plain, false).unwrap();
        let mut detokenizer = tokenizer.detokenizer();
        let pieces: Vec<String> = tokens.iter().map(|token| detokenizer.push(*token)).collect();
        assert_eq!(pieces.iter().filter(|piece| !piece.is_empty()).collect::<Vec<_>>(), ["👋", "🏽"]);
        assert_eq!(detokenizer.finish(), "");
    }
}

#[test]
fn what_cannot_be_completed_is_marked_at_the_end() {
    let tokenizer = tokenizer(false);
    let mut detokenizer = tokenizer.detokenizer();
    assert_eq!(detokenizer.push(6 + 0xe4), "");
    assert_eq!(detokenizer.pending_bytes(), 1);
    assert_eq!(detokenizer.finish(), "\u{fffd}");
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn the_space_before_a_text_is_dropped_at_its_beginning_only() {
    let tokenizer = tokenizer(true);
    let the = tokenizer.encode("the the", SpecialText::Plain, false).unwrap();
    assert_eq!(tokenizer.decode(&the), "the the");
    assert_eq!(tokenizer.continuing_detokenizer().push(the[0]), " the");
    assert_eq!(tokenizer.decode(&[1, the[0]]), "<s> the");
}

#[test]
fn tokens_that_do_not_exist_have_no_text_and_harm_nothing() {
    let tokenizer = tokenizer(false);
    for token in [u32::MAX, tokenizer.vocab_size() as u32, tokenizer.vocab_size() as u32 - 1] {
        assert_eq!(tokenizer.token_bytes(token), None);
        assert_eq!(tokenizer.token_text(token), None);
        assert_eq!(tokenizer.decode(&[token]), "");
    }
}

#[test]
fn no_token_is_longer_than_the_longest() {
    for spm in [false, true] {
        let tokenizer = tokenizer(spm);
        let lengths =
            (0..tokenizer.vocab_size() as u32).filter_map(|t| tokenizer.token_bytes(t)).map(|b| b.len());
        assert_eq!(lengths.max(), Some(tokenizer.longest_token_bytes()));
    }
}

proptest! {
    #[test]
    fn the_pieces_make_up_the_decoded_text_and_each_beginning_is_one_of_it(
        tokens in prop::collection::vec(0u32..300, 0..60),
        spm in any::<bool>(),
    ) {
        let tokenizer = tokenizer(spm);
        let decoded = tokenizer.decode(&tokens);
        let mut detokenizer = tokenizer.detokenizer();
        let mut text = String::new();
        let mut bytes = 0;
        for token in &tokens {
            text.push_str(&detokenizer.push(*token));
            bytes += tokenizer.token_bytes(*token).map_or(0, |b| b.len());
            prop_assert!(decoded.starts_with(&text));
            prop_assert!(detokenizer.pending_bytes() <= 3);
        }
        text.push_str(&detokenizer.finish());
        prop_assert_eq!(&text, &decoded);
        prop_assert!(tokens.len() * tokenizer.longest_token_bytes() >= bytes);
    }

    #[test]
    fn decoding_is_lossy_only_where_the_bytes_are_no_text(tokens in prop::collection::vec(0u32..280, 0..60)) {
        let tokenizer = tokenizer(false);
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| tokenizer.token_bytes(*t).unwrap_or_default().into_owned()).collect();
        prop_assert_eq!(tokenizer.decode(&tokens), String::from_utf8_lossy(&bytes));
    }
}
