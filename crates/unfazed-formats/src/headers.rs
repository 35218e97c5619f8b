//! What computing a model needs of its files' headers, to be handed to another process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Layout;
use crate::source::FileSource;
use crate::{ByteSource, Checkpoint, Identity, ModelConfig, TensorInfo};

/// A checkpoint without its open files, tokenizer and template. A process that has it computes the model without reading
/// a header, which may take long (a tokenizer has some 100,000 texts) or, of a file that was changed since, fail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Headers {
    /// How the files are laid out.
    pub layout: Layout,
    /// Base names of the files; [`crate::FileId`] is the index.
    pub files: Vec<String>,
    /// What each of them was when it was opened.
    pub identities: Vec<Identity>,
    /// Tensors by their name in the files.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// Shape of the model.
    pub config: ModelConfig,
    /// What the model calls itself.
    pub name: String,
}

/// Bytes that are no headers.
#[derive(Debug, thiserror::Error)]
#[error("the model's headers do not decode: {0}")]
pub struct HeadersError(#[from] postcard::Error);

impl Headers {
    /// For [`Headers::decode`] in a process of the same build.
    pub fn encode(&self) -> Result<Vec<u8>, HeadersError> {
        Ok(postcard::to_stdvec(self)?)
    }

    /// What [`Headers::encode`] made.
    pub fn decode(bytes: &[u8]) -> Result<Headers, HeadersError> {
        Ok(postcard::from_bytes(bytes)?)
    }
}

impl From<&Checkpoint> for Headers {
    fn from(checkpoint: &Checkpoint) -> Headers {
        Headers {
            layout: checkpoint.layout,
            files: checkpoint.files.iter().map(|file| file.name().to_owned()).collect(),
            identities: checkpoint.files.iter().map(FileSource::identity).collect(),
            tensors: checkpoint.tensors.clone(),
            config: checkpoint.config.clone(),
            name: checkpoint.name.clone(),
        }
    }
}
