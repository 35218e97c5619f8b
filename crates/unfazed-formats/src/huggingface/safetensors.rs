//! Headers of safetensors files, parsed by the `safetensors` crate without the tensor data.

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::{BlockFormat, ByteSource, Extent, FileId, FormatError, TensorInfo};

/// A header longer than this is refused: the bound of the `safetensors` crate.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Most dimensions of a tensor.
const DIMENSIONS_MAX: usize = 8;

/// Longest tensor name in bytes.
const NAME_BYTES_MAX: usize = 512;

/// Reads and checks the header of a safetensors file. Extents are inside the file and do not overlap. `file` is
/// put into the extents.
pub fn read_header(source: &dyn ByteSource, file: FileId) -> Result<Vec<TensorInfo>, FormatError> {
    let invalid = |field: &str, value: u64, reason: String| {
        Err(FormatError::invalid(source.name(), field, value, reason))
    };
    let mut length = [0; 8];
    if source.len() < length.len() as u64 {
        return invalid(
            "file size",
            source.len(),
            "a safetensors file starts with 8 bytes of length".to_owned(),
        );
    }
    read(source, &mut length, 0)?;
    let header_bytes = u64::from_le_bytes(length);
    let left = source.len() - length.len() as u64;
    if header_bytes > left.min(HEADER_BYTES_MAX) {
        let reason = format!("{left} bytes are left in the file, and a header may have {HEADER_BYTES_MAX}");
        return invalid("header length", header_bytes, reason);
    }
    let mut header = vec![0; header_bytes as usize];
    read(source, &mut header, length.len() as u64)?;
    // The crate checks that the tensors' bytes follow one another without a gap and have the size that shape and
    // type ask for.
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| {
        let value = format_args!("{header_bytes} bytes of JSON");
        FormatError::invalid(source.name(), "header", value, error.to_string())
    })?;
    let data_bytes = metadata.data_len() as u64;
    if data_bytes != left - header_bytes {
        let reason = format!("the file has {} bytes of it", left - header_bytes);
        return invalid("length of tensor data", data_bytes, reason);
    }
    let data_offset = length.len() as u64 + header_bytes;
    let mut tensors = Vec::new();
    for name in metadata.offset_keys() {
        // Present: the name came from the same table.
        let Some(info) = metadata.info(&name) else { continue };
        let (start, end) = info.data_offsets;
        let extent = Extent { file, offset: data_offset + start as u64, len: (end - start) as u64 };
        tensors.push(describe(source.name(), name, info.dtype, &info.shape, extent)?);
    }
    Ok(tensors)
}

fn describe(
    file: &str,
    name: String,
    dtype: Dtype,
    shape: &[usize],
    extent: Extent,
) -> Result<TensorInfo, FormatError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let reason = format!("a name has 1 to {NAME_BYTES_MAX} bytes and no control characters");
        return Err(FormatError::invalid(file, "name of a tensor", format_args!("\"{name}\""), reason));
    }
    if shape.is_empty() || shape.len() > DIMENSIONS_MAX || shape.contains(&0) {
        let field = format_args!("shape of tensor {name}");
        let reason = format!("there must be 1 to {DIMENSIONS_MAX} dimensions and none may be zero");
        return Err(FormatError::invalid(file, field, format_args!("{shape:?}"), reason));
    }
    let format = match dtype {
        Dtype::BF16 => BlockFormat::BF16,
        Dtype::F16 => BlockFormat::F16,
        Dtype::F32 => BlockFormat::F32,
        other => {
            let field = format_args!("type of tensor {name}");
            return Err(FormatError::unsupported(
                file,
                field,
                format_args!("{other:?}"),
                "BF16, F16 and F32 are",
            ));
        }
    };
    Ok(TensorInfo { name, shape: shape.iter().map(|d| *d as u64).collect(), format, extent })
}

fn read(source: &dyn ByteSource, buf: &mut [u8], offset: u64) -> Result<(), FormatError> {
    let result = source.read_exact_at(buf, offset);
    result.map_err(|error| FormatError::io(source.name(), "the header", error))
}
