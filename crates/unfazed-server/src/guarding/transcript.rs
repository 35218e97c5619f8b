//! What a client was sent of a stream, so that the same answer computed again goes on where it stopped.

use std::collections::BTreeMap;

use serde_json::Value;

use super::request::Api;

/// Most text of a stream that is remembered.
const MOST_BYTES: usize = 8 << 20;

/// Text of one field, as far as it was sent without another field's between.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// Which: `content`, `tool 0 arguments`.
    field: String,
    text: String,
}

/// The segment of a choice that has caught up: what comes is new.
const BEYOND: usize = usize::MAX;

/// Where in a choice's segments an answer that comes again is.
#[derive(Clone, Copy, Debug, Default)]
struct At {
    segment: usize,
    byte: usize,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Transcript {
    choices: BTreeMap<u64, Vec<Segment>>,
    bytes: usize,
    /// Something was sent that is none of these fields.
    unknown: bool,
    role: bool,
    /// An answer comes again.
    again: Option<BTreeMap<u64, At>>,
}

/// A chunk of an answer that comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// All of it was sent before.
    Sent,
    /// What is left of it is new.
    New,
    /// It is another answer.
    Differs,
}

/// A text in a chunk.
struct Text {
    choice: u64,
    field: String,
    /// Where, as a JSON pointer.
    pointer: String,
}

impl Transcript {
    /// A chunk is sent.
    pub(super) fn add(&mut self, api: Api, chunk: &Value) {
        self.role |= chunk.pointer("/choices/0/delta/role").is_some();
        for Text { choice, field, pointer } in texts(api, chunk) {
            let text = chunk.pointer(&pointer).and_then(Value::as_str).unwrap_or_default();
            self.put(choice, field, text);
        }
    }

    /// Something is sent whose meaning is not known.
    pub(super) fn add_unknown(&mut self) {
        self.unknown = true;
    }

    fn put(&mut self, choice: u64, field: String, text: &str) {
        if text.is_empty() {
            return;
        }
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > MOST_BYTES {
            self.unknown = true;
            return;
        }
        let segments = self.choices.entry(choice).or_default();
        match segments.last_mut().filter(|segment| segment.field == field) {
            Some(segment) => segment.text.push_str(text),
            None => segments.push(Segment { field, text: text.to_owned() }),
        }
    }

    /// The client was sent nothing that a second answer would repeat.
    pub(super) fn is_empty(&self) -> bool {
        self.choices.is_empty() && !self.unknown
    }

    /// All that was sent is known.
    pub(super) fn is_known(&self) -> bool {
        !self.unknown
    }

    /// The text, if nothing but the one answer's text was sent.
    pub(super) fn plain(&self) -> Option<&str> {
        let mut choices = self.choices.values();
        match (choices.next().map(Vec::as_slice), choices.next(), self.unknown) {
            (Some([segment]), None, false) if segment.field == "text" => Some(&segment.text),
            _ => None,
        }
    }

    /// The answer comes again from its beginning.
    pub(super) fn begin_again(&mut self) {
        self.again = Some(BTreeMap::new());
    }

    /// It comes no more. True if all that was sent had come.
    pub(super) fn end_again(&mut self) -> bool {
        let caught_up = self.has_caught_up();
        self.again = None;
        caught_up
    }

    /// An answer comes from its beginning, though some of it, if only whose it is, may have been sent.
    pub(super) fn comes_again(&self) -> bool {
        self.again.is_some()
    }

    /// What of a chunk the client does not have, of an answer that comes again; it is counted as sent.
    pub(super) fn again(&mut self, api: Api, chunk: &mut Value) -> Again {
        if self.again.is_none() {
            self.add(api, chunk);
            return Again::New;
        }
        let role = chunk.pointer("/choices/0/delta/role").is_some();
        let mut new = chunk["usage"].is_object() || (role && !self.role);
        for text in texts(api, chunk) {
            match self.rest(chunk, &text) {
                None => return Again::Differs,
                Some(rest) => {
                    new |= !rest.is_empty();
                    self.put(text.choice, text.field, &rest);
                    if let Some(value) = chunk.pointer_mut(&text.pointer) {
                        *value = rest.into();
                    }
                }
            }
        }
        let begun = self.role;
        self.role |= role;
        if begun && let Some(delta) = chunk.pointer_mut("/choices/0/delta").and_then(Value::as_object_mut) {
            delta.shift_remove("role");
            begun_calls(delta);
        }
        let ends = chunk["stop"] == true
            || chunk["choices"]
                .as_array()
                .is_some_and(|choices| choices.iter().any(|choice| !choice["finish_reason"].is_null()));
        if ends && !self.has_caught_up() {
            return Again::Differs;
        }
        if new || ends { Again::New } else { Again::Sent }
    }

