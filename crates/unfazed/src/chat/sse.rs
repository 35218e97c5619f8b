//! Server-sent events out of bytes as they arrive.
//!
//! Format: <https://html.spec.whatwg.org/multipage/server-sent-events.html>. Only unnamed events matter here.

/// Longest event that is accepted; a server that sends more is broken.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Collects bytes and yields the data of each whole event.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: Vec<u8>,
    /// Start of what was not yet looked at.
    at: usize,
    data: Option<String>,
    named: bool,
}

/// More than [`MAX_EVENT_BYTES`] without an end of event.
#[derive(Debug, thiserror::Error)]
#[error("the server sent an event of more than {MAX_EVENT_BYTES} bytes")]
pub(crate) struct TooLong;

impl Parser {
    /// Adds bytes from the network.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let held = self.buffer.len() + self.data.as_ref().map_or(0, String::len);
        if held.saturating_add(bytes.len()) > MAX_EVENT_BYTES {
            return Err(TooLong);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The data of the next whole unnamed event; `None` if more bytes are needed.
    pub(crate) fn next_event(&mut self) -> Option<String> {
        loop {
            let rest = self.buffer.get(self.at..)?;
            let end = rest.iter().position(|&b| b == b'\n')?;
            let line = String::from_utf8_lossy(rest.get(..end)?).trim_end_matches('\r').to_owned();
            self.at += end + 1;
            if let Some(data) = self.line(&line) {
                return Some(data);
            }
        }
    }

    fn line(&mut self, line: &str) -> Option<String> {
        if line.is_empty() {
            let named = std::mem::take(&mut self.named);
            return self.data.take().filter(|_| !named);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "event" => self.named = !value.is_empty() && value != "message",
            // Comments (an empty field name) keep the connection alive; other fields mean nothing here.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": keep-alive\n\ndata: {\"a\":\"é\"}\r\n\r\nevent: progress\ndata: 1\n\ndata: two\ndata:lines\n\n\
                          id: 7\ndata: [DONE]\n\n";

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        for size in 1..STREAM.len() {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for part in STREAM.as_bytes().chunks(size) {
                parser.push(part).unwrap();
                while let Some(event) = parser.next_event() {
                    events.push(event);
                }
            }
            assert_eq!(events, ["{\"a\":\"é\"}", "two\nlines", "[DONE]"], "cut into parts of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused_before_it_fills_memory() {
        let mut parser = Parser::default();
        let part = vec![b'x'; 1 << 20];
        let refused = (0..64).any(|_| parser.push(&part).is_err());
        assert!(refused);
    }
}
