//! Which tokens end a generation.

/// Texts of special tokens that end a turn or a document in the models known today.
///
/// Files often name only one of the tokens that their model ends with (a base model's `<|endoftext|>` where
/// the chat model says `<|im_end|>`), so these count as ends wherever a vocabulary has them.
const WELL_KNOWN: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|end_of_sentence|>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<|end|>",
    "<|eos|>",
    "<|return|>",
    "<|call|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
];

/// Whether a token with this text ends a generation by its name.
pub(crate) fn is_well_known(text: &str) -> bool {
    WELL_KNOWN.contains(&text)
}

/// The tokens that end a generation: those that the model names, then those known by their text.
///
/// A vocabulary with `<|return|>` is that of gpt-oss, where `<|end|>` ends a message and not the answer.
pub(crate) fn collect(named: impl IntoIterator<Item = u32>, special: &[(u32, String)]) -> Vec<u32> {
    let mut ends: Vec<u32> = Vec::new();
    let mut add = |token: u32| {
        if !ends.contains(&token) {
            ends.push(token);
        }
    };
    named.into_iter().for_each(&mut add);
    let messages_end = special.iter().any(|(_, text)| text == "<|return|>");
    for (token, text) in special {
        if is_well_known(text) && !(messages_end && text == "<|end|>") {
            add(*token);
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_the_named_ones_and_the_well_known_ones_once_each() {
        let special =
            [(0, "<|endoftext|>".to_owned()), (1, "<|im_start|>".to_owned()), (2, "<|im_end|>".to_owned())];
        assert_eq!(collect([2], &special), [2, 0]);
    }

    #[test]
    fn the_end_of_a_message_is_no_end_where_answers_have_several() {
        let special = [(5, "<|end|>".to_owned()), (6, "<|return|>".to_owned())];
        assert_eq!(collect([], &special), [6]);
        assert_eq!(collect([], &special[..1]), [5]);
    }
}
