//! A request's fields, read one by one, so that every error names its field and its value. Fields that nobody asks for
//! are ignored, as OpenAI's clients expect of servers that are not OpenAI's, and never take memory.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::super::error::ApiError;

/// Most fields of a request that are looked at.
const MAX_FIELDS: usize = 1000;
/// Longest text of a setting, in bytes: a bias for each token of a large vocabulary fits.
const MAX_SETTING_BYTES: usize = 4 << 20;
/// Most JSON values in a field. Each takes up to 100 bytes, however short its text is.
const MAX_VALUES: usize = 1 << 19;
/// Deepest nesting: what JSON libraries take without overflowing a stack.
const MAX_DEPTH: usize = 128;
/// Most characters of a value in an error.
const SHOWN: usize = 60;

/// The fields of a request's body, not parsed yet.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// Reads a body: one JSON object.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Fields<'a>, ApiError> {
        if Shape::of(body).depth > MAX_DEPTH {
            return Err(ApiError::malformed(format!("the body is nested over {MAX_DEPTH} levels deep")));
        }
        serde_json::from_slice(body).map_err(|error| {
            // serde_json ends its message with line and column.
            ApiError::malformed(format!("the body is not a JSON object that can be read: {error}"))
        })
    }

    /// The raw text of a field; `null` is as good as absent.
    fn raw(&self, name: &str) -> Option<&'a str> {
        // The last one counts, as in every JSON library.
        let value = self.0.iter().rev().find(|(known, _)| known == name)?.1.get();
        (value != "null").then_some(value)
    }

    /// A setting of any type. `expected` completes the sentence "... is expected".
    pub(crate) fn get<T: DeserializeOwned>(&self, name: &str, expected: &str) -> Result<Option<T>, ApiError> {
        match self.raw(name).map_or(0, str::len) {
            bytes if bytes > MAX_SETTING_BYTES => {
                let message = format!("{name} has {bytes} bytes: at most {MAX_SETTING_BYTES} are taken");
                Err(ApiError::field(name, message))
            }
            _ => self.tree(name, expected),
        }
    }

    /// A field that is kept as JSON.
    pub(crate) fn tree<T: DeserializeOwned>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        match self.raw(name).map_or(0, values) {
            values if values > MAX_VALUES => {
                let message = format!("{name} has more than {MAX_VALUES} values");
                Err(ApiError::field(name, message))
            }
            _ => self.large(name, expected),
        }
    }

    /// A field whose type takes hardly more memory than its text.
    pub(crate) fn large<T: DeserializeOwned>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        match serde_json::from_str(raw) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(unexpected(name, raw, expected)),
        }
    }

    /// Whether a field is there and not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// A field that is true or false.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.get(name, "true or false")
    }

    /// A number within a range.
    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.within(name, &range, &expected)
    }

    /// A whole number within a range.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.within(name, &range, &expected)
    }

    fn within<T: DeserializeOwned + PartialOrd>(
        &self,
        name: &str,
        range: &RangeInclusive<T>,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        let value: Option<T> = self.get(name, expected)?;
        match (value, self.raw(name)) {
            (Some(value), Some(raw)) if !range.contains(&value) => Err(unexpected(name, raw, expected)),
            (value, _) => Ok(value),
        }
    }
}

/// What a text that is JSON would be, found without building it.
struct Shape {
    /// Values, keys counted with their values.
    values: usize,
    /// Levels of nesting.
    depth: usize,
}

impl Shape {
    fn of(json: &[u8]) -> Shape {
        let (mut shape, mut level) = (Shape { values: 1, depth: 0 }, 0_usize);
        let (mut in_string, mut escaped) = (false, false);
        for byte in json {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = in_string,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b',' => shape.values += 1,
                b'[' | b'{' => {
                    shape.values += 1;
                    level += 1;
                    shape.depth = shape.depth.max(level);
                }
                b']' | b'}' => level = level.saturating_sub(1),
                _ => {}
            }
        }
        shape
    }
}

/// JSON values in a text that is JSON.
fn values(json: &str) -> usize {
    Shape::of(json.as_bytes()).values
}

