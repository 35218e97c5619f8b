//! JSON as Python's `json.dumps` writes it: the tools in a prompt look as they did in training.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deepest nesting that is written. Requests are less deep; a template could build more and exhaust the stack.
const MAX_DEPTH: usize = 200;

/// The arguments of `json.dumps` that templates use.
pub(super) struct Style {
    /// Spaces per level, one item a line; all on one line without it.
    pub(super) indent: Option<usize>,
    /// Between items.
    pub(super) item_separator: String,
    /// Between a key and its value.
    pub(super) key_separator: String,
    /// Write all but ASCII as `\u` escapes.
    pub(super) ensure_ascii: bool,
    /// Order keys by name.
    pub(super) sort_keys: bool,
}

/// Writes a value, and stops where the text gets longer than `most` bytes.
pub(super) fn write(value: &Value, style: &Style, most: usize) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), style, most };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    style: &'a Style,
    most: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(bad(format!("a value is nested more than {MAX_DEPTH} deep")));
        }
        if self.out.len() > self.most {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                // Never all at once: a list may be far longer than the memory that it takes.
                self.list('[', ']', value.try_iter()?, depth, |writer, item| writer.value(&item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.style.sort_keys {
                    keys.sort();
                }
                self.list('{', '}', keys, depth, |writer, key| {
                    writer.key(&key)?;
                    writer.out.push_str(&writer.style.key_separator);
                    writer.value(&value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => return Err(bad(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        items: impl IntoIterator<Item = Value>,
        depth: usize,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut empty = true;
        for (index, item) in items.into_iter().enumerate() {
            empty = false;
            if index > 0 {
                self.out.push_str(&self.style.item_separator);
            }
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            let spaces = indent.saturating_mul(depth).min(self.most);
            self.out.extend(std::iter::repeat_n(' ', spaces));
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            kind => return Err(bad(format!("{kind} can't be a key in JSON"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return;
        }
        let Ok(number) = f64::try_from(value.clone()) else {
            self.out.push_str(&value.to_string());
            return;
        };
        self.out.push_str(&python_float(number));
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if u32::from(c) < 0x20 => self.escape(c),
                // Sentinels are private-use characters and must stay recognisable.
                c if self.style.ensure_ascii && !c.is_ascii() && !is_private_use(c) => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.out.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

fn is_private_use(character: char) -> bool {
    matches!(character, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{ffffd}' | '\u{100000}'..='\u{10fffd}')
}

/// A float as Python's `repr` has it: the shortest digits that read back, an exponent from 1e16 and below 1e-4.
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{number:?}");
    }
    let scientific = format!("{number:e}");
    match scientific.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => scientific,
    }
}

fn bad(what: String) -> Error {
    Error::new(ErrorKind::BadSerialization, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
        ];
        for (number, expected) in cases {
            assert_eq!(python_float(number), expected);
        }
    }
}
