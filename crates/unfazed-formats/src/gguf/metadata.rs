//! Keys and values, with getters whose errors name the key and the value.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::cursor::Cursor;
use super::value::{Array, Value, read_value};
use crate::FormatError;

/// Longest key, as the specification sets it.
const KEY_BYTES_MAX: u64 = (1 << 16) - 1;

/// Bytes of the shortest entry: a key of one byte and a value of one.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

/// The metadata of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    file: String,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor<'_>, count: usize) -> Result<Metadata, FormatError> {
        let mut values = BTreeMap::new();
        for i in 0..count {
            let field = format_args!("metadata key {i}");
            let key = cursor.string(field, KEY_BYTES_MAX)?;
            if key.is_empty() || key.chars().any(char::is_control) {
                let reason = "a key is not empty and has no control characters";
                return Err(FormatError::invalid(cursor.file(), field, format_args!("\"{key}\""), reason));
            }
            if values.contains_key(&key) {
                let reason = "the key was already used";
                return Err(FormatError::invalid(cursor.file(), field, format_args!("\"{key}\""), reason));
            }
            let value = read_value(cursor, &key)?;
            values.insert(key, value);
        }
        Ok(Metadata { file: cursor.file().to_owned(), values })
    }

    pub(super) fn count(cursor: &mut Cursor<'_>) -> Result<usize, FormatError> {
        cursor.count(format_args!("metadata count"), ENTRY_BYTES_MIN)
    }

    /// Base name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// All keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key as it is.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A string.
    pub fn string(&self, key: &str) -> Result<Option<&str>, FormatError> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A string that must be there; `reason` says what for.
    pub fn required_string(&self, key: &str, reason: &str) -> Result<&str, FormatError> {
        self.string(key)?.ok_or_else(|| self.missing(key, reason))
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        self.typed(key, "a bool", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// A whole number of any of the integer types that is not negative. Writers differ in the type they use.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, FormatError> {
        self.typed(key, "one whole number that is not negative", |value| match *value {
            Value::U8(value) => Some(u64::from(value)),
            Value::U16(value) => Some(u64::from(value)),
            Value::U32(value) => Some(u64::from(value)),
            Value::U64(value) => Some(value),
            Value::I8(value) => u64::try_from(value).ok(),
            Value::I16(value) => u64::try_from(value).ok(),
            Value::I32(value) => u64::try_from(value).ok(),
            Value::I64(value) => u64::try_from(value).ok(),
            _ => None,
        })
    }

    /// A whole number within bounds.
    pub fn size(&self, key: &str, bounds: RangeInclusive<usize>) -> Result<Option<usize>, FormatError> {
        let Some(number) = self.u64(key)? else { return Ok(None) };
        match usize::try_from(number) {
            Ok(size) if bounds.contains(&size) => Ok(Some(size)),
            _ => {
                let reason = format!("it must be from {} to {}", bounds.start(), bounds.end());
                Err(FormatError::invalid(&self.file, key, number, reason))
            }
        }
    }

    /// A whole number within bounds that must be there; `reason` says what for.
    pub fn required_size(
        &self,
        key: &str,
        bounds: RangeInclusive<usize>,
        reason: &str,
    ) -> Result<usize, FormatError> {
        self.size(key, bounds)?.ok_or_else(|| self.missing(key, reason))
    }

    /// A finite floating-point number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, FormatError> {
        self.typed(key, "one finite number", |value| match *value {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        })
        .and_then(|found| match found {
            Some(number) if !number.is_finite() => {
                Err(FormatError::invalid(&self.file, key, number, "it must be finite"))
            }
            found => Ok(found),
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, FormatError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// An array of 32-bit floats.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, FormatError> {
        self.typed(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// An array of 32-bit integers.
    pub fn i32s(&self, key: &str) -> Result<Option<&[i32]>, FormatError> {
        self.typed(key, "an array of i32", |value| match value {
            Value::Array(Array::I32(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    pub(super) fn missing(&self, key: &str, reason: &str) -> FormatError {
        FormatError::missing(&self.file, key, reason)
    }

    pub(super) fn invalid(&self, key: &str, reason: impl Into<String>) -> FormatError {
        let value = self.get(key).map_or_else(|| "missing".to_owned(), Value::to_string);
        FormatError::invalid(&self.file, key, value, reason)
    }

    pub(super) fn unsupported(&self, key: &str, supported: impl Into<String>) -> FormatError {
        let value = self.get(key).map_or_else(|| "missing".to_owned(), Value::to_string);
        FormatError::unsupported(&self.file, key, value, supported)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match pick(value) {
            Some(found) => Ok(Some(found)),
            None => Err(self.invalid(key, format!("it must be {expected}"))),
        }
    }
}