    /// What of a text is new; `None` if it is another one.
    fn rest(&mut self, chunk: &Value, text: &Text) -> Option<String> {
        let value = chunk.pointer(&text.pointer).and_then(Value::as_str).unwrap_or_default();
        let segments = self.choices.get(&text.choice).map(Vec::as_slice).unwrap_or_default();
        let at = self.again.as_mut()?.entry(text.choice).or_default();
        let Some(segment) = segments.get(at.segment).filter(|_| !value.is_empty()) else {
            if !value.is_empty() {
                at.segment = BEYOND;
            }
            return Some(value.to_owned());
        };
        let last = at.segment.saturating_add(1) == segments.len();
        let missing = segment.text.get(at.byte..)?;
        if segment.field == text.field
            && let Some(rest) = missing.strip_prefix(value)
        {
            at.byte = at.byte.saturating_add(value.len());
            if rest.is_empty() && !last {
                *at = At { segment: at.segment.saturating_add(1), byte: 0 };
            }
            return Some(String::new());
        }
        // Behind the end of what was sent anything may come.
        let new = if segment.field == text.field { value.strip_prefix(missing) } else { Some(value) };
        let new = new.filter(|_| last && (segment.field == text.field || missing.is_empty()))?;
        at.segment = BEYOND;
        Some(new.to_owned())
    }

    /// All that was sent came again.
    fn has_caught_up(&self) -> bool {
        let Some(again) = &self.again else { return true };
        self.choices.iter().all(|(choice, segments)| {
            let at = again.get(choice).copied().unwrap_or_default();
            match segments.get(at.segment..) {
                Some([last]) => at.byte >= last.text.len(),
                Some(rest) => rest.is_empty(),
                None => true,
            }
        })
    }
}

/// The texts of a chunk, in their order.
fn texts(api: Api, chunk: &Value) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut add = |choice, field: String, pointer: String| {
        if chunk.pointer(&pointer).is_some_and(Value::is_string) {
            texts.push(Text { choice, field, pointer });
        }
    };
    if api == Api::Native {
        add(0, "text".to_owned(), "/content".to_owned());
        return texts;
    }
    let choices = chunk["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (at, choice) in choices.iter().enumerate() {
        let index = choice["index"].as_u64().unwrap_or(0);
        if api == Api::Completions {
            add(index, "text".to_owned(), format!("/choices/{at}/text"));
            continue;
        }
        for field in ["reasoning_content", "reasoning", "content", "refusal"] {
            let name = if field == "content" { "text" } else { field };
            add(index, name.to_owned(), format!("/choices/{at}/delta/{field}"));
        }
        let calls = choice["delta"]["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (place, call) in calls.iter().enumerate() {
            let number = call["index"].as_u64().unwrap_or(place as u64);
            for field in ["name", "arguments"] {
                let pointer = format!("/choices/{at}/delta/tool_calls/{place}/function/{field}");
                add(index, format!("tool {number} {field}"), pointer);
            }
        }
    }
    texts
}

