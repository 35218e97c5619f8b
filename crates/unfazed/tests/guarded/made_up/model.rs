//! Tokens, and which one follows. The next token depends on all before it, so that whoever goes on behind others than were
//! there gets another text; and the same text can be made of different tokens, as a tokenizer's reader would not make them.

/// What generated tokens are made of. Some are parts of a character.
const PIECES: [&[u8]; 12] =
    [b" the", b" cat", b" sat", b"a", b"b", b"ab", b"ba", b"\n", b" \xf0\x9f", b"\xa6\x80", b".", b" it"];
/// The one that begins a character, and the one that ends it.
const CRAB: [u64; 2] = [8, 9];
/// Prompts are read byte by byte, as tokens from here on.
const BYTES: u64 = 1000;

/// Reads a prompt.
pub(super) fn read(prompt: &str) -> Vec<u64> {
    prompt.bytes().map(|byte| BYTES + u64::from(byte)).collect()
}

/// Reads a text as a tokenizer does: always the longest piece, which is not how the text need have come about.
pub(super) fn tokenize(text: &str) -> Vec<u64> {
    let (mut rest, mut tokens) = (text.as_bytes(), Vec::new());
    while let Some(byte) = rest.first() {
        let found = PIECES.iter().enumerate().filter(|(_, piece)| rest.starts_with(piece));
        match found.max_by_key(|(_, piece)| piece.len()) {
            Some((token, piece)) => {
                tokens.push(token as u64);
                rest = &rest[piece.len()..];
            }
            None => {
                tokens.push(BYTES + u64::from(*byte));
                rest = &rest[1..];
            }
        }
    }
    tokens
}

/// The token behind others.
pub(super) fn next(tokens: &[u64]) -> u64 {
    if tokens.last() == Some(&CRAB[0]) {
        return CRAB[1];
    }
    // FNV-1a.
    let hash =
        tokens.iter().flat_map(|token| token.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    let token = (hash >> 32) % PIECES.len() as u64;
    // The end of a character only comes behind its beginning.
    if token == CRAB[1] { 0 } else { token }
}

/// The bytes of tokens.
pub(super) fn bytes(tokens: &[u64]) -> Vec<u8> {
    let of = |token: &u64| match usize::try_from(*token).ok().and_then(|token| PIECES.get(token)) {
        Some(piece) => piece.to_vec(),
        None => vec![u8::try_from(token - BYTES).unwrap()],
    };
    tokens.iter().flat_map(of).collect()
}

/// Their text, without a character that is not whole.
pub(super) fn text(tokens: &[u64]) -> String {
    let whole = tokens.strip_suffix(&CRAB[..1]).unwrap_or(tokens);
    String::from_utf8(bytes(whole)).unwrap()
}

#[test]
fn a_text_need_not_have_come_about_as_it_is_read() {
    let tokens = [3, 4, 8, 9];
    let text = String::from_utf8(bytes(&tokens)).unwrap();
    assert_eq!(text, "ab 🦀");
    assert_eq!(tokenize(&text), [5, 8, 9]);
    let behind = |tokens: &[u64]| {
        let mut tokens = tokens.to_vec();
        let next = |_| {
            tokens.push(next(&tokens));
            tokens.last().copied()
        };
        (0..8).map(next).collect::<Vec<_>>()
    };
    assert_ne!(behind(&tokens), behind(&[5, 8, 9]));
}
