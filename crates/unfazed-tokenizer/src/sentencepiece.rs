//! SentencePiece BPE, as the models of the Llama 2 kind use it.
//!
//! Unlike the BPE of the `tokenizers` crate, merges have no ranks of their own: of all neighbours that together
//! are a piece, the pair whose piece has the best score is merged first, the leftmost of equals. Ranks can't
//! express equal scores, so the merge is our own. The method is that of SentencePiece (Kudo and Richardson
//! 2018; `bpe_model.cc`): spaces become U+2581, characters that are no piece become the pieces of their bytes,
//! pieces marked as unused take part in merges and are taken apart again at the end.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::TokenizerError;

/// What SentencePiece writes for a space.
pub(crate) const SPACE: char = '\u{2581}';

/// Pieces and how to merge to them.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    pieces: HashMap<String, Entry>,
    bytes: Option<Box<[u32; 256]>>,
    unknown: Option<u32>,
    add_space_prefix: bool,
}

/// A piece that text can become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) token: u32,
    pub(crate) score: f32,
    /// Takes part in merges only.
    pub(crate) unused: bool,
}

/// Characters that stand together; `next` and `previous` are indices of neighbours.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that together are a piece.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl SentencePiece {
    /// Takes the pieces that text can become, the tokens of the 256 bytes if the vocabulary has them all, and
    /// the token for what can't be expressed.
    pub(crate) fn new(
        pieces: HashMap<String, Entry>,
        bytes: Option<Box<[u32; 256]>>,
        unknown: Option<u32>,
        add_space_prefix: bool,
    ) -> Self {
        Self { pieces, bytes, unknown, add_space_prefix }
    }

    /// Appends the tokens of a run of ordinary text. A run at the beginning of a text or behind a special token
    /// gets a space in front if the model was trained so.
    pub(crate) fn encode(&self, run: &str, begins: bool, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if run.is_empty() {
            return Ok(());
        }
        let mut text = String::with_capacity(run.len() + 3);
        if begins && self.add_space_prefix {
            text.push(SPACE);
        }
        text.extend(run.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let mut merged_unused = HashMap::new();
        let symbols = self.merge(&text, &mut merged_unused);
        let mut last_unknown = false;
        let mut index = (!symbols.is_empty()).then_some(0);
        while let Some(symbol) = index.and_then(|i| symbols.get(i)) {
            let piece = text.get(symbol.start..symbol.end).unwrap_or_default();
            self.emit(piece, &merged_unused, &mut last_unknown, out)?;
            index = symbol.next;
        }
        Ok(())
    }

    fn merge<'t>(&self, text: &'t str, unused: &mut HashMap<&'t str, usize>) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, character) in text.char_indices() {
            let previous = symbols.len().checked_sub(1);
            if let Some(symbol) = symbols.last_mut() {
                symbol.next = previous.map(|p| p + 1);
            }
            symbols.push(Symbol { start, end: start + character.len_utf8(), previous, next: None });
        }
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.len() {
            queue.extend(self.pair(text, &symbols, Some(right - 1), Some(right)));
        }
        while let Some(pair) = queue.pop() {
            let (Some(&left), Some(&right)) = (symbols.get(pair.left), symbols.get(pair.right)) else {
                continue;
            };
            // A symbol that was merged into its left neighbour is empty; one that grew makes the length differ.
            let stands = left.start < left.end && right.start < right.end;
            if !stands || left.next != Some(pair.right) || right.end - left.start != pair.length {
                continue;
            }
            let merged = text.get(left.start..right.end).unwrap_or_default();
            if self.pieces.get(merged).is_some_and(|entry| entry.unused) {
                unused.insert(merged, left.end - left.start);
            }
            if let Some(symbol) = symbols.get_mut(pair.left) {
                (symbol.end, symbol.next) = (right.end, right.next);
            }
            if let Some(symbol) = symbols.get_mut(pair.right) {
                symbol.end = symbol.start;
            }
            if let Some(symbol) = right.next.and_then(|next| symbols.get_mut(next)) {
                symbol.previous = Some(pair.left);
            }
            queue.extend(self.pair(text, &symbols, left.previous, Some(pair.left)));
            queue.extend(self.pair(text, &symbols, Some(pair.left), right.next));
        }
        symbols
    }

    /// The pair of two neighbours if together they are a piece.
    fn pair(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let (start, end) = (symbols.get(left)?.start, symbols.get(right)?.end);
        let entry = self.pieces.get(text.get(start..end)?)?;
        Some(Pair { score: entry.score, left, right, length: end - start })
    }

    /// Appends the token of a merged piece. An unused one is taken apart as it was put together; a character
    /// that is no piece becomes its bytes, or the unknown token once for a row of them.
    fn emit(
        &self,
        piece: &str,
        unused: &HashMap<&str, usize>,
        last_unknown: &mut bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut stack = vec![piece];
        while let Some(piece) = stack.pop() {
            match self.pieces.get(piece) {
                Some(entry) if !entry.unused => {
                    out.push(entry.token);
                    *last_unknown = false;
                    continue;
                }
                Some(_) => {
                    if let Some((left, right)) = unused.get(piece).and_then(|&at| piece.split_at_checked(at))
                    {
                        stack.extend([right, left]);
                        continue;
                    }
                }
                None => {}
            }
            if let Some(bytes) = &self.bytes {
                out.extend(piece.bytes().filter_map(|byte| bytes.get(usize::from(byte))));
                *last_unknown = false;
            } else if let Some(unknown) = self.unknown {
                if !std::mem::replace(last_unknown, true) {
                    out.push(unknown);
                }
            } else {
                let character = piece.chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
                return Err(TokenizerError::Inexpressible(character));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(pieces: &[(&str, f32)], unused: &[&str], bytes: bool, unknown: Option<u32>) -> SentencePiece {
        let pieces = (1000u32..).zip(pieces).map(|(token, &(text, score))| {
            (text.to_owned(), Entry { token, score, unused: unused.contains(&text) })
        });
        let bytes = bytes.then(|| Box::new(std::array::from_fn(|byte| byte as u32)));
        SentencePiece::new(pieces.collect(), bytes, unknown, true)
    }

    fn encode(model: &SentencePiece, text: &str, begins: bool) -> Vec<u32> {
        let mut out = Vec::new();
        model.encode(text, begins, &mut out).unwrap();
        out
    }

    #[test]
    fn the_best_score_is_merged_first_and_the_leftmost_of_equals() {
        let letters = [("a", -9.0), ("b", -9.0), ("c", -9.0)];
        let scored = [&letters[..], &[("ab", -2.0), ("bc", -1.0)]].concat();
        assert_eq!(encode(&model(&scored, &[], true, None), "abc", false), [1000, 1004]);
        let equal = [&letters[..], &[("ab", -1.0), ("bc", -1.0)]].concat();
        assert_eq!(encode(&model(&equal, &[], true, None), "abc", false), [1003, 1002]);
        // `aa` at 0 and 2, not at 1.
        let row = [("a", -9.0), ("aa", -1.0)];
        assert_eq!(encode(&model(&row, &[], true, None), "aaaaa", false), [1001, 1001, 1000]);
    }

    #[test]
    fn a_space_goes_before_a_run_that_begins() {
        let model = model(&[("a", 0.0), ("\u{2581}", 0.0), ("\u{2581}a", 1.0)], &[], true, None);
        assert_eq!(encode(&model, "a", true), [1002]);
        assert_eq!(encode(&model, "a", false), [1000]);
        assert_eq!(encode(&model, " a", true), [1001, 1002]);
        assert_eq!(encode(&model, "", true), Vec::<u32>::new());
    }

    #[test]
    fn a_character_that_is_no_piece_becomes_its_bytes() {
        assert_eq!(encode(&model(&[("a", 0.0)], &[], true, None), "aé", false), [1000, 0xc3, 0xa9]);
    }

    #[test]
    fn without_pieces_for_bytes_a_row_of_strange_characters_is_unknown_once() {
        let model = model(&[("a", 0.0)], &[], false, Some(7));
        assert_eq!(encode(&model, "éüaé", false), [7, 1000, 7]);
    }

    #[test]
    fn without_an_unknown_token_a_strange_character_is_refused() {
        let error = model(&[("a", 0.0)], &[], false, None).encode("aé", false, &mut Vec::new());
        assert!(matches!(error, Err(TokenizerError::Inexpressible('é'))));
    }

    #[test]
    fn an_unused_piece_is_merged_through_and_taken_apart_again() {
        let pieces = [("a", -9.0), ("b", -9.0), ("ab", -1.0), ("abb", -2.0)];
        let model = model(&pieces, &["ab"], true, None);
        assert_eq!(encode(&model, "ab", false), [1000, 1001]);
        assert_eq!(encode(&model, "abb", false), [1003]);
    }
}
