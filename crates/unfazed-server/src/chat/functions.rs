//! What Hugging Face's renderer offers to templates beyond Jinja (`transformers`,
//! `utils/chat_template_utils.py`), and the methods of Python's strings that minijinja lacks.

use minijinja::value::{Kwargs, Rest, Value, from_args};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::error::Refusal;
use super::python_json::{self, Style};

/// Longest result of `strftime_now`.
const MAX_DATE_BYTES: usize = 1000;

/// Adds the functions, filters and methods to an environment.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", to_json);
    environment.set_unknown_method_callback(method);
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}

/// The local time in a format of C's `strftime`.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::ZonedDateTime::now();
    let date = jiff::fmt::strtime::format(format, &now).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}"))
    })?;
    if date.len() > MAX_DATE_BYTES {
        return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: the format is too long"));
    }
    Ok(date)
}

/// `json.dumps` with non-ASCII kept and nothing escaped for HTML.
#[expect(clippy::needless_pass_by_value, reason = "minijinja hands arguments over by value")]
fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    // The order that Hugging Face's filter takes them in.
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let named: Option<Value> = named.get(name)?;
        Ok(named.or_else(|| positional.get(index).cloned()).filter(|value| !value.is_none()))
    };
    let flag = |argument: Option<Value>| argument.is_some_and(|value| value.is_true());
    let ensure_ascii = flag(argument(0, "ensure_ascii")?);
    let indent = match argument(1, "indent")? {
        Some(indent) => Some(usize::try_from(indent)?),
        None => None,
    };
    let (item_separator, key_separator) = match argument(2, "separators")? {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sort_keys = flag(argument(3, "sort_keys")?);
    named.assert_all_used()?;
    let style = Style { indent, item_separator, key_separator, ensure_ascii, sort_keys };
    // A fuel pays for 64 bytes of memory (see `Environment::set_fuel`).
    let left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left).saturating_mul(64);
    let json = python_json::write(value, &style, usize::try_from(left).unwrap_or(usize::MAX))?;
    state.consume_fuel(json.len() as u64 / 4)?;
    Ok(Value::from(json))
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name) {
        (Some(text), "removeprefix") => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        (Some(text), "removesuffix") => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        _ => pycompat::unknown_method_callback(state, value, name, arguments),
    }
}
