//! Text to tokens and back.
//!
//! | module | what |
//! |---|---|
//! | [`tokenizer`] | the entry point: [`Tokenizer`], encoding of text and of [`Segment`]s |
//! | [`detokenizer`] | tokens to text as they arrive, never half a character |
//! | `vocabulary` | what each token stands for, which tokens are special |
//! | `added` | finding added tokens in text |
//! | `encoder` | ordinary text to tokens, through the `tokenizers` crate or SentencePiece |
//! | `sentencepiece` | SentencePiece BPE: merges driven by scores, byte fallback |
//! | `byte_level` | the alphabet of byte-level BPE |
//! | `pretokenizer` | how GGUF names the ways to split text before BPE |
//! | `gguf`, `huggingface` | the two sources a tokenizer is built from |
//! | `end_tokens` | which tokens end a generation |
//!
//! # Special tokens and what a user writes
//!
//! A *special* token (`<|im_end|>`, `</s>`) steers the model; whoever can write one can end a turn and begin
//! another in somebody else's name. So each piece of text says whether special-token text in it is meant
//! ([`SpecialText`]). Ordinary text on both sides of a border between pieces is still encoded as one run: the
//! tokens are those of the whole text, only the special ones differ. Added tokens that are not special (runs
//! of spaces, `</think>` in many models) are ordinary vocabulary and are found in all text.

mod added;
mod byte_level;
pub mod detokenizer;
mod encoder;
mod end_tokens;
mod error;
mod gguf;
mod huggingface;
mod pretokenizer;
mod sentencepiece;
pub mod tokenizer;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use error::TokenizerError;
pub use tokenizer::{MAX_TEXT_BYTES, Segment, SpecialText, Tokenizer};
