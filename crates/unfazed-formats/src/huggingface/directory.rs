//! Which files of a directory belong to a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::fields::Fields;
use crate::checkpoint::{FILES_MAX, open_file};
use crate::source::FileSource;
use crate::{ByteSource, FormatError, TensorInfo};

pub(crate) const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Files that are opened if they exist.
const OPTIONAL: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];

/// Largest index that is read.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// More shards than this are refused: there is room for the configuration, the index and the optional files too.
const SHARDS_MAX: usize = FILES_MAX - 2 - OPTIONAL.len();

/// Opens the files of a model.
pub(crate) fn open_directory(directory: &Path) -> Result<Vec<FileSource>, FormatError> {
    if !directory.join(CONFIG).exists() {
        let name = directory.file_name().map_or("the directory".into(), |name| name.to_string_lossy());
        let reason = "a Hugging Face directory has it; for GGUF give the file";
        return Err(FormatError::missing(&name, "file config.json", reason));
    }
    let mut files = vec![open_file(directory, CONFIG)?];
    for name in OPTIONAL {
        if directory.join(name).exists() {
            files.push(open_file(directory, name)?);
        }
    }
    let shards = if directory.join(INDEX).exists() {
        let index = open_file(directory, INDEX)?;
        let shards = Index::read(&index)?.shards();
        files.push(index);
        shards
    } else if directory.join(SINGLE).exists() {
        BTreeSet::from([SINGLE.to_owned()])
    } else {
        shards_without_index(directory)?
    };
    if shards.is_empty() {
        let reason = format!("the directory has neither {SINGLE} nor {INDEX} nor other *.safetensors");
        return Err(FormatError::missing(CONFIG, "weights", reason));
    }
    if shards.len() > SHARDS_MAX {
        let reason = format!("at most {SHARDS_MAX} are opened");
        return Err(FormatError::invalid(INDEX, "number of files", shards.len(), reason));
    }
    for shard in &shards {
        files.push(open_file(directory, shard)?);
    }
    Ok(files)
}

/// True for names of files with tensors.
pub(crate) fn is_shard(name: &str) -> bool {
    name.ends_with(".safetensors")
}

fn shards_without_index(directory: &Path) -> Result<BTreeSet<String>, FormatError> {
    let listing = |error| FormatError::io(CONFIG, "the listing of its directory", error);
    let mut shards = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(listing)? {
        if let Ok(name) = entry.map_err(listing)?.file_name().into_string()
            && is_shard(&name)
            && !name.starts_with('.')
        {
            shards.insert(name);
        }
    }
    Ok(shards)
}

/// `model.safetensors.index.json`: which tensor is in which file.
struct Index {
    file: String,
    weight_map: BTreeMap<String, String>,
}

impl Index {
    fn read(source: &dyn ByteSource) -> Result<Index, FormatError> {
        const NAME: &str = "weight_map";
        let fields = Fields::read(source, INDEX_BYTES_MAX)?;
        let map =
            fields.get(NAME).ok_or_else(|| fields.missing(NAME, "it says which tensor is in which file"))?;
        let map = map.as_object().ok_or_else(|| fields.invalid(NAME, "it must be an object"))?;
        let mut weight_map = BTreeMap::new();
        for (tensor, shard) in map {
            let field = format_args!("{NAME}.{tensor}");
            let shard = match shard {
                Value::String(shard) if is_plain_name(shard) && is_shard(shard) => shard,
                other => {
                    let reason = "it must be the plain name of a *.safetensors file in the same directory";
                    return Err(FormatError::invalid(source.name(), field, other, reason));
                }
            };
            weight_map.insert(tensor.clone(), shard.clone());
        }
        Ok(Index { file: source.name().to_owned(), weight_map })
    }

    fn shards(&self) -> BTreeSet<String> {
        self.weight_map.values().cloned().collect()
    }
}

/// A name that cannot lead out of its directory.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

/// Checks that every tensor of the index, if there is one, was found in the file it names.
pub(crate) fn check_index(
    files: &[FileSource],
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<(), FormatError> {
    let Some(source) = files.iter().find(|file| file.name() == INDEX) else { return Ok(()) };
    let index = Index::read(source)?;
    for (tensor, shard) in &index.weight_map {
        let found = tensors.get(tensor).and_then(|info| files.get(info.extent.file.0 as usize));
        if found.map(ByteSource::name) != Some(shard.as_str()) {
            let reason = "the file does not have this tensor";
            return Err(FormatError::invalid(
                &index.file,
                format_args!("weight_map.{tensor}"),
                shard,
                reason,
            ));
        }
    }
    Ok(())
}
