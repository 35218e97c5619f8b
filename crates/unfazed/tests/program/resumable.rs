//! Streams that can be resumed, event by event.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::{Server, status_and_body};

/// A client of one stream: what it got, over all its connections.
pub(crate) struct Client {
    pub(crate) id: String,
    /// Events by their numbers, without what differs from one answer to another.
    pub(crate) events: Vec<Value>,
    /// The id of the last one.
    last: Option<String>,
    /// `[DONE]` has come.
    pub(crate) done: bool,
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Asks for a stream that is kept for so many seconds.
    pub(crate) fn ask(server: &Server, body: &Value, seconds: u32) -> Client {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let body = body.to_string();
        let mut socket = server.connect();
        write!(
            socket,
            "POST /v1/completions HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Unfazed-Resumable: {seconds}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(socket);
        let head = read_head(&mut reader);
        let id = head
            .lines()
            .find_map(|line| line.strip_prefix("unfazed-stream-id: "))
            .unwrap_or_else(|| panic!("{head}"));
        Client { id: id.to_owned(), events: Vec::new(), last: None, done: false, reader }
    }

    /// A client that got these events of a stream before.
    pub(crate) fn resume(server: &Server, id: &str, got: &[Value]) -> Client {
        let last = (!got.is_empty()).then(|| format!("{id}-{}", got.len()));
        let reader = BufReader::new(server.connect());
        let mut client = Client { id: id.to_owned(), events: got.to_vec(), last, done: false, reader };
        client.come_back(server);
        client
    }

    /// Comes back, to this or another server, behind the last event that it got.
    pub(crate) fn come_back(&mut self, server: &Server) {
        self.reader = BufReader::new(get(server, &self.id, self.last.as_deref()));
        let head = read_head(&mut self.reader);
        assert!(head.starts_with("HTTP/1.0 200 "), "{head}");
    }

    /// Reads so many events more; false if the connection broke before, or the stream ended.
    pub(crate) fn read(&mut self, count: usize) -> bool {
        (0..count).all(|_| self.next())
    }

    /// Reads to `[DONE]`.
    pub(crate) fn finish(&mut self) {
        while self.next() {}
        assert!(self.done, "stream {} broke off behind event {:?}", self.id, self.last);
    }

    fn next(&mut self) -> bool {
        let mut id = None;
        loop {
            let mut line = String::new();
            // A killed server resets connections; a line that was cut off is no event.
            if self.reader.read_line(&mut line).is_err() || !line.ends_with('\n') {
                return false;
            }
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("id: ") {
                id = Some(text.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                self.take(id.take(), data);
                // The empty line behind it.
                let mut rest = String::new();
                let _ = self.reader.read_line(&mut rest);
                return !self.done;
            }
        }
    }

    fn take(&mut self, id: Option<String>, data: &str) {
        let number = self.events.len() + 1;
        let id = id.unwrap_or_else(|| panic!("an event without an id: {data}"));
        assert_eq!(id, format!("{}-{}", self.id, number), "events come in order, each once");
        self.last = Some(id);
        if data == "[DONE]" {
            self.done = true;
            self.events.push(json!("[DONE]"));
            return;
        }
        let mut event: Value = serde_json::from_str(data).unwrap();
        for differs in ["id", "created", "timings"] {
            event.as_object_mut().unwrap().remove(differs);
        }
        self.events.push(event);
    }
}

/// Status and body of what a server says of a stream from its beginning, or behind an event.
pub(crate) fn ask_for(server: &Server, id: &str, last: Option<&str>) -> (u16, String) {
    let mut answer = Vec::new();
    get(server, id, last).read_to_end(&mut answer).unwrap();
    status_and_body(&answer)
}

fn get(server: &Server, id: &str, last: Option<&str>) -> TcpStream {
    let last = last.map(|last| format!("Last-Event-ID: {last}\r\n")).unwrap_or_default();
    let mut socket = server.connect();
    write!(socket, "GET /v1/streams/{id} HTTP/1.0\r\nHost: 127.0.0.1\r\n{last}\r\n").unwrap();
    socket
}

fn read_head(reader: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "no answer but {head:?}");
    }
    head
}
