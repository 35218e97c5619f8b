//! Who may write special tokens.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)] // A test may.

mod support;

use std::borrow::Cow;

use proptest::prelude::*;
use support::{MERGES, build, byte_level, sentencepiece};
use unfazed_tokenizer::{Segment, SpecialText, Tokenizer};

fn segment(text: &str, special: SpecialText) -> Segment<'_> {
    Segment { text: Cow::Borrowed(text), special }
}

fn special_count(tokenizer: &Tokenizer, tokens: &[u32]) -> usize {
    tokens.iter().filter(|token| tokenizer.is_special(**token)).count()
}

#[test]
fn text_of_a_template_becomes_special_tokens_and_a_users_does_not() {
    let tokenizer = build(byte_level("gpt-2", MERGES));
    let tokens = tokenizer
        .encode_segments(&[
            segment("<|im_start|>hell", SpecialText::Parse),
            segment("<|im_end|>", SpecialText::Plain),
            segment("<|im_end|>", SpecialText::Parse),
        ])
        .unwrap();
    assert_eq!(special_count(&tokenizer, &tokens), 2);
    assert_eq!((tokens.first(), tokens.last()), (Some(&1), Some(&2)));
    assert_eq!(tokenizer.decode(&tokens), "<|im_start|>hell<|im_end|><|im_end|>");
}

#[test]
fn ordinary_text_is_one_run_across_the_borders_of_segments() {
    let tokenizer = build(byte_level("gpt-2", MERGES));
    let pieces = [segment(" he", SpecialText::Parse), segment("llo", SpecialText::Plain)];
    let whole = tokenizer.encode(" hello", SpecialText::Parse, false).unwrap();
    assert_eq!(whole.len(), 1);
    assert_eq!(tokenizer.encode_segments(&pieces).unwrap(), whole);
}

#[test]
fn a_special_token_is_not_put_together_from_segments() {
    let tokenizer = build(byte_level("gpt-2", MERGES));
    for (left, right) in [
        (SpecialText::Parse, SpecialText::Parse),
        (SpecialText::Parse, SpecialText::Plain),
        (SpecialText::Plain, SpecialText::Parse),
    ] {
        let tokens = tokenizer.encode_segments(&[segment("<|im_", left), segment("end|>", right)]).unwrap();
        assert_eq!(special_count(&tokenizer, &tokens), 0);
    }
}

proptest! {
    #[test]
    fn plain_segments_never_hold_special_tokens(
        pieces in prop::collection::vec("(<|\\||im_|start|end|>|<s>|<\\|im_end\\|>| |a|世){0,8}", 0..6),
        spm in any::<bool>(),
    ) {
        let tokenizer = build(if spm { sentencepiece() } else { byte_level("gpt-2", MERGES) });
        let segments: Vec<_> = pieces.iter().map(|piece| segment(piece, SpecialText::Plain)).collect();
        let tokens = tokenizer.encode_segments(&segments).unwrap();
        prop_assert_eq!(special_count(&tokenizer, &tokens), 0);
        prop_assert_eq!(tokenizer.decode(&tokens), pieces.concat());
    }

    #[test]
    fn segments_give_as_many_special_tokens_as_their_parsed_texts(
        pieces in prop::collection::vec(("(<\\|im_end\\|>|<\\|im_start\\|>| hello|<){0,5}", any::<bool>()), 0..6),
    ) {
        let tokenizer = build(byte_level("qwen2", MERGES));
        let kind = |parse| if parse { SpecialText::Parse } else { SpecialText::Plain };
        let segments: Vec<_> = pieces.iter().map(|(text, parse)| segment(text, kind(*parse))).collect();
        let tokens = tokenizer.encode_segments(&segments).unwrap();
        let meant: usize =
            pieces.iter().filter(|(_, parse)| *parse).map(|(text, _)| text.matches("<|im_").count()).sum();
        prop_assert_eq!(special_count(&tokenizer, &tokens), meant);
    }
}
