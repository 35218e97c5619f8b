//! Log probabilities in the shapes of both endpoints.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use unfazed_tokenizer::Tokenizer;

use crate::answer::Scored;

/// Smallest log probability that is sent: JSON has no infinity. OpenAI's own stand-in for tokens that cannot be.
const LEAST: f32 = -9999.0;

/// A chat's `logprobs` of one choice.
pub(crate) fn chat(tokenizer: &Tokenizer, scored: &[Scored]) -> Value {
    let entry = |token: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        let text = tokenizer.token_text(token).unwrap_or_default();
        json!({"token": text, "logprob": logprob.max(LEAST), "bytes": bytes.as_ref()})
    };
    let content = scored.iter().map(|scored| {
        let mut value = entry(scored.token, scored.logprob.unwrap_or(LEAST));
        let top: Vec<Value> = scored.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
        if let Some(object) = value.as_object_mut() {
            object.insert("top_logprobs".to_owned(), top.into());
        }
        value
    });
    json!({"content": content.collect::<Vec<Value>>(), "refusal": null})
}

/// A completion's `logprobs` of one choice.
pub(crate) fn completion(tokenizer: &Tokenizer, scored: &[Scored]) -> Value {
    let (mut tokens, mut logprobs, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for scored in scored {
        tokens.push(name(tokenizer, scored.token));
        offsets.push(scored.offset);
        let logprob = scored.logprob.map(|logprob| logprob.max(LEAST));
        logprobs.push(logprob);
        tops.push(logprob.map(|logprob| {
            let mut top = Map::new();
            // Two tokens may have one name; the likelier one keeps it.
            for (token, logprob) in &scored.top {
                top.entry(name(tokenizer, *token)).or_insert_with(|| logprob.max(LEAST).into());
            }
            // The token itself is always there, one more than was asked for if need be.
            top.entry(name(tokenizer, scored.token)).or_insert_with(|| logprob.into());
            top
        }));
    }
    json!({"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
}

/// A token's text; one that is no text by itself is named by its bytes, as OpenAI does: `bytes:\xe2\x82`.
fn name(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    match std::str::from_utf8(&bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut name, byte| {
            // Writing to a String cannot fail.
            let _ = write!(name, "\\x{byte:02x}");
            name
        }),
    }
}
