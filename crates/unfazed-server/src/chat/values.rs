//! Requests' JSON as template values.

use minijinja::value::Value as TemplateValue;
use serde_json::{Map, Value};

use super::TemplateError;
use super::sentinels::{Sentinels, UsedCharacters};

/// Notes the private-use characters of all strings and keys.
pub(super) fn note(value: &Value, used: &mut UsedCharacters) {
    match value {
        Value::String(text) => used.add(text),
        Value::Array(items) => items.iter().for_each(|item| note(item, used)),
        Value::Object(fields) => {
            for (key, value) in fields {
                used.add(key);
                note(value, used);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A value whose strings and keys have no special-token text. Depth is bounded by the parser of the request.
pub(super) fn hidden(value: &Value, sentinels: &mut Sentinels<'_>) -> Result<Value, TemplateError> {
    Ok(match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        Value::String(text) => Value::String(sentinels.hide(text)?),
        Value::Array(items) => {
            let items: Result<Vec<_>, _> = items.iter().map(|item| hidden(item, sentinels)).collect();
            Value::Array(items?)
        }
        Value::Object(fields) => {
            let mut pairs = Map::new();
            for (key, value) in fields {
                let value = match value {
                    Value::String(role) if key == "role" => Value::String(sentinels.hide_role(role)?),
                    value => hidden(value, sentinels)?,
                };
                pairs.insert(sentinels.hide(key)?, value);
            }
            Value::Object(pairs)
        }
    })
}

/// A value for the template.
pub(super) fn for_template(value: Value) -> TemplateValue {
    match value {
        Value::Null => TemplateValue::from(()),
        Value::Bool(flag) => TemplateValue::from(flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => TemplateValue::from(number),
            (_, Some(number), _) => TemplateValue::from(number),
            (_, _, number) => TemplateValue::from(number.unwrap_or(f64::NAN)),
        },
        Value::String(text) => TemplateValue::from(text),
        Value::Array(items) => TemplateValue::from(items.into_iter().map(for_template).collect::<Vec<_>>()),
        Value::Object(fields) => for_templates(fields),
    }
}

/// Named values for the template.
pub(super) fn for_templates(fields: Map<String, Value>) -> TemplateValue {
    TemplateValue::from_pairs(fields.into_iter().map(|(key, value)| (key, for_template(value))))
}

/// Messages whose tool calls carry their arguments as objects, as Hugging Face's templates want them; requests
/// carry them as strings of JSON. `None` if there are none such.
pub(super) fn with_parsed_arguments(messages: &Value) -> Option<Value> {
    let mut parsed = messages.clone();
    let mut any = false;
    for message in parsed.as_array_mut()? {
        let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else { continue };
        for call in calls {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            let object = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(object @ Value::Object(_)) = object {
                *arguments = object;
                any = true;
            }
        }
    }
    any.then_some(parsed)
}
