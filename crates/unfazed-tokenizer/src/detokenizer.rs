//! Tokens to text as they arrive.

use std::sync::Arc;

use crate::vocabulary::Vocabulary;

/// Turns tokens into text one by one and keeps back the bytes of a character that is not complete yet.
///
/// The pieces that [`Detokenizer::push`] gives and what [`Detokenizer::finish`] adds make up the text that
/// [`crate::Tokenizer::decode`] gives for the same tokens. Bytes that can't become a character are replaced by
/// U+FFFD, by the rule of [`String::from_utf8_lossy`]. A token that the vocabulary doesn't have adds nothing.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    at_start: bool,
    pending: Vec<u8>,
}

impl Detokenizer {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, at_start: bool) -> Self {
        Self { vocabulary, at_start, pending: Vec::new() }
    }

    /// Takes a token and gives the characters that it completes, perhaps none.
    pub fn push(&mut self, token: u32) -> String {
        let first = std::mem::replace(&mut self.at_start, false);
        let bytes = if first { self.vocabulary.first_bytes(token) } else { self.vocabulary.bytes(token) };
        self.pending.extend_from_slice(bytes);
        take_complete(&mut self.pending)
    }

    /// Ends the text: what was kept back can't become a character any more.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// How many bytes are kept back because their character is not complete: at most 3.
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }
}

/// Takes all that is decided off the front of `bytes`: characters, and U+FFFD for what can't become one.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = bytes.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(error) => {
                let (valid, invalid) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                rest = invalid;
                let Some(broken) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = rest.get(broken..).unwrap_or(&[]);
            }
        }
    }
    let decided = bytes.len() - rest.len();
    bytes.drain(..decided);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_comes_out_once_its_last_byte_is_there() {
        let mut pending = Vec::new();
        for (byte, expected) in "€".bytes().zip(["", "", "€"]) {
            pending.push(byte);
            assert_eq!(take_complete(&mut pending), expected);
        }
        assert!(pending.is_empty());
    }

    #[test]
    fn bytes_that_cannot_become_a_character_are_replaced_at_once() {
        let mut pending = vec![b'a', 0xff, b'b', 0xe2, 0x82];
        assert_eq!(take_complete(&mut pending), "a\u{fffd}b");
        assert_eq!(pending, [0xe2, 0x82]);
        pending.push(b'c');
        assert_eq!(take_complete(&mut pending), "\u{fffd}c");
    }
}
