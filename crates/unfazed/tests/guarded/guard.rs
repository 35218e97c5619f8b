//! A guard that runs, and answers read from it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::made_up::{self, Plan};
use crate::processes::signal_to;
use crate::support::{Server, program};

/// A guard with its server. Both end when it is dropped.
pub(crate) struct Guard {
    pub(crate) server: Server,
    _folder: TempDir,
}

impl Guard {
    /// Starts a guard of a made-up server, and waits until it is ready.
    pub(crate) fn of(plan: &Plan, flags: &[&str]) -> Guard {
        let guard = Guard::started(plan, flags);
        guard.server.event("guard_ready");
        guard
    }

    /// The same without waiting.
    pub(crate) fn started(plan: &Plan, flags: &[&str]) -> Guard {
        let folder = tempfile::tempdir().unwrap();
        let (command, variable) = made_up::command(folder.path(), plan);
        let mut guard = program(&["guard", "run", "--port", "0", "--events", "on"]);
        if !flags.contains(&"--stall-ms") {
            guard.args(["--stall-ms", "1500"]);
        }
        guard.args(flags).arg("--").args(command).envs([variable]);
        Guard { server: Server::spawn(&mut guard), _folder: folder }
    }

    /// Starts a guard of a program, and waits until it is ready.
    pub(crate) fn of_program(flags: &[&str], command: &[&str]) -> Guard {
        let mut guard = program(&["guard", "run", "--port", "0", "--events", "on"]);
        guard.args(flags).arg("--").args(command);
        let guard = Guard { server: Server::spawn(&mut guard), _folder: tempfile::tempdir().unwrap() };
        guard.server.event("guard_ready");
        guard
    }

    /// The server's process now.
    pub(crate) fn process(&self) -> u32 {
        u32::try_from(self.status()["pid"].as_u64().expect("a server runs")).unwrap()
    }

    pub(crate) fn status(&self) -> Value {
        let (status, body) = self.server.request("GET", "/guard/status", "", &Value::Null);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Kills the server.
    pub(crate) fn kill(&self, signal: Signal) {
        signal_to(self.process(), signal);
    }

    /// A streamed answer, to be read.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Reader {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let socket = self.server.open("POST", path, "", &body);
        Reader { lines: BufReader::new(socket), answer: Answer::default() }
    }

    /// A streamed answer, read to its end.
    pub(crate) fn read(&self, path: &str, body: &Value) -> Answer {
        self.stream(path, body).finish()
    }
}

/// A stream that is being read.
pub(crate) struct Reader {
    lines: BufReader<TcpStream>,
    answer: Answer,
}

/// What a client has of a stream.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: String,
    pub(crate) text: String,
    pub(crate) thoughts: String,
    /// Why each choice ended.
    pub(crate) finished: Vec<String>,
    pub(crate) usage: Value,
    pub(crate) error: Value,
    /// What the guard says of it.
    pub(crate) mark: Value,
    pub(crate) ids: BTreeSet<String>,
    pub(crate) comments: Vec<String>,
    pub(crate) roles: usize,
    pub(crate) done: bool,
    /// Fields of chunks that no client asked for.
    pub(crate) extra: BTreeSet<String>,
    pub(crate) last: Value,
}

impl Reader {
    /// Reads on until so much text has come.
    pub(crate) fn until_text(&mut self, bytes: usize) {
        while self.answer.text.len() + self.answer.thoughts.len() < bytes {
            assert!(self.next(), "the stream ended early: {:?}", self.answer);
        }
    }

    pub(crate) fn finish(self) -> Answer {
        self.finish_with(|_| {})
    }

    /// Tells how much text came with each line.
    pub(crate) fn finish_with(mut self, tell: impl Fn(usize)) -> Answer {
        loop {
            let before = self.answer.text.len();
            if !self.next() {
                return self.answer;
            }
            tell(self.answer.text.len() - before);
        }
    }

    fn next(&mut self) -> bool {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() == 0 {
            return false;
        }
        let line = line.trim_end();
        if self.answer.status.is_empty() {
            line.clone_into(&mut self.answer.status);
        } else if let Some(comment) = line.strip_prefix(": ") {
            self.answer.comments.push(comment.to_owned());
        } else if let Some(data) = line.strip_prefix("data: ") {
            assert!(!self.answer.done, "behind the end came {data}");
            if data == "[DONE]" {
                self.answer.done = true;
            } else {
                self.answer.add(serde_json::from_str(data).unwrap());
            }
        }
        true
    }
}

impl Answer {
    fn add(&mut self, chunk: Value) {
        if !chunk["error"].is_null() {
            self.error = chunk["error"].clone();
            return;
        }
        let choice = &chunk["choices"][0];
        let goes_on = choice.is_object() && choice["finish_reason"].is_null();
        for name in ["__verbose", "timings"] {
            if goes_on && !chunk[name].is_null() {
                self.extra.insert(name.to_owned());
            }
        }
        self.ids.extend(chunk["id"].as_str().map(str::to_owned));
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        if chunk["unfazed_guard"].is_object() {
            self.mark = chunk["unfazed_guard"].clone();
        }
        self.text += chunk["content"].as_str().unwrap_or_default();
        for choice in chunk["choices"].as_array().map(Vec::as_slice).unwrap_or_default() {
            if choice.get("logprobs").is_some_and(|logprobs| !logprobs.is_null()) {
                self.extra.insert("logprobs".to_owned());
            }
            let delta = &choice["delta"];
            self.text += choice["text"].as_str().or(delta["content"].as_str()).unwrap_or_default();
            self.thoughts += delta["reasoning_content"].as_str().unwrap_or_default();
            self.roles += usize::from(delta["role"].is_string());
            self.finished.extend(choice["finish_reason"].as_str().map(str::to_owned));
        }
        self.last = chunk;
    }

    /// Asserts that it is whole, and that its client can't tell that anything happened but by the guard's marks.
    pub(crate) fn assert_whole(&self, text: &str) {
        assert_eq!(self.error, Value::Null, "{self:?}");
        assert!(self.status.contains("200"), "{self:?}");
        assert_eq!(self.text, text, "{self:?}");
        assert_eq!(self.extra, BTreeSet::new());
        assert!(self.ids.len() <= 1, "{self:?}");
    }
}

/// A greedy chat.
pub(crate) fn chat(message: &str, tokens: usize) -> Value {
    json!({"messages": [{"role": "user", "content": message}], "max_tokens": tokens, "temperature": 0})
}

/// A greedy completion.
pub(crate) fn completion(prompt: &str, tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0})
}

/// Whether a program is there.
pub(crate) fn exists(path: &str) -> bool {
    Path::new(path).is_file()
}
