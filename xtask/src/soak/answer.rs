//! An answer put together from what a client got, whole or in a stream.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// All that a client can know of an answer, but for its id and its times.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) choices: BTreeMap<u64, Choice>,
    pub(super) usage: Value,
    pub(super) error: Value,
    /// How often it ended. An answer that is not streamed ends once.
    pub(super) ends: u32,
    /// What no answer may have: something after its end, or twice.
    pub(super) flaws: Vec<String>,
}

/// One choice of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Choice {
    pub(super) text: String,
    /// Where log probabilities were asked for, each token: text, bytes, log probability and those of the likeliest ones.
    pub(super) tokens: Vec<Value>,
    pub(super) finish_reason: Value,
}

impl Answer {
    /// Adds a stream's chunk; returns whether it brought something of a choice.
    pub(super) fn add(&mut self, chunk: &Value) -> bool {
        if self.ends > 0 {
            self.flaws.push(format!("after the end came {chunk}"));
        }
        if !chunk["error"].is_null() {
            if !self.error.is_null() {
                self.flaws.push(format!("a second error came: {chunk}"));
            }
            self.error = chunk["error"].clone();
        }
        if chunk["usage"].is_object() {
            if !self.usage.is_null() {
                self.flaws.push("usage came twice".to_owned());
            }
            self.usage = chunk["usage"].clone();
        }
        self.choices_of(chunk)
    }

    /// The end of a stream came.
    pub(super) fn end(&mut self) {
        self.ends += 1;
        if self.ends > 1 {
            self.flaws.push("the end came twice".to_owned());
        }
    }

    /// An answer that came as a whole.
    pub(super) fn whole(body: &Value) -> Answer {
        let mut answer = Answer::default();
        answer.add(body);
        answer.end();
        answer
    }

    /// Tokens that the model made for it, as the server counted them.
    pub(super) fn completion_tokens(&self) -> u64 {
        self.usage["completion_tokens"].as_u64().unwrap_or(0)
    }

    fn choices_of(&mut self, chunk: &Value) -> bool {
        let mut brought = false;
        for part in chunk["choices"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let Some(index) = part["index"].as_u64() else {
                self.flaws.push(format!("a choice without an index came: {part}"));
                continue;
            };
            let choice = self.choices.entry(index).or_default();
            if !choice.finish_reason.is_null() {
                self.flaws.push(format!("choice {index} had ended, then came {part}"));
            }
            brought |= choice.add(part);
        }
        brought
    }
}

impl Choice {
    fn add(&mut self, part: &Value) -> bool {
        self.finish_reason = part["finish_reason"].clone();
        let text = [&part["text"], &part["delta"]["content"], &part["message"]["content"]];
        let text = text.into_iter().find_map(Value::as_str).unwrap_or_default();
        self.text += text;
        let before = self.tokens.len();
        let logprobs = &part["logprobs"];
        if let Some(content) = logprobs["content"].as_array() {
            self.tokens.extend(content.iter().cloned());
        } else if let Some(tokens) = logprobs["tokens"].as_array() {
            let columns = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
            let token = |at| json!(columns.map(|column| &logprobs[column][at]));
            self.tokens.extend((0..tokens.len()).map(token));
        }
        !text.is_empty() || self.tokens.len() > before
    }
}
