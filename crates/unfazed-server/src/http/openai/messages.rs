//! A chat's messages, checked and brought into the form that templates expect.

use serde_json::{Map, Value};

use super::super::error::ApiError;
use super::fields::{Fields, unexpected};

/// Reads `messages`: objects with a role; content is text. Lists of text parts are joined, other parts refused.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let expected = "a list of messages";
    let messages: Option<Vec<Value>> = fields.tree("messages", expected)?;
    let messages = messages.unwrap_or_default();
    if messages.is_empty() {
        let message = "messages is missing or empty: a list of at least one message is expected";
        return Err(ApiError::field("messages", message));
    }
    messages.into_iter().enumerate().map(|(index, message)| check(index, message)).collect()
}

/// Bytes of text in messages.
pub(crate) fn text_bytes(messages: &[Value]) -> usize {
    let content = |message: &Value| message.get("content").and_then(Value::as_str).map_or(0, str::len);
    messages.iter().map(content).sum()
}

fn check(index: usize, message: Value) -> Result<Value, ApiError> {
    let path = format!("messages[{index}]");
    let Value::Object(mut message) = message else {
        return Err(unexpected(&path, &message.to_string(), "an object with role and content"));
    };
    match message.get("role") {
        // OpenAI's newer name for the system's role; templates know the older one.
        Some(Value::String(role)) if role == "developer" => {
            message.insert("role".to_owned(), "system".into());
        }
        Some(Value::String(_)) => {}
        role => {
            let role = role.map_or("missing".to_owned(), ToString::to_string);
            return Err(unexpected(&format!("{path}.role"), &role, "a string such as \"user\""));
        }
    }
    let content = content(&format!("{path}.content"), message.get_mut("content").map(Value::take), &message)?;
    message.insert("content".to_owned(), content);
    Ok(Value::Object(message))
}

fn content(path: &str, content: Option<Value>, message: &Map<String, Value>) -> Result<Value, ApiError> {
    match content {
        Some(Value::String(text)) => Ok(Value::String(text)),
        Some(Value::Array(parts)) => {
            let texts =
                parts.into_iter().enumerate().map(|(at, part)| text_part(&format!("{path}[{at}]"), part));
            texts.collect::<Result<String, ApiError>>().map(Value::String)
        }
        // A message that only calls tools has no text.
        None | Some(Value::Null) if message.contains_key("tool_calls") => Ok(Value::String(String::new())),
        other => {
            let other = other.map_or("missing".to_owned(), |value| value.to_string());
            Err(unexpected(path, &other, "a string or a list of text parts"))
        }
    }
}

fn text_part(path: &str, mut part: Value) -> Result<String, ApiError> {
    match part.get("type") {
        Some(Value::String(kind)) if kind == "text" => match part.get_mut("text").map(Value::take) {
            Some(Value::String(text)) => Ok(text),
            text => {
                let text = text.map_or("missing".to_owned(), |text| text.to_string());
                Err(unexpected(&format!("{path}.text"), &text, "a string"))
            }
        },
        Some(Value::String(kind)) => {
            let message = format!("{path}.type is {kind:?}: only \"text\" is supported");
            Err(ApiError::unsupported(format!("{path}.type"), message))
        }
        _ => Err(unexpected(path, &part.to_string(), "an object of type \"text\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(json: &str) -> Result<Vec<Value>, String> {
        let body = format!(r#"{{"messages": {json}}}"#);
        read(&Fields::parse(body.as_bytes()).unwrap())
            .map_err(|error| error.body()["error"]["message"].to_string())
    }

    #[test]
    fn text_parts_are_joined_and_other_fields_kept() {
        let json = r#"[{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": null, "tool_calls": [], "name": "x"}]"#;
        let messages = messages(json).unwrap();
        assert_eq!(messages[0], serde_json::json!({"role": "system", "content": "ab"}));
        assert_eq!(messages[1]["content"], "");
        assert_eq!(messages[1]["name"], "x");
    }

    #[test]
    fn what_is_no_message_is_refused_by_its_place() {
        for (json, place) in [
            ("[]", "messages"),
            ("3", "messages"),
            (r#"[{"content": "x"}]"#, "messages[0].role"),
            (r#"[{"role": "user"}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": 5}]"#, "messages[0].content"),
            (r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#, "messages[0].content[0].type"),
            (r#"[{"role": "user", "content": [{"type": "text"}]}]"#, "messages[0].content[0].text"),
            (r#"[{"role": "user", "content": "x"}, "y"]"#, "messages[1]"),
        ] {
            let error = messages(json).unwrap_err();
            assert!(error.contains(place), "{json}: {error}");
        }
    }
}
