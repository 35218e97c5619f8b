//! Metadata values: the 13 types of the specification.

use std::fmt;
use std::fmt::Arguments;

use super::cursor::Cursor;
use crate::FormatError;

/// Arrays inside arrays inside ... deeper than this are refused. No known key nests at all.
pub const NESTING_MAX: usize = 4;

/// Strings longer than this are refused (the longest known are chat templates of some 20 KB).
const STRING_BYTES_MAX: u64 = 16 << 20;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// Values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(values) => values.len(),
            Array::I8(values) => values.len(),
            Array::U16(values) => values.len(),
            Array::I16(values) => values.len(),
            Array::U32(values) => values.len(),
            Array::I32(values) => values.len(),
            Array::F32(values) => values.len(),
            Array::Bool(values) => values.len(),
            Array::String(values) => values.len(),
            Array::Array(values) => values.len(),
            Array::U64(values) => values.len(),
            Array::I64(values) => values.len(),
            Array::F64(values) => values.len(),
        }
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::F32(_) => "f32",
            Array::Bool(_) => "bool",
            Array::String(_) => "string",
            Array::Array(_) => "array",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F64(_) => "f64",
        }
    }
}

/// For messages: strings in quotes, arrays by their type and length.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(value) => write!(f, "{value}"),
            Value::I8(value) => write!(f, "{value}"),
            Value::U16(value) => write!(f, "{value}"),
            Value::I16(value) => write!(f, "{value}"),
            Value::U32(value) => write!(f, "{value}"),
            Value::I32(value) => write!(f, "{value}"),
            Value::F32(value) => write!(f, "{value:?}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::String(value) => write!(f, "\"{value}\""),
            Value::Array(array) => write!(f, "an array of {} {} values", array.len(), array.type_name()),
            Value::U64(value) => write!(f, "{value}"),
            Value::I64(value) => write!(f, "{value}"),
            Value::F64(value) => write!(f, "{value:?}"),
        }
    }
}

/// Ids of the value types, as the specification numbers them.
mod id {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}

/// Reads a type and a value of that type.
pub(super) fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, FormatError> {
    let field = format_args!("value of {key}");
    let type_id = cursor.u32(format_args!("value type of {key}"))?;
    Ok(match type_id {
        id::U8 => Value::U8(cursor.u8(field)?),
        id::I8 => Value::I8(cursor.array(field).map(i8::from_le_bytes)?),
        id::U16 => Value::U16(cursor.array(field).map(u16::from_le_bytes)?),
        id::I16 => Value::I16(cursor.array(field).map(i16::from_le_bytes)?),
        id::U32 => Value::U32(cursor.u32(field)?),
        id::I32 => Value::I32(cursor.array(field).map(i32::from_le_bytes)?),
        id::F32 => Value::F32(cursor.array(field).map(f32::from_le_bytes)?),
        id::BOOL => Value::Bool(boolean(cursor.u8(field)?, cursor.file(), field)?),
        id::STRING => Value::String(cursor.string(field, STRING_BYTES_MAX)?),
        id::ARRAY => Value::Array(read_array(cursor, key, 1)?),
        id::U64 => Value::U64(cursor.u64(field)?),
        id::I64 => Value::I64(cursor.array(field).map(i64::from_le_bytes)?),
        id::F64 => Value::F64(cursor.array(field).map(f64::from_le_bytes)?),
        _ => return Err(unknown_type(cursor, format_args!("value type of {key}"), type_id)),
    })
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array, FormatError> {
    if depth > NESTING_MAX {
        let reason = format!("arrays nested deeper than {NESTING_MAX} are refused");
        return Err(FormatError::invalid(cursor.file(), format_args!("nesting of {key}"), depth, reason));
    }
    let type_id = cursor.u32(format_args!("element type of {key}"))?;
    Ok(match type_id {
        id::U8 => Array::U8(numbers(cursor, key, u8::from_le_bytes)?),
        id::I8 => Array::I8(numbers(cursor, key, i8::from_le_bytes)?),
        id::U16 => Array::U16(numbers(cursor, key, u16::from_le_bytes)?),
        id::I16 => Array::I16(numbers(cursor, key, i16::from_le_bytes)?),
        id::U32 => Array::U32(numbers(cursor, key, u32::from_le_bytes)?),
        id::I32 => Array::I32(numbers(cursor, key, i32::from_le_bytes)?),
        id::F32 => Array::F32(numbers(cursor, key, f32::from_le_bytes)?),
        id::U64 => Array::U64(numbers(cursor, key, u64::from_le_bytes)?),
        id::I64 => Array::I64(numbers(cursor, key, i64::from_le_bytes)?),
        id::F64 => Array::F64(numbers(cursor, key, f64::from_le_bytes)?),
        id::BOOL => {
            let bytes = numbers(cursor, key, u8::from_le_bytes)?;
            let file = cursor.file();
            let values = bytes.into_iter().map(|byte| boolean(byte, file, format_args!("element of {key}")));
            Array::Bool(values.collect::<Result<_, _>>()?)
        }
        id::STRING => {
            // A string takes at least its length.
            let count = cursor.count(format_args!("length of {key}"), 8)?;
            let values = (0..count).map(|i| cursor.string(format_args!("{key}[{i}]"), STRING_BYTES_MAX));
            Array::String(values.collect::<Result<_, _>>()?)
        }
        id::ARRAY => {
            // An array takes at least its element type and its length.
            let count = cursor.count(format_args!("length of {key}"), 12)?;
            let values = (0..count).map(|_| read_array(cursor, key, depth + 1));
            Array::Array(values.collect::<Result<_, _>>()?)
        }
        _ => return Err(unknown_type(cursor, format_args!("element type of {key}"), type_id)),
    })
}

fn numbers<const N: usize, T>(
    cursor: &mut Cursor<'_>,
    key: &str,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, FormatError> {
    let count = cursor.count(format_args!("length of {key}"), N as u64)?;
    // `count` made sure that this product is not larger than the file.
    let bytes = cursor.bytes(format_args!("elements of {key}"), count * N)?;
    let (elements, _) = bytes.as_chunks::<N>();
    Ok(elements.iter().map(|element| decode(*element)).collect())
}

fn boolean(byte: u8, file: &str, field: Arguments<'_>) -> Result<bool, FormatError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(FormatError::invalid(file, field, other, "a bool is 0 or 1")),
    }
}

fn unknown_type(cursor: &Cursor<'_>, field: Arguments<'_>, type_id: u32) -> FormatError {
    FormatError::invalid(cursor.file(), field, type_id, "value types are 0 (u8) to 12 (f64)")
}
