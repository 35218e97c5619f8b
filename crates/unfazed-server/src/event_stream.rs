//! Server-sent events out of bytes as they arrive, from a server that is not trusted.
//!
//! Format: <https://html.spec.whatwg.org/multipage/server-sent-events.html>, but that a lone carriage return ends no line.

/// Longest event that is accepted; a server that sends more is broken.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// What stands between two empty lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Its bytes as they came, the empty line at the end included.
    pub raw: Vec<u8>,
    /// The event's name, if it has one.
    pub name: Option<String>,
    /// Its data; a block of comments has none.
    pub data: Option<String>,
    /// The last comment in it.
    pub comment: Option<String>,
}

impl Block {
    /// The data of an event without a name, which is all that OpenAI's streams consist of.
    pub fn unnamed(self) -> Option<String> {
        let named = self.name.is_some_and(|name| !name.is_empty() && name != "message");
        self.data.filter(|_| !named)
    }
}

/// Collects bytes and yields whole blocks.
#[derive(Debug, Default)]
pub struct Parser {
    buffer: Vec<u8>,
    /// Start of what was not yet looked at.
    at: usize,
    block: Block,
}

/// More than 16 MiB without an end of event.
#[derive(Debug, thiserror::Error)]
#[error("the server sent an event of more than {MAX_EVENT_BYTES} bytes")]
pub struct TooLong;

impl Parser {
    /// Adds bytes from the network.
    ///
    /// # Errors
    ///
    /// An event is too long to be one.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let held = self.buffer.len().saturating_add(self.block.raw.len());
        if held.saturating_add(bytes.len()) > MAX_EVENT_BYTES {
            return Err(TooLong);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole block; `None` if more bytes are needed.
    pub fn next_block(&mut self) -> Option<Block> {
        loop {
            let rest = self.buffer.get(self.at..)?;
            let end = rest.iter().position(|&b| b == b'\n')?;
            let line = rest.get(..=end)?;
            self.block.raw.extend_from_slice(line);
            self.at = self.at.saturating_add(line.len());
            let line = String::from_utf8_lossy(line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                let Block { name, data, comment, .. } = &self.block;
                // Empty lines alone are no event.
                if data.is_some() || name.is_some() || comment.is_some() {
                    return Some(std::mem::take(&mut self.block));
                }
            } else {
                Self::line(&mut self.block, line);
            }
        }
    }

    fn line(block: &mut Block, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut block.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => block.data = Some(value.to_owned()),
            },
            "event" => block.name = Some(value.to_owned()),
            "" => block.comment = Some(value.to_owned()),
            // Other fields mean nothing here.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": keep-alive\n\ndata: {\"a\":\"é\"}\r\n\r\nevent: progress\ndata: 1\n\ndata: two\ndata:lines\n\n\
                          \n\nid: 7\ndata: [DONE]\n\n";

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        for size in 1..STREAM.len() {
            let mut parser = Parser::default();
            let (mut events, mut raw) = (Vec::new(), Vec::new());
            for part in STREAM.as_bytes().chunks(size) {
                parser.push(part).unwrap();
                while let Some(block) = parser.next_block() {
                    raw.extend_from_slice(&block.raw);
                    events.extend(block.unnamed());
                }
            }
            assert_eq!(events, ["{\"a\":\"é\"}", "two\nlines", "[DONE]"], "cut into parts of {size}");
            assert_eq!(String::from_utf8(raw).unwrap(), STREAM, "cut into parts of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused_before_it_fills_memory() {
        for part in [vec![b'x'; 1 << 20], b"data: x\n".repeat(1 << 17)] {
            let mut parser = Parser::default();
            let refused = (0..64).any(|_| {
                let refused = parser.push(&part).is_err();
                while parser.next_block().is_some() {}
                refused
            });
            assert!(refused);
        }
    }
}