/// A call whose name was sent has an id, and the one that comes again may have another.
fn begun_calls(delta: &mut serde_json::Map<String, Value>) {
    let calls = delta.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { continue };
        if function.get("name").is_some_and(|name| name == "") {
            function.shift_remove("name");
            call.shift_remove("id");
            call.shift_remove("type");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn delta(delta: &Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    fn sent(deltas: &[Value]) -> Transcript {
        let mut transcript = Transcript::default();
        deltas.iter().for_each(|value| transcript.add(Api::Chat, &delta(value)));
        transcript
    }

    /// What a client gets of an answer that comes again.
    fn again(transcript: &mut Transcript, deltas: &[Value]) -> Result<Vec<Value>, usize> {
        transcript.begin_again();
        let mut got = Vec::new();
        for (at, value) in deltas.iter().enumerate() {
            let mut chunk = delta(value);
            match transcript.again(Api::Chat, &mut chunk) {
                Again::Sent => {}
                Again::New => got.push(chunk["choices"][0]["delta"].clone()),
                Again::Differs => return Err(at),
            }
        }
        Ok(got)
    }

    #[test]
    fn an_answer_that_comes_again_goes_on_where_it_stopped() {
        let begun = [json!({"role": "assistant", "content": null}), json!({"content": "Once upon"})];
        let whole = [
            json!({"role": "assistant", "content": null}),
            json!({"content": "Once "}),
            json!({"content": "upon a"}),
            json!({"content": " time"}),
        ];
        let got = again(&mut sent(&begun), &whole).unwrap();
        assert_eq!(got, [json!({"content": " a"}), json!({"content": " time"})]);
    }

    #[test]
    fn thoughts_and_calls_come_again_too_and_a_call_keeps_its_id() {
        let call = |id: &str, name: &str, arguments: &str| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"tool_calls": [{"index": 0, "id": id, "type": "function", "function": function}]})
        };
        let more =
            |arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
        let begun =
            [json!({"reasoning_content": "hm"}), json!({"role": "assistant"}), call("a", "f", "{\"x")];
        let whole = [json!({"reasoning_content": "hm"}), call("b", "f", ""), more("{\"x\""), more(":1}")];
        let got = again(&mut sent(&begun), &whole).unwrap();
        assert_eq!(got, [more("\""), more(":1}")]);
    }

    #[test]
    fn another_answer_is_noticed_at_its_first_difference() {
        let begun = [json!({"reasoning_content": "hm"}), json!({"content": "Once upon"})];
        for (other, at) in [
            (vec![json!({"reasoning_content": "hm"}), json!({"content": "Twice"})], 1),
            (vec![json!({"content": "hm"})], 0),
            (vec![json!({"reasoning_content": "hm, well"})], 0),
            (
                vec![
                    json!({"reasoning_content": "hm"}),
                    json!({"content": "Once upon"}),
                    json!({"content": "!"}),
                ],
                9,
            ),
        ] {
            let result = again(&mut sent(&begun), &other);
            if at == 9 {
                assert_eq!(result.unwrap(), [json!({"content": "!"})]);
            } else {
                assert_eq!(result, Err(at), "{other:?}");
            }
        }
        // One that ends before.
        let mut transcript = sent(&begun);
        transcript.begin_again();
        let mut chunk = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        assert_eq!(transcript.again(Api::Chat, &mut chunk), Again::Differs);
    }

    #[test]
    fn text_alone_is_plain() {
        assert_eq!(sent(&[json!({"role": "assistant"}), json!({"content": "a"})]).plain(), Some("a"));
        assert_eq!(sent(&[json!({"reasoning_content": "a"}), json!({"content": "a"})]).plain(), None);
        assert!(sent(&[json!({"role": "assistant", "content": ""})]).is_empty());
    }

    proptest! {
        #[test]
        fn an_answer_is_whole_wherever_it_was_cut_and_however_it_comes_again(
            text in "[a-cé🦀]{1,40}", cut in 0usize..40, sizes in prop::collection::vec(1usize..7, 1..40),
        ) {
            let chars: Vec<char> = text.chars().collect();
            let cut = cut.min(chars.len());
            let head: String = chars.iter().take(cut).collect();
            let mut transcript = Transcript::default();
            transcript.add(Api::Completions, &json!({"choices": [{"index": 0, "text": head}]}));
            transcript.begin_again();
            let (mut rest, mut sizes, mut got) = (&chars[..], sizes.iter().cycle(), head.clone());
            while !rest.is_empty() {
                let size = (*sizes.next().unwrap()).min(rest.len());
                let part: String = rest[..size].iter().collect();
                rest = &rest[size..];
                let mut chunk = json!({"choices": [{"index": 0, "text": part}]});
                let again = transcript.again(Api::Completions, &mut chunk);
                prop_assert_ne!(again, Again::Differs);
                got += chunk["choices"][0]["text"].as_str().unwrap();
            }
            prop_assert_eq!(got, text);
        }
    }
}
