//! A model's files, opened once and read.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::gguf::split::{PARTS_MAX, PartName};
use crate::huggingface::{Fields, TokenizerFiles};
use crate::source::FileSource;
use crate::{ByteSource, FileId, FormatError, ModelConfig, TensorInfo, gguf, huggingface};

/// Most files of a model: each is an open file, and all of them are handed to the engine beside one message.
pub const FILES_MAX: usize = 248;

/// Largest `config.json` (and its siblings) that is read: a tokenizer's configuration may list some thousand
/// added tokens.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// How a checkpoint's files are laid out; decides the tensors' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Opens and reads a model: [`Checkpoint::open_files`], then [`Checkpoint::read`]. The only way that knows the
    /// name of a Hugging Face directory, and takes it as the model's.
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        let mut checkpoint = Checkpoint::read(Checkpoint::open_files(path)?)?;
        if checkpoint.layout == Layout::HuggingFace
            && let Some(name) = path.canonicalize().ok().as_deref().and_then(Path::file_name)
        {
            checkpoint.name = name.to_string_lossy().into_owned();
        }
        Ok(checkpoint)
    }

    /// Opens the files of a model: a GGUF file (with all parts of a split one) or a Hugging Face directory. The
    /// result is what [`Checkpoint::read`] takes, here or in another process.
    pub fn open_files(path: &Path) -> Result<Vec<FileSource>, FormatError> {
        if path.is_dir() {
            return huggingface::open_directory(path);
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let directory = path.parent().unwrap_or(Path::new(""));
        if huggingface::is_shard(&name) || name == huggingface::CONFIG {
            let reason = "give the directory that holds it, with config.json and tokenizer.json";
            return Err(FormatError::unsupported(&name, "model", &name, reason));
        }
        let Some(part) = PartName::parse(&name) else {
            return Ok(vec![open_path(path, &name)?]);
        };
        if part.count > PARTS_MAX {
            let reason = format!("at most {PARTS_MAX} are opened");
            return Err(FormatError::invalid(&name, "number of parts", part.count, reason));
        }
        (1..=part.count).map(|number| open_file(directory, &part.part(number))).collect()
    }

    /// Reads the headers of a model's open files, in the order of [`Checkpoint::open_files`].
    pub fn read(files: Vec<FileSource>) -> Result<Checkpoint, FormatError> {
        if files.iter().any(|file| file.name() == huggingface::CONFIG) {
            read_huggingface(files)
        } else {
            read_gguf(files)
        }
    }
}

/// Opens a file of a directory by its base name.
pub(crate) fn open_file(directory: &Path, name: &str) -> Result<FileSource, FormatError> {
    open_path(&directory.join(name), name)
}

fn open_path(path: &Path, name: &str) -> Result<FileSource, FormatError> {
    let error = |source| FormatError::io(name, "the file", source);
    // Looked at before it is opened: opening a pipe would wait for a writer.
    if !path.metadata().map_err(error)?.is_file() {
        return Err(FormatError::invalid(
            name,
            "file type",
            "not a regular file",
            "give a file or a directory",
        ));
    }
    FileSource::new(name, File::open(path).map_err(error)?).map_err(error)
}

/// Puts tensors of several files together.
#[derive(Default)]
struct TensorTable {
    tensors: BTreeMap<String, TensorInfo>,
    bytes: u64,
}

impl TensorTable {
    fn add(&mut self, file: &str, tensors: Vec<TensorInfo>) -> Result<(), FormatError> {
        for tensor in tensors {
            // A sum of sizes of real files; saturating only because nothing here may panic.
            self.bytes = self.bytes.saturating_add(tensor.extent.len);
            if self.tensors.contains_key(&tensor.name) {
                let reason = "another file of the model has a tensor of this name";
                return Err(FormatError::invalid(file, "name of a tensor", &tensor.name, reason));
            }
            self.tensors.insert(tensor.name.clone(), tensor);
        }
        Ok(())
    }
}

fn read_gguf(files: Vec<FileSource>) -> Result<Checkpoint, FormatError> {
    let mut headers = Vec::new();
    for (i, file) in files.iter().enumerate() {
        headers.push(gguf::read_header(file, FileId(i as u32))?);
    }
    gguf::split::check_parts(&headers)?;
    let (Some(first_file), Some(first)) = (files.first(), headers.first_mut()) else {
        return Err(FormatError::missing("model", "files", "at least one is needed"));
    };
    let metadata = std::mem::take(&mut first.metadata);
    let file_name = first_file.name().to_owned();
    let mut table = TensorTable::default();
    for (file, header) in files.iter().zip(headers) {
        table.add(file.name(), header.tensors)?;
    }
    let factors = table.tensors.get(gguf::ROPE_FACTORS).and_then(|tensor| {
        let file = files.get(tensor.extent.file.0 as usize)?;
        Some(gguf::rope_factors(file, tensor))
    });
    let config = gguf::model_config(&metadata, |name| table.tensors.get(name), factors.transpose()?)?;
    let tokenizer = gguf::tokenizer(&metadata, config.vocab)?;
    let stem = PartName::parse(&file_name).map(|part| part.stem);
    let stem = stem.unwrap_or_else(|| file_name.trim_end_matches(".gguf").to_owned());
    Ok(Checkpoint {
        layout: Layout::Gguf,
        tensors: table.tensors,
        config,
        tokenizer: TokenizerSource::Gguf(tokenizer),
        chat_template: metadata.string("tokenizer.chat_template")?.map(str::to_owned),
        name: metadata.string("general.name")?.map_or(stem, str::to_owned),
        tensor_bytes: table.bytes,
        files,
    })
}

fn read_huggingface(files: Vec<FileSource>) -> Result<Checkpoint, FormatError> {
    let find = |name: &str| files.iter().find(|file| file.name() == name);
    let read = |name: &str| find(name).map(|file| Fields::read(file, CONFIG_BYTES_MAX)).transpose();
    let Some(fields) = read(huggingface::CONFIG)? else {
        return Err(FormatError::missing("model", "file config.json", "a Hugging Face directory has it"));
    };
    let mut table = TensorTable::default();
    for (i, file) in files.iter().enumerate().filter(|(_, file)| huggingface::is_shard(file.name())) {
        table.add(file.name(), huggingface::safetensors::read_header(file, FileId(i as u32))?)?;
    }
    huggingface::check_index(&files, &table.tensors)?;
    let tokenizer_files = TokenizerFiles {
        tokenizer: find("tokenizer.json"),
        tokenizer_config: read("tokenizer_config.json")?,
        generation_config: read("generation_config.json")?,
        template: find("chat_template.jinja"),
    };
    let config = huggingface::model_config(&fields, table.tensors.contains_key("lm_head.weight"))?;
    let tokenizer = huggingface::tokenizer(&tokenizer_files, &fields)?;
    let chat_template = huggingface::chat_template(&tokenizer_files)?;
    let published = fields.string("_name_or_path")?.and_then(|name| name.rsplit('/').next());
    let name = published.filter(|name| !name.is_empty()).unwrap_or("model").to_owned();
    drop(tokenizer_files);
    Ok(Checkpoint {
        layout: Layout::HuggingFace,
        tensors: table.tensors,
        config,
        tokenizer,
        chat_template,
        name,
        tensor_bytes: table.bytes,
        files,
    })
}
