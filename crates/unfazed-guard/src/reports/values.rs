//! The values of some keys in JSON that may be torn: what was read before the tear counts.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// A key to look for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// In objects inside of others too.
    pub(super) nested: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Values {
    found: BTreeMap<&'static str, String>,
    /// Why reading ended early.
    pub(super) torn: Option<String>,
    /// JSON values that were read to their end.
    pub(super) whole: usize,
}

impl Values {
    /// Reads JSON values, one after the other, as far as they go. Of a key that is there several times, the first counts.
    pub(super) fn read(text: &str, keys: &'static [Key]) -> Values {
        let mut values = Values::default();
        let mut json = serde_json::Deserializer::from_str(text);
        // A header and a body; a third one says nothing that is known.
        while values.whole < 2 && json.end().is_err() {
            let collect = Collect { keys, found: &mut values.found, nested: false, wanted: false };
            match collect.deserialize(&mut json) {
                Ok(_) => values.whole += 1,
                Err(error) => {
                    values.torn = Some(error.to_string());
                    break;
                }
            }
        }
        values
    }

    /// A key's value: a string, or a number as text.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.found.get(name).map(String::as_str)
    }
}

/// Walks through a value.
struct Collect<'a> {
    keys: &'static [Key],
    found: &'a mut BTreeMap<&'static str, String>,
    /// Inside of an object.
    nested: bool,
    /// The value itself is wanted.
    wanted: bool,
}

impl Collect<'_> {
    /// The same for a value inside.
    fn inside(&mut self, wanted: bool) -> Collect<'_> {
        Collect { keys: self.keys, found: self.found, nested: true, wanted }
    }

    fn scalar(&self, value: &impl ToString) -> Option<String> {
        self.wanted.then(|| value.to_string())
    }
}

impl<'de> DeserializeSeed<'de> for Collect<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<String>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Collect<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Option<String>, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let nested = self.nested;
            let wanted = self.keys.iter().find(|wanted| wanted.name == key && (wanted.nested || !nested));
            let value = map.next_value_seed(self.inside(wanted.is_some()))?;
            if let (Some(wanted), Some(value)) = (wanted, value) {
                self.found.entry(wanted.name).or_insert(value);
            }
        }
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Option<String>, A::Error> {
        while seq.next_element_seed(self.inside(false))?.is_some() {}
        Ok(None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Option<String>, E> {
        Ok(self.scalar(&value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Option<String>, E> {
        Ok(self.scalar(&value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Option<String>, E> {
        Ok(self.scalar(&value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Option<String>, E> {
        Ok(self.scalar(&value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Option<String>, E> {
        Ok(self.scalar(&value))
    }

    fn visit_unit<E>(self) -> Result<Option<String>, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[Key] = &[Key { name: "a", nested: false }, Key { name: "deep", nested: true }];

    #[test]
    fn two_values_are_read_and_the_first_of_a_key_counts() {
        let values =
            Values::read("{\"a\": 1, \"x\": {\"a\": 9}}\n{\"a\": 2, \"x\": [{\"deep\": \"d\"}]}", KEYS);
        assert_eq!((values.get("a"), values.get("deep")), (Some("1"), Some("d")));
        assert_eq!((values.whole, values.torn), (2, None));
    }

    #[test]
    fn what_was_read_before_a_tear_counts() {
        let values = Values::read("{}\n{\"a\": \"x\\ny\", \"deep\": \"torn he", KEYS);
        assert_eq!((values.get("a"), values.get("deep")), (Some("x\ny"), None));
        assert!(values.whole == 1 && values.torn.is_some());
    }

    #[test]
    fn no_depth_and_no_text_ends_the_program() {
        let deep = "[".repeat(100_000);
        assert!(Values::read(&deep, KEYS).torn.is_some());
        for text in ["", "   ", "nonsense", "{", "{}{}{}{}", "\u{0}"] {
            assert!(Values::read(text, KEYS).whole <= 2);
        }
    }
}
