//! A model's files, opened once and read.

use std::collections::BTreeMap;
use std::path::Path;

use crate::source::FileSource;
use crate::{FormatError, ModelConfig, TensorInfo};

/// How a checkpoint's files are laid out; decides the tensors' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One or several GGUF files.
    Gguf,
    /// A Hugging Face directory.
    HuggingFace,
}

/// What a tokenizer is built from.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// `tokenizer.ggml.*` of a GGUF file.
    Gguf(GgufTokenizer),
    /// `tokenizer.json` with what else a Hugging Face directory says.
    HuggingFace {
        /// The bytes of `tokenizer.json`.
        json: Vec<u8>,
        /// `tokenizer_config.json`, `Null` if there is none.
        config: serde_json::Value,
        /// `eos_token_id` of `generation_config.json`, else of `config.json`: one id or several.
        eos: Vec<u32>,
        /// `bos_token_id` of the same.
        bos: Option<u32>,
    },
}

/// `tokenizer.ggml.*` as read: lengths are checked against each other, ids against the number of tokens.
#[derive(Clone, Debug, Default)]
pub struct GgufTokenizer {
    /// Base name of the file, for errors.
    pub file: String,
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `tokenizer.ggml.pre`, if given.
    pub pre: Option<String>,
    /// Text of each token.
    pub tokens: Vec<String>,
    /// Score of each token (SentencePiece), empty if not given.
    pub scores: Vec<f32>,
    /// Type of each token (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte), empty if not given.
    pub types: Vec<i32>,
    /// Merges, `"left right"`, in order of rank.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id` (end of a turn).
    pub eot: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix` (SentencePiece).
    pub add_space_prefix: Option<bool>,
}

/// A model: its files and everything that their headers say.
#[derive(Debug)]
pub struct Checkpoint {
    /// How the files are laid out.
    pub layout: Layout,
    /// Open files; [`crate::FileId`] is the index.
    pub files: Vec<FileSource>,
    /// Tensors by their name in the files. Extents are inside their files and do not overlap.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// Shape of the model.
    pub config: ModelConfig,
    /// What the tokenizer is built from.
    pub tokenizer: TokenizerSource,
    /// Chat template in Jinja, if the model has one.
    pub chat_template: Option<String>,
    /// `general.name` of a GGUF file, else the directory's or file's stem.
    pub name: String,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
}

impl Checkpoint {
    /// Opens the files of a model: a GGUF file (with all parts of a split one) or a Hugging Face directory. The
    /// result is what [`Checkpoint::read`] takes, here or in another process.
    pub fn open_files(path: &Path) -> Result<Vec<FileSource>, FormatError> {
        let _ = path;
        unimplemented!()
    }

    /// Reads the headers of a model's open files.
    pub fn read(files: Vec<FileSource>) -> Result<Checkpoint, FormatError> {
        let _ = files;
        unimplemented!()
    }
}
