//! The alphabet of byte-level BPE: one printable character for each byte.
//!
//! Defined by GPT-2 (`bytes_to_unicode` in its encoder.py): printable Latin-1 stands for itself, the other 68
//! bytes, in order, for U+0100 and up.

/// The character that stands for a byte.
fn character_of(byte: u8) -> u32 {
    let byte = u32::from(byte);
    match byte {
        0x00..=0x20 => 0x100 + byte,
        0x7f..=0xa0 => 0x121 + byte - 0x7f,
        0xad => 0x143,
        _ => byte,
    }
}

/// The byte that a character stands for.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => code,
    };
    let byte = u8::try_from(byte).ok()?;
    (character_of(byte) == code).then_some(byte)
}

/// The bytes that a token of a byte-level vocabulary stands for; its own UTF-8 if a character is outside of
/// the alphabet, as Hugging Face's decoder has it.
pub(crate) fn bytes_of(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character_and_the_crate_agrees() {
        let mut ours: Vec<char> =
            (0..=255).map(|b| char::from_u32(character_of(b)).expect("below U+0144")).collect();
        for (byte, &character) in (0..=255).zip(&ours) {
            assert_eq!(byte_of(character), Some(byte));
        }
        ours.sort_unstable();
        ours.dedup();
        let mut theirs: Vec<char> =
            tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
        theirs.sort_unstable();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn characters_outside_of_the_alphabet_stand_for_no_byte() {
        for character in [' ', '\n', '\u{a0}', '\u{ad}', '\u{144}', '世'] {
            assert_eq!(byte_of(character), None, "{character:?}");
        }
        assert_eq!(bytes_of("Ġthe"), b" the");
        assert_eq!(bytes_of("a b"), b"a b");
    }
}
