//! A JSON file's fields, with getters whose errors name the field and the value.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::{ByteSource, FormatError};

/// A JSON object and what to call it.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    file: String,
    /// What stands before the names of an object inside another ("rope_scaling.").
    prefix: String,
    map: Map<String, Value>,
}

/// The whole of a file of bounded size.
pub(crate) fn read_all(source: &dyn ByteSource, bytes_max: u64) -> Result<Vec<u8>, FormatError> {
    let len = source.len();
    if len > bytes_max {
        let reason = format!("at most {bytes_max} bytes are read");
        return Err(FormatError::invalid(source.name(), "file size", len, reason));
    }
    let mut bytes = vec![0; len as usize];
    let result = source.read_exact_at(&mut bytes, 0);
    result.map_err(|error| FormatError::io(source.name(), "the file", error))?;
    Ok(bytes)
}

impl Fields {
    /// Reads a file that holds one JSON object.
    pub(crate) fn read(source: &dyn ByteSource, bytes_max: u64) -> Result<Fields, FormatError> {
        let bytes = read_all(source, bytes_max)?;
        let parsed: Result<Map<String, Value>, _> = serde_json::from_slice(&bytes);
        match parsed {
            Ok(map) => Ok(Fields { file: source.name().to_owned(), prefix: String::new(), map }),
            Err(error) => Err(FormatError::invalid(
                source.name(),
                "content",
                format_args!("{} bytes", bytes.len()),
                format!("it must be one JSON object: {error}"),
            )),
        }
    }

    /// Base name of the file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// All of it as JSON.
    pub(crate) fn into_value(self) -> Value {
        Value::Object(self.map)
    }

    /// A field that is neither missing nor null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// An object inside this one.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields>, FormatError> {
        let prefix = format!("{}{name}.", self.prefix);
        let map = self.typed(name, "an object", |value| value.as_object().cloned())?;
        Ok(map.map(|map| Fields { file: self.file.clone(), prefix, map }))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&str>, FormatError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, FormatError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(crate) fn f32(&self, name: &str) -> Result<Option<f32>, FormatError> {
        self.typed(name, "a finite number", |value| {
            value.as_f64().map(|number| number as f32).filter(|number| number.is_finite())
        })
    }

    pub(crate) fn size(
        &self,
        name: &str,
        bounds: RangeInclusive<usize>,
    ) -> Result<Option<usize>, FormatError> {
        let expected = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        self.typed(name, &expected, |value| {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            number.filter(|number| bounds.contains(number))
        })
    }

    /// A whole number within bounds that must be there.
    pub(crate) fn required_size(
        &self,
        name: &str,
        bounds: RangeInclusive<usize>,
    ) -> Result<usize, FormatError> {
        self.size(name, bounds)?.ok_or_else(|| self.missing(name, "the shape of the model needs it"))
    }

    /// One token id or a list of them; empty if the field is missing.
    pub(crate) fn token_ids(&self, name: &str) -> Result<Vec<u32>, FormatError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = self.typed(name, "a token id or a list of them", |value| match value {
            Value::Array(values) => values.iter().map(id).collect(),
            other => id(other).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// The full name of a field, for messages.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn missing(&self, name: &str, reason: &str) -> FormatError {
        FormatError::missing(&self.file, self.name(name), reason)
    }

    pub(crate) fn invalid(&self, name: &str, reason: impl Into<String>) -> FormatError {
        FormatError::invalid(&self.file, self.name(name), self.shown(name), reason)
    }

    pub(crate) fn unsupported(&self, name: &str, supported: impl Into<String>) -> FormatError {
        FormatError::unsupported(&self.file, self.name(name), self.shown(name), supported)
    }

    fn shown(&self, name: &str) -> String {
        self.map.get(name).map_or_else(|| "missing".to_owned(), Value::to_string)
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        expected: &str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match pick(value) {
            Some(found) => Ok(Some(found)),
            None => Err(self.invalid(name, format!("it must be {expected}"))),
        }
    }
}
