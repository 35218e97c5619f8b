//! GGUF headers from metadata and tensor descriptions.

use unfazed_formats::BlockFormat;
use unfazed_formats::gguf::ggml_type::ggml_type;
use unfazed_formats::gguf::{Array, Value};

use crate::TestkitError;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Name in the file.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// How its weights are stored.
    pub format: BlockFormat,
}

/// A file to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufWriter {
    /// Version of the format.
    pub version: u32,
    /// Alignment of tensor data; other than 32 it is written as `general.alignment`.
    pub alignment: u64,
    /// Keys and values in order.
    pub metadata: Vec<(String, Value)>,
    /// Tensors in order.
    pub tensors: Vec<Entry>,
}

/// Where the parts of a file are.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufLayout {
    /// Everything before tensor data, padded to the alignment.
    pub header: Vec<u8>,
    /// First byte and number of bytes of each tensor, from the start of the file.
    pub extents: Vec<(u64, u64)>,
    /// Length of the file.
    pub len: u64,
}

impl GgufWriter {
    /// A file of version 3 with the usual alignment.
    pub fn new(metadata: Vec<(String, Value)>, tensors: Vec<Entry>) -> GgufWriter {
        GgufWriter { version: 3, alignment: 32, metadata, tensors }
    }

    /// The header, and where tensor data goes.
    pub fn layout(&self) -> Result<GgufLayout, TestkitError> {
        let alignment = ("general.alignment".to_owned(), Value::U32(self.alignment as u32));
        let extra = (self.alignment != 32).then_some(&alignment);
        let metadata: Vec<_> = self.metadata.iter().chain(extra).collect();

        let mut header = Vec::new();
        header.extend(b"GGUF");
        header.extend(self.version.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            put_string(&mut header, key);
            put_value(&mut header, value);
        }
        let mut relative = Vec::new();
        let mut end = 0u64;
        for entry in &self.tensors {
            let bytes = entry_bytes(entry)?;
            relative.push((end, bytes));
            put_string(&mut header, &entry.name);
            header.extend((entry.shape.len() as u32).to_le_bytes());
            for dimension in entry.shape.iter().rev() {
                header.extend((*dimension as u64).to_le_bytes());
            }
            let id = ggml_type(entry.format).ok_or_else(|| {
                TestkitError::request(
                    "format",
                    &format!("{:?}", entry.format),
                    "not one of GGUF's".to_owned(),
                )
            })?;
            header.extend(id.to_le_bytes());
            header.extend(end.to_le_bytes());
            end = (end + bytes).next_multiple_of(self.alignment);
        }
        let data_offset = (header.len() as u64).next_multiple_of(self.alignment);
        header.resize(data_offset as usize, 0);
        let extents = relative.into_iter().map(|(offset, len)| (data_offset + offset, len)).collect();
        Ok(GgufLayout { header, extents, len: data_offset + end })
    }

    /// The whole file; `data` gives the bytes of each tensor.
    pub fn to_bytes(
        &self,
        mut data: impl FnMut(usize) -> Result<Vec<u8>, TestkitError>,
    ) -> Result<Vec<u8>, TestkitError> {
        let layout = self.layout()?;
        let mut file = layout.header;
        for (i, (offset, len)) in layout.extents.iter().enumerate() {
            file.resize(*offset as usize, 0);
            let bytes = data(i)?;
            if bytes.len() as u64 != *len {
                let name = self.tensors.get(i).map_or("", |entry| entry.name.as_str());
                let reason = format!("tensor {name} takes {len}");
                return Err(TestkitError::request("number of bytes", &bytes.len(), reason));
            }
            file.extend(bytes);
        }
        file.resize(layout.len as usize, 0);
        Ok(file)
    }
}

fn entry_bytes(entry: &Entry) -> Result<u64, TestkitError> {
    let columns = entry.shape.last().copied().unwrap_or_default();
    let rows: usize = entry.shape.iter().rev().skip(1).product();
    let bytes = entry.format.row_bytes(columns).and_then(|row| row.checked_mul(rows));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| {
        let reason = format!("tensor {} has no whole blocks of {:?}", entry.name, entry.format);
        TestkitError::request("number of columns", &columns, reason)
    })
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A type id and a value.
fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |id: u32, bytes: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(value) => put(0, &value.to_le_bytes()),
        Value::I8(value) => put(1, &value.to_le_bytes()),
        Value::U16(value) => put(2, &value.to_le_bytes()),
        Value::I16(value) => put(3, &value.to_le_bytes()),
        Value::U32(value) => put(4, &value.to_le_bytes()),
        Value::I32(value) => put(5, &value.to_le_bytes()),
        Value::F32(value) => put(6, &value.to_le_bytes()),
        Value::Bool(value) => put(7, &[u8::from(*value)]),
        Value::String(text) => {
            put(8, &[]);
            put_string(out, text);
        }
        Value::Array(array) => {
            put(9, &[]);
            put_array(out, array);
        }
        Value::U64(value) => put(10, &value.to_le_bytes()),
        Value::I64(value) => put(11, &value.to_le_bytes()),
        Value::F64(value) => put(12, &value.to_le_bytes()),
    }
}

/// An element type, a length and elements.
fn put_array(out: &mut Vec<u8>, array: &Array) {
    let mut head = |id: u32| {
        out.extend(id.to_le_bytes());
        out.extend((array.len() as u64).to_le_bytes());
    };
    match array {
        Array::U8(values) => {
            head(0);
            out.extend(values);
        }
        Array::I8(values) => {
            head(1);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::U16(values) => {
            head(2);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::I16(values) => {
            head(3);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::U32(values) => {
            head(4);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::I32(values) => {
            head(5);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::F32(values) => {
            head(6);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::Bool(values) => {
            head(7);
            out.extend(values.iter().map(|value| u8::from(*value)));
        }
        Array::String(values) => {
            head(8);
            values.iter().for_each(|text| put_string(out, text));
        }
        Array::Array(values) => {
            head(9);
            values.iter().for_each(|inner| put_array(out, inner));
        }
        Array::U64(values) => {
            head(10);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::I64(values) => {
            head(11);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Array::F64(values) => {
            head(12);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
}
