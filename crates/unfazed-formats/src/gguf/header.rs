//! A whole header.

use super::cursor::Cursor;
use super::metadata::Metadata;
use super::tensors;
use crate::{ByteSource, FileId, FormatError, TensorInfo};

/// Alignment of tensor data where `general.alignment` is not given.
const ALIGNMENT_DEFAULT: u64 = 32;

/// Largest alignment: far above any page size, far below what could make offsets absurd.
const ALIGNMENT_MAX: u64 = 1 << 20;

/// What a GGUF file says before its tensor data.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Version of the format: 2 or 3.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// Tensors in the order of the file. Their extents are aligned, inside the file and do not overlap.
    pub tensors: Vec<TensorInfo>,
    /// Alignment of tensor data in bytes.
    pub alignment: u64,
    /// Where tensor data starts, from the start of the file.
    pub data_offset: u64,
}

/// Reads and checks the header of a GGUF file; tensor data is not touched. `file` is put into the extents.
pub fn read_header(source: &dyn ByteSource, file: FileId) -> Result<Header, FormatError> {
    let mut cursor = Cursor::new(source);
    let version = read_version(&mut cursor)?;
    let tensor_count = tensors::count(&mut cursor)?;
    let metadata_count = Metadata::count(&mut cursor)?;
    let metadata = Metadata::read(&mut cursor, metadata_count)?;
    let alignment = alignment(&metadata)?;
    let described = tensors::read(&mut cursor, tensor_count)?;
    // The position is inside a file, and an alignment is small: no overflow.
    let data_offset = cursor.position().next_multiple_of(alignment);
    let data = tensors::DataArea { source, file, alignment, offset: data_offset };
    let tensors = data.place(described)?;
    Ok(Header { version, metadata, tensors, alignment, data_offset })
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, FormatError> {
    let magic: [u8; 4] = cursor.array(format_args!("magic"))?;
    if magic != *b"GGUF" {
        let found = format!("\"{}\"", magic.escape_ascii());
        return Err(FormatError::invalid(cursor.file(), "magic", found, "a GGUF file starts with \"GGUF\""));
    }
    let version = cursor.u32(format_args!("version"))?;
    let refuse = |value: String| {
        let supported = "versions 2 and 3, little endian, are; convert the model again with a current tool";
        Err(FormatError::unsupported(cursor.file(), "version", value, supported))
    };
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=3) => {
            refuse(format!("{} in big endian", version.swap_bytes()))
        }
        _ => refuse(version.to_string()),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, FormatError> {
    const KEY: &str = "general.alignment";
    match metadata.u64(KEY)? {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(alignment) if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX => Ok(alignment),
        Some(_) => Err(metadata.invalid(KEY, format!("it must be a power of two, at most {ALIGNMENT_MAX}"))),
    }
}
