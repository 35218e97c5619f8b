//! Streamed answers, put together from their events and compared.

#![allow(dead_code, reason = "several test programs share this, and each uses a part of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{PATIENCE, Server};

/// All that a client can know of an answer, but for its id and its times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) choices: BTreeMap<u64, Choice>,
    pub(crate) usage: Value,
    pub(crate) error: Value,
}

/// One choice of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) text: String,
    /// Each token: its text and bytes, its log probability and those of the likeliest ones.
    pub(crate) tokens: Vec<Value>,
    pub(crate) finish_reason: Value,
}

/// An answer that is being streamed.
pub(crate) struct Stream {
    reader: BufReader<TcpStream>,
    answer: Answer,
}

impl Stream {
    /// Asks for a stream, with log probabilities and usage, and returns once its head has come.
    pub(crate) fn open(server: &Server, path: &str, body: &Value) -> Stream {
        Stream::open_with_key(server, path, "", body)
    }

    /// The same with a key.
    pub(crate) fn open_with_key(server: &Server, path: &str, key: &str, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let mut reader = BufReader::new(server.open("POST", path, key, &body));
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.0 200 "), "{line}");
        while !line.trim_end().is_empty() {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        Stream { reader, answer: Answer::default() }
    }

    /// Reads the next event: how many tokens it brought, `None` if it was the last.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.reader.read_line(&mut line).unwrap(), 0, "the stream ended without [DONE]");
            let Some(data) = line.trim_end().strip_prefix("data: ") else {
                assert!(line.trim_end().is_empty() || line.starts_with(':'), "no event: {line}");
                continue;
            };
            if data == "[DONE]" {
                return None;
            }
            return Some(self.answer.add(&serde_json::from_str(data).unwrap()));
        }
    }

    /// Reads to the end; the longest time between two events.
    pub(crate) fn finish_timed(mut self) -> (Answer, Duration) {
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        while self.next().is_some() {
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        (self.answer, longest)
    }

    /// Reads to the end.
    pub(crate) fn finish(mut self) -> Answer {
        while self.next().is_some() {}
        self.answer
    }
}

impl Answer {
    /// Asserts that a client could not tell this answer from another one.
    pub(crate) fn assert_equals(&self, other: &Answer, what: &str) {
        assert_eq!(self.error, other.error, "{what}");
        assert_eq!(self.usage, other.usage, "{what}");
        assert_eq!(self.choices.len(), other.choices.len(), "{what}");
        for ((index, choice), other) in self.choices.iter().zip(other.choices.values()) {
            let differ = choice.tokens.iter().zip(&other.tokens).position(|(a, b)| a != b);
            if let Some(at) = differ {
                panic!(
                    "{what}, choice {index}: token {at}: {} is not {}",
                    choice.tokens[at], other.tokens[at]
                );
            }
            assert_eq!(choice.text, other.text, "{what}, choice {index}");
            assert!(choice == other, "{what}, choice {index}: {choice:?} is not {other:?}");
        }
        assert!(self == other, "{what}");
    }

    /// Adds a chunk; returns how many tokens it has.
    fn add(&mut self, chunk: &Value) -> usize {
        assert_eq!(self.error, Value::Null, "an error is the last event, then came {chunk}");
        self.error = chunk["error"].clone();
        if chunk["usage"].is_object() {
            assert_eq!(self.usage, Value::Null, "usage comes once");
            self.usage = chunk["usage"].clone();
        }
        let choices = chunk["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
        choices
            .iter()
            .map(|part| self.choices.entry(part["index"].as_u64().unwrap()).or_default().add(part))
            .sum()
    }
}

impl Choice {
    fn add(&mut self, part: &Value) -> usize {
        assert_eq!(self.finish_reason, Value::Null, "a choice has ended, then came {part}");
        self.finish_reason = part["finish_reason"].clone();
        self.text += part["text"].as_str().or(part["delta"]["content"].as_str()).unwrap_or_default();
        let before = self.tokens.len();
        let logprobs = &part["logprobs"];
        if let Some(content) = logprobs["content"].as_array() {
            self.tokens.extend(content.iter().cloned());
        } else if let Some(tokens) = logprobs["tokens"].as_array() {
            let columns = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
            let token = |at| json!(columns.map(|column| &logprobs[column][at]));
            self.tokens.extend((0..tokens.len()).map(token));
        }
        self.tokens.len() - before
    }
}

/// Counts what several streams have brought, for one who waits for it.
#[derive(Default)]
pub(crate) struct Tally {
    count: Mutex<Count>,
    changed: Condvar,
}

/// What streams have brought so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count {
    pub(crate) tokens: usize,
    /// Tokens of each choice by the number that the server gave it.
    pub(crate) of_choice: BTreeMap<u64, usize>,
    /// Streams that have ended.
    pub(crate) ended: usize,
    /// Those of them that ended with an error.
    pub(crate) failed: usize,
}

impl Tally {
    /// Reads a stream to its end and counts. Its first choice has the number `first`, as the server counts choices.
    pub(crate) fn follow(&self, mut stream: Stream, first: u64) -> Answer {
        while let Some(tokens) = stream.next() {
            if tokens > 0 {
                let choices = stream.answer.choices.iter();
                let of_choice = choices.map(|(index, choice)| (first + index, choice.tokens.len()));
                self.change(|count| {
                    count.tokens += tokens;
                    count.of_choice.extend(of_choice);
                });
            }
        }
        self.change(|count| {
            count.ended += 1;
            count.failed += usize::from(!stream.answer.error.is_null());
        });
        stream.answer
    }

    pub(crate) fn count(&self) -> Count {
        self.count.lock().unwrap().clone()
    }

    /// Waits for that many tokens in all.
    pub(crate) fn wait_for_tokens(&self, tokens: usize) {
        let waits = |count: &mut Count| count.tokens < tokens && count.failed == 0;
        let count = self.count.lock().unwrap();
        let (count, _) = self.changed.wait_timeout_while(count, PATIENCE, waits).unwrap();
        assert!(count.tokens >= tokens, "waited in vain for {tokens} tokens: {count:?}");
    }

    fn change(&self, change: impl FnOnce(&mut Count)) {
        change(&mut self.count.lock().unwrap());
        self.changed.notify_all();
    }
}
