//! Requests and answers, as plain as they can be: a connection for each, whose end is the answer's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

/// A request.
pub(super) struct Request {
    pub(super) path: String,
    pub(super) body: Value,
    socket: TcpStream,
}

/// Reads one.
pub(super) fn read(socket: TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { path, body: serde_json::from_slice(&body).unwrap_or_default(), socket })
}

impl Request {
    /// Answers with JSON.
    pub(super) fn answer(mut self, status: u16, body: &Value) {
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        // Clients leave.
        let _ = self.socket.write_all((head + &body).as_bytes());
    }

    /// Begins a stream, in chunks or up to the connection's end.
    pub(super) fn stream(mut self, chunked: bool) -> Option<Events> {
        let encoding = if chunked { "Transfer-Encoding: chunked\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{encoding}Connection: close\r\n\r\n"
        );
        self.socket.write_all(head.as_bytes()).ok()?;
        Some(Events { socket: self.socket, chunked })
    }
}

/// A stream.
pub(super) struct Events {
    socket: TcpStream,
    chunked: bool,
}

impl Events {
    /// Sends an event; `None` if nobody is there.
    pub(super) fn send(&mut self, data: &str) -> Option<()> {
        let event = format!("data: {data}\n\n");
        let event = if self.chunked { format!("{:x}\r\n{event}\r\n", event.len()) } else { event };
        self.socket.write_all(event.as_bytes()).ok()
    }

    /// Ends it well.
    pub(super) fn end(mut self) {
        if self.chunked {
            let _ = self.socket.write_all(b"0\r\n\r\n");
        }
    }
}