/// The error for a value that is not what its field takes.
pub(crate) fn unexpected(name: &str, value: &str, expected: &str) -> ApiError {
    let mut shown: String = value.chars().take(SHOWN).collect();
    if shown.len() < value.len() {
        shown.push_str("...");
    }
    ApiError::field(name, format!("{name} is {shown}: {expected} is expected"))
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while fields.len() < MAX_FIELDS {
                    match map.next_entry()? {
                        Some(field) => fields.push(field),
                        None => return Ok(fields),
                    }
                }
                match map.next_entry::<IgnoredAny, IgnoredAny>()? {
                    None => Ok(fields),
                    Some(_) => Err(serde::de::Error::custom(format!("more than {MAX_FIELDS} fields"))),
                }
            }
        }
        deserializer.deserialize_map(Object).map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(error: &ApiError) -> String {
        error.body()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn an_error_names_the_field_the_value_and_what_would_pass() {
        let fields = Fields::parse(br#"{"temperature": "hot", "n": -1, "top_p": 3, "stream": 1}"#).unwrap();
        let error = fields.number("temperature", 0.0..=2.0).unwrap_err();
        assert_eq!(message(&error), "temperature is \"hot\": a number from 0 to 2 is expected");
        assert_eq!(error.body()["error"]["param"], "temperature");
        assert_eq!(
            message(&fields.integer("n", 1..=8).unwrap_err()),
            "n is -1: a whole number from 1 to 8 is expected"
        );
        assert!(fields.number("top_p", 0.0..=1.0).is_err());
        assert!(fields.flag("stream").is_err());
    }

    #[test]
    fn null_is_absent_whole_numbers_are_numbers_and_the_last_of_a_field_counts() {
        let fields = Fields::parse(br#"{"a": null, "b": 1, "b": 2}"#).unwrap();
        assert!(!fields.has("a"));
        assert_eq!(fields.number("b", 0.0..=9.0).unwrap(), Some(2.0));
    }

    #[test]
    fn a_malformed_body_is_refused_with_line_and_column() {
        let error = Fields::parse(b"{\"a\": 1,\n \"b\" 2}").unwrap_err();
        assert!(message(&error).contains("line 2 column 6"), "{}", message(&error));
        assert!(message(&Fields::parse(b"[]").unwrap_err()).contains("a JSON object"));
        assert!(Fields::parse(b"{}{}").is_err());
    }

    #[test]
    fn what_would_take_far_more_memory_than_its_text_is_refused_by_size() {
        let list =
            |item: &str, count: usize| format!("{{\"x\": [{}{item}]}}", format!("{item},").repeat(count));
        let body = list("0", MAX_VALUES);
        let error =
            Fields::parse(body.as_bytes()).unwrap().tree::<serde_json::Value>("x", "a list").unwrap_err();
        assert!(message(&error).contains("more than 524288 values"), "{}", message(&error));
        assert!(Fields::parse(body.as_bytes()).unwrap().get::<serde_json::Value>("x", "a list").is_err());
        let body = list("\",[{\\\"\"", 10);
        assert!(Fields::parse(body.as_bytes()).unwrap().tree::<serde_json::Value>("x", "a list").is_ok());
        assert_eq!(values(r#"["a,[{\",", {"b": 1}]"#), 4);
        let body = list("\"\"", MAX_SETTING_BYTES / 3);
        let error = Fields::parse(body.as_bytes()).unwrap().get::<Vec<String>>("x", "a list").unwrap_err();
        assert!(message(&error).contains("at most 4194304 are taken"), "{}", message(&error));
    }

    #[test]
    fn a_body_of_countless_fields_is_refused() {
        let body = format!("{{{}\"b\":1}}", "\"a\":1,".repeat(MAX_FIELDS));
        assert!(message(&Fields::parse(body.as_bytes()).unwrap_err()).contains("more than 1000 fields"));
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(fields) = Fields::parse(&body) {
                let _ = fields.get::<serde_json::Value>("", "anything");
            }
        }
    }
}
