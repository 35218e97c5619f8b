//! The entry point.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use unfazed_formats::TokenizerSource;

use crate::added::AddedTokens;
use crate::encoder::Encoder;
use crate::vocabulary::Vocabulary;
use crate::{Detokenizer, TokenizerError, end_tokens, gguf, huggingface};

/// Longest text that is encoded at once, some two million tokens. Encoding takes about 120 times its memory.
pub const MAX_TEXT_BYTES: usize = 8 << 20;

/// Whether special-token text becomes special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// `<|im_end|>` is the special token: text of a template or of a caller who renders templates.
    Parse,
    /// `<|im_end|>` is ten characters: text of a user.
    Plain,
}

/// A piece of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Text.
    pub text: Cow<'a, str>,
    /// Whether special-token text in it is meant.
    pub special: SpecialText,
}

/// Turns text into a model's tokens and back.
pub struct Tokenizer {
    vocabulary: Arc<Vocabulary>,
    added: AddedTokens,
    encoder: Encoder,
    bos: Option<u32>,
    eos: Option<u32>,
    bos_text: String,
    eos_text: String,
    end_tokens: Vec<u32>,
    add_bos: bool,
}

/// What the two kinds of sources give.
pub(crate) struct Parts {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) added: AddedTokens,
    pub(crate) encoder: Encoder,
    pub(crate) bos: Option<u32>,
    /// Text of BOS where a template may ask for one that is no token.
    pub(crate) bos_text: Option<String>,
    pub(crate) eos: Option<u32>,
    pub(crate) eos_text: Option<String>,
    /// Tokens that the model says end a generation.
    pub(crate) ends: Vec<u32>,
    pub(crate) add_bos: bool,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("end_tokens", &self.end_tokens)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds a tokenizer. `vocab` is the number of rows of the model's embedding: a vocabulary that has more
    /// tokens is refused, one that has fewer is fine (models pad).
    pub fn new(source: &TokenizerSource, vocab: usize) -> Result<Tokenizer, TokenizerError> {
        let parts = match source {
            TokenizerSource::Gguf(metadata) => gguf::build(metadata, vocab)?,
            TokenizerSource::HuggingFace { json, config, eos, bos } => {
                huggingface::build(json, config, eos, *bos, vocab)?
            }
        };
        let vocabulary = parts.vocabulary;
        let known = |token: &u32| vocabulary.get(*token).is_some();
        let bos = parts.bos.filter(known);
        let eos = parts.eos.filter(known);
        let text = |token: Option<u32>, given: Option<String>| {
            given.unwrap_or_else(|| {
                token.map(|t| String::from_utf8_lossy(vocabulary.bytes(t)).into_owned()).unwrap_or_default()
            })
        };
        let (bos_text, eos_text) = (text(bos, parts.bos_text), text(eos, parts.eos_text));
        let ends = eos.into_iter().chain(parts.ends.into_iter().filter(known));
        Ok(Tokenizer {
            end_tokens: end_tokens::collect(ends, vocabulary.special()),
            vocabulary: Arc::new(vocabulary),
            added: parts.added,
            encoder: parts.encoder,
            bos,
            eos,
            bos_text,
            eos_text,
            add_bos: parts.add_bos && bos.is_some(),
        })
    }

    /// Encodes a text. With `add_bos` it begins with the BOS token if the model wants one (once, if the text
    /// has it already). EOS is never added: what follows an end is noise.
    pub fn encode(
        &self,
        text: &str,
        special: SpecialText,
        add_bos: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let whole = 0..text.len();
        let parsed: &[Range<usize>] = if special == SpecialText::Parse { &[whole] } else { &[] };
        let mut tokens = self.encode_ranges(text, parsed)?;
        if let Some(bos) = self.bos.filter(|bos| add_bos && self.add_bos && tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }

    /// Encodes a prompt that was put together from pieces. Ordinary text runs on across their borders; special
    /// tokens don't, not even where both pieces may contain them. No BOS is added: a chat template writes it where its model wants it.
    pub fn encode_segments(&self, segments: &[Segment<'_>]) -> Result<Vec<u32>, TokenizerError> {
        let mut text = String::with_capacity(segments.iter().map(|s| s.text.len()).sum());
        let mut parsed: Vec<Range<usize>> = Vec::new();
        for segment in segments {
            let start = text.len();
            text.push_str(&segment.text);
            if segment.special == SpecialText::Parse {
                parsed.push(start..text.len());
            }
        }
        self.encode_ranges(&text, &parsed)
    }

    fn encode_ranges(&self, text: &str, parsed: &[Range<usize>]) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TokenizerError::TextTooLong { bytes: text.len(), most: MAX_TEXT_BYTES });
        }
        let mut tokens = Vec::with_capacity(text.len() / 3);
        self.encoder.encode(text, &self.added.split(text, parsed), &mut tokens)?;
        match tokens.iter().find(|token| self.vocabulary.get(**token).is_none()) {
            Some(token) => {
                Err(TokenizerError::Encoding(format!("token {token} is outside of the vocabulary")))
            }
            None => Ok(tokens),
        }
    }

    /// The text of tokens, special ones as their text. Bytes that are no character become U+FFFD; tokens that
    /// the vocabulary doesn't have add nothing.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut detokenizer = self.detokenizer();
        let mut text = String::new();
        for &token in tokens {
            text.push_str(&detokenizer.push(token));
        }
        text.push_str(&detokenizer.finish());
        text
    }

    /// The exact bytes that a token stands for in running text, `None` if the vocabulary doesn't have it.
    pub fn token_bytes(&self, token: u32) -> Option<Cow<'_, [u8]>> {
        self.vocabulary.get(token).map(|piece| Cow::Borrowed(piece.bytes.as_slice()))
    }

    /// [`Tokenizer::token_bytes`] as text, U+FFFD where they are no characters.
    pub fn token_text(&self, token: u32) -> Option<String> {
        self.vocabulary.get(token).map(|piece| String::from_utf8_lossy(&piece.bytes).into_owned())
    }

    /// Turns tokens into text as they arrive, from the beginning of a text: a space that SentencePiece puts
    /// before each text is dropped from the first token.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.vocabulary), true)
    }

    /// Turns tokens into text as they arrive, behind a prompt: the space before a word that follows is kept.
    pub fn continuing_detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.vocabulary), false)
    }

    /// Whether a token steers the model rather than stands for text.
    pub fn is_special(&self, token: u32) -> bool {
        self.vocabulary.get(token).is_some_and(|piece| piece.special)
    }

    /// All special tokens with their texts, by id.
    pub fn special_tokens(&self) -> &[(u32, String)] {
        self.vocabulary.special()
    }

    /// Tokens that end a generation: EOS first if there is one, then others that the model names, then those
    /// known by their names (`<|im_end|>`, `<|eot_id|>`, ...).
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Text of the BOS token for templates, empty if there is none.
    pub fn bos_text(&self) -> &str {
        &self.bos_text
    }

    /// Text of the EOS token for templates, empty if there is none.
    pub fn eos_text(&self) -> &str {
        &self.eos_text
    }

    /// Whether the model wants its texts to begin with BOS.
    pub fn wants_bos(&self) -> bool {
        self.add_bos
    }

    /// Number of rows of the model's embedding; not all need be tokens with a text.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.size()
    }

    /// Bytes of the longest token.
    pub fn longest_token_bytes(&self) -> usize {
        self.vocabulary.longest()
    }
}
