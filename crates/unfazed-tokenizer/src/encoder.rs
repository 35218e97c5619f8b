//! Text that has been split at added tokens, to tokens.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::models::ModelWrapper;
use tokenizers::normalizer::Range;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Token,
};

use crate::TokenizerError;
use crate::added::{AddedTokens, Part};
use crate::sentencepiece::SentencePiece;

/// What encodes ordinary text.
pub(crate) enum Encoder {
    /// The parts of a tokenizer of the `tokenizers` crate.
    Pipeline(Box<Pipeline>),
    /// Our own SentencePiece BPE.
    SentencePiece(SentencePiece),
}

/// The parts of a tokenizer of the `tokenizers` crate. Its own handling of added tokens is not used: it parses
/// special tokens in all of a text or in none.
pub(crate) struct Pipeline {
    pub(crate) normalizer: Option<NormalizerWrapper>,
    /// Added tokens that are looked for in normalized text. Never special ones.
    pub(crate) normalized: AddedTokens,
    pub(crate) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(crate) model: ModelWrapper,
}

impl Encoder {
    /// Appends the tokens of `text`, whose `parts` cover it in order.
    pub(crate) fn encode(
        &self,
        text: &str,
        parts: &[Part],
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        match self {
            // The crate indexes in places where a damaged tokenizer.json can make it panic.
            Encoder::Pipeline(pipeline) => {
                let encoded = catch_unwind(AssertUnwindSafe(|| pipeline.encode(text, parts)));
                let tokens = encoded
                    .map_err(|_| TokenizerError::Encoding("the tokenizers crate panicked".to_owned()))?
                    .map_err(|error| TokenizerError::Encoding(error.to_string()))?;
                out.extend(tokens);
            }
            Encoder::SentencePiece(model) => {
                let mut begins = true;
                for part in parts {
                    match part.token {
                        Some(token) => out.push(token),
                        None => {
                            model.encode(text.get(part.range.clone()).unwrap_or_default(), begins, out)?
                        }
                    }
                    begins = part.token.is_some();
                }
            }
        }
        Ok(())
    }
}

impl Pipeline {
    fn encode(&self, text: &str, parts: &[Part]) -> tokenizers::Result<Vec<u32>> {
        let mut split = PreTokenizedString::from(text);
        split.split(|_, whole| slices(&whole, parts, Range::Original))?;
        split.split(|_, mut run| {
            if let Some(normalizer) = &self.normalizer {
                normalizer.normalize(&mut run)?;
            }
            let parts = self.normalized.split(run.get(), &[]);
            slices(&run, &parts, Range::Normalized)
        })?;
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut split)?;
        }
        split.tokenize(|piece| self.model.tokenize(piece.get()))?;
        let splits = split.get_splits(OffsetReferential::Original, OffsetType::None);
        let tokens = splits.into_iter().filter_map(|(_, _, tokens)| tokens.as_ref());
        Ok(tokens.flatten().map(|token| token.id).collect())
    }
}

/// Cuts a string along `parts`; those that are added tokens come with their token.
fn slices(
    whole: &NormalizedString,
    parts: &[Part],
    referential: fn(std::ops::Range<usize>) -> Range<std::ops::Range<usize>>,
) -> tokenizers::Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
    let slice = |part: &Part| {
        let piece = whole.slice(referential(part.range.clone())).ok_or("a part lies outside of its text")?;
        let length = piece.get().len();
        let token = part.token.map(|token| vec![Token::new(token, String::new(), (0, length))]);
        Ok((piece, token))
    };
    parts.iter().map(slice).collect()
}
