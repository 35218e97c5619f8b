//! Tensor descriptions: read as they are, then checked and placed in the file.

use std::collections::HashSet;

use super::cursor::Cursor;
use super::ggml_type;
use crate::{BlockFormat, ByteSource, Extent, FileId, FormatError, TensorInfo};

/// Longest tensor name, as the specification sets it.
const NAME_BYTES_MAX: u64 = 64;

/// Most dimensions of a tensor, as the specification sets it.
const DIMENSIONS_MAX: u32 = 4;

/// Most tensors of a file. Large models have some thousands.
const TENSORS_MAX: usize = 1 << 20;

/// Bytes of the shortest description: a name of one byte, one dimension.
const DESCRIPTION_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A tensor as described, before its place was checked.
pub(super) struct Described {
    name: String,
    shape: Vec<u64>,
    format: BlockFormat,
    /// From the start of the data area.
    offset: u64,
    bytes: u64,
}

pub(super) fn count(cursor: &mut Cursor<'_>) -> Result<usize, FormatError> {
    let field = format_args!("tensor count");
    let count = cursor.count(field, DESCRIPTION_BYTES_MIN)?;
    if count > TENSORS_MAX {
        let reason = format!("at most {TENSORS_MAX} are allowed");
        return Err(FormatError::invalid(cursor.file(), field, count, reason));
    }
    Ok(count)
}

pub(super) fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<Described>, FormatError> {
    let mut names = HashSet::new();
    let mut described = Vec::new();
    for i in 0..count {
        let tensor = read_one(cursor, i)?;
        if !names.insert(tensor.name.clone()) {
            let field = format_args!("name of tensor {i}");
            let reason = "the name was already used";
            return Err(FormatError::invalid(
                cursor.file(),
                field,
                format_args!("\"{}\"", tensor.name),
                reason,
            ));
        }
        described.push(tensor);
    }
    Ok(described)
}

fn read_one(cursor: &mut Cursor<'_>, i: usize) -> Result<Described, FormatError> {
    let name = cursor.string(format_args!("name of tensor {i}"), NAME_BYTES_MAX)?;
    if name.is_empty() || name.chars().any(char::is_control) {
        let field = format_args!("name of tensor {i}");
        let reason = "a name is not empty and has no control characters";
        return Err(FormatError::invalid(cursor.file(), field, format_args!("\"{name}\""), reason));
    }
    let dimensions = cursor.u32(format_args!("dimension count of tensor {name}"))?;
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        let field = format_args!("dimension count of tensor {name}");
        let reason = format!("it must be from 1 to {DIMENSIONS_MAX}");
        return Err(FormatError::invalid(cursor.file(), field, dimensions, reason));
    }
    let mut shape = (0..dimensions)
        .map(|d| cursor.u64(format_args!("dimension {d} of tensor {name}")))
        .collect::<Result<Vec<_>, _>>()?;
    let type_id = cursor.u32(format_args!("type of tensor {name}"))?;
    let Some(format) = ggml_type::block_format(type_id) else {
        let value = ggml_type::unsupported_name(type_id)
            .map_or_else(|| format!("{type_id}, an unknown type"), |known| format!("{type_id} ({known})"));
        let supported = format!("{} are", ggml_type::supported_names());
        return Err(FormatError::unsupported(
            cursor.file(),
            format_args!("type of tensor {name}"),
            value,
            supported,
        ));
    };
    let bytes = tensor_bytes(cursor.file(), &name, &shape, format)?;
    let offset = cursor.u64(format_args!("offset of tensor {name}"))?;
    shape.reverse();
    Ok(Described { name, shape, format, offset, bytes })
}

/// Bytes of a tensor with these dimensions, innermost first.
fn tensor_bytes(file: &str, name: &str, dimensions: &[u64], format: BlockFormat) -> Result<u64, FormatError> {
    let field = format_args!("dimensions of tensor {name}");
    let invalid = |reason: String| FormatError::invalid(file, field, format_args!("{dimensions:?}"), reason);
    if dimensions.contains(&0) {
        return Err(invalid("none may be zero".to_owned()));
    }
    let columns = dimensions.first().copied().unwrap_or_default();
    if columns % format.block_weights() as u64 != 0 {
        let block = format.block_weights();
        return Err(invalid(format!("the first must be whole blocks of {block} for {format:?}")));
    }
    let elements = dimensions.iter().try_fold(1u64, |product, d| product.checked_mul(*d));
    elements
        .and_then(|elements| {
            elements.div_ceil(format.block_weights() as u64).checked_mul(format.block_bytes() as u64)
        })
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| invalid("the product is too large".to_owned()))
}

/// The part of a file that holds tensor data.
pub(super) struct DataArea<'a> {
    pub(super) source: &'a dyn ByteSource,
    pub(super) file: FileId,
    pub(super) alignment: u64,
    pub(super) offset: u64,
}

impl DataArea<'_> {
    /// Checks that every tensor is aligned, inside the file and on its own.
    pub(super) fn place(&self, described: Vec<Described>) -> Result<Vec<TensorInfo>, FormatError> {
        let tensors = described.into_iter().map(|d| self.place_one(d)).collect::<Result<Vec<_>, _>>()?;
        let mut order: Vec<&TensorInfo> = tensors.iter().collect();
        order.sort_by_key(|tensor| tensor.extent.offset);
        for pair in order.windows(2) {
            let [first, second] = pair else { continue };
            let end = first.extent.offset + first.extent.len;
            if end > second.extent.offset {
                return Err(FormatError::invalid(
                    self.source.name(),
                    format_args!("offset of tensor {}", second.name),
                    second.extent.offset - self.offset,
                    format!(
                        "tensor {} overlaps it with the bytes from {} to {}",
                        first.name,
                        first.extent.offset - self.offset,
                        end - self.offset
                    ),
                ));
            }
        }
        Ok(tensors)
    }

    fn place_one(&self, described: Described) -> Result<TensorInfo, FormatError> {
        let Described { name, shape, format, offset, bytes } = described;
        let field = format_args!("offset of tensor {name}");
        if !offset.is_multiple_of(self.alignment) {
            let reason = format!("it must be a multiple of the alignment {}", self.alignment);
            return Err(FormatError::invalid(self.source.name(), field, offset, reason));
        }
        let start = self.offset.checked_add(offset);
        let inside =
            start.and_then(|start| start.checked_add(bytes)).is_some_and(|end| end <= self.source.len());
        match start {
            Some(start) if inside => Ok(TensorInfo {
                name,
                shape,
                format,
                extent: Extent { file: self.file, offset: start, len: bytes },
            }),
            _ => {
                let reason = format!(
                    "its {bytes} bytes do not end inside the file: tensor data starts at {} and the file ends at {}",
                    self.offset,
                    self.source.len()
                );
                Err(FormatError::invalid(self.source.name(), field, offset, reason))
            }
        }
    }
}
