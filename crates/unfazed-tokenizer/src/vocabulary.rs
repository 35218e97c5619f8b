//! What each token stands for.

use std::collections::BTreeMap;

use crate::TokenizerError;

/// What a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its bytes in running text. They need not be whole characters.
    pub(crate) bytes: Vec<u8>,
    /// Whether it steers the model rather than stands for text.
    pub(crate) special: bool,
}

/// How the first token of a text differs from the same token further on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leading {
    /// Not at all.
    Same,
    /// Up to so many spaces at its beginning are dropped: SentencePiece puts one before each text.
    DropSpaces(usize),
    /// Tokens whose first form is another, with that form (decoders that put spaces between words).
    Table(BTreeMap<u32, Vec<u8>>),
}

/// What each token stands for.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    pieces: Vec<Option<Piece>>,
    leading: Leading,
    special: Vec<(u32, String)>,
    longest: usize,
}

impl Vocabulary {
    /// Takes what each token stands for; `pieces` has no token at or above `size`.
    pub(crate) fn new(
        file: &str,
        size: usize,
        pieces: impl IntoIterator<Item = (u32, Piece)>,
        leading: Leading,
    ) -> Result<Self, TokenizerError> {
        let mut table: Vec<Option<Piece>> = vec![None; size];
        for (token, piece) in pieces {
            let slot = usize::try_from(token).ok().and_then(|i| table.get_mut(i));
            *slot.ok_or_else(|| too_many(file, u64::from(token) + 1, size))? = Some(piece);
        }
        let special = (0u32..)
            .zip(&table)
            .filter_map(|(token, piece)| Some((token, piece.as_ref().filter(|p| p.special)?)))
            .map(|(token, piece)| (token, String::from_utf8_lossy(&piece.bytes).into_owned()))
            .collect();
        let longest = table.iter().flatten().map(|piece| piece.bytes.len()).max().unwrap_or(0);
        Ok(Self { pieces: table, leading, special, longest })
    }

    pub(crate) fn size(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn special(&self) -> &[(u32, String)] {
        &self.special
    }

    pub(crate) fn get(&self, token: u32) -> Option<&Piece> {
        self.pieces.get(usize::try_from(token).ok()?)?.as_ref()
    }

    /// Bytes of a token in running text; nothing for one that is not in the vocabulary.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        self.get(token).map_or(&[], |piece| &piece.bytes)
    }

    /// Bytes of a token at the beginning of a text.
    pub(crate) fn first_bytes(&self, token: u32) -> &[u8] {
        let bytes = self.bytes(token);
        match &self.leading {
            Leading::Same => bytes,
            Leading::DropSpaces(most) => {
                let spaces = bytes.iter().take(*most).take_while(|b| **b == b' ').count();
                bytes.get(spaces..).unwrap_or(&[])
            }
            Leading::Table(first) => first.get(&token).map_or(bytes, Vec::as_slice),
        }
    }
}

/// A vocabulary that is larger than the model's embedding.
pub(crate) fn too_many(file: &str, tokens: u64, size: usize) -> TokenizerError {
    TokenizerError::Invalid {
        file: file.to_owned(),
        field: "tokens",
        what: format!("the tokenizer has {tokens} tokens, the model only {size}: they don't belong together"),
    }
}
