//! Server-sent events out of bytes as they come, and the rule for events of a resumable stream: each number once.

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: Option<String>,
    pub(super) data: String,
}

/// Bytes that are no whole event yet.
#[derive(Default)]
pub(super) struct Parser {
    bytes: Vec<u8>,
    id: Option<String>,
    data: Option<String>,
}

impl Parser {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole event.
    pub(super) fn next(&mut self) -> Option<Event> {
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if let Some(id) = line.strip_prefix("id: ") {
                self.id = Some(id.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                self.data = Some(data.to_owned());
            } else if line.is_empty()
                && let Some(data) = self.data.take()
            {
                return Some(Event { id: self.id.take(), data });
            }
        }
        None
    }
}

/// Which events of a resumable stream have come.
pub(super) struct Sequence {
    stream: String,
    last: u64,
}

impl Sequence {
    pub(super) fn new(stream: String) -> Sequence {
        Sequence { stream, last: 0 }
    }

    /// What `GET /v1/streams` is asked for.
    pub(super) fn stream(&self) -> &str {
        &self.stream
    }

    /// What it is told to have come, if anything has.
    pub(super) fn last(&self) -> Option<String> {
        (self.last > 0).then(|| format!("{}-{}", self.stream, self.last))
    }

    /// Takes the next event; `Err` says how it is not the next one.
    pub(super) fn take(&mut self, id: Option<&str>) -> Result<(), String> {
        let expected = format!("{}-{}", self.stream, self.last + 1);
        match id {
            Some(id) if id == expected => {
                self.last += 1;
                Ok(())
            }
            Some(id) => {
                let number =
                    id.strip_prefix(&format!("{}-", self.stream)).and_then(|n| n.parse::<u64>().ok());
                let how = match number {
                    Some(number) if number <= self.last => "came twice",
                    Some(_) => "came with events missing before it",
                    None => "is not of this stream",
                };
                Err(format!("event {id} {how}: {expected} was expected"))
            }
            None => Err(format!("an event without id came: {expected} was expected")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_their_bytes_are_cut() {
        let text = b": silence\n\nid: a-1\ndata: {\"x\":1}\n\nid: a-2\r\ndata: [DONE]\r\n\r\n";
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for part in text.chunks(size) {
                parser.push(part);
                events.extend(std::iter::from_fn(|| parser.next()));
            }
            let event = |id: &str, data: &str| Event { id: Some(id.to_owned()), data: data.to_owned() };
            assert_eq!(events, [event("a-1", "{\"x\":1}"), event("a-2", "[DONE]")], "in pieces of {size}");
        }
    }

    #[test]
    fn an_event_that_comes_twice_or_after_a_gap_is_found() {
        let mut sequence = Sequence::new("a".to_owned());
        assert_eq!(sequence.last(), None);
        for id in ["a-1", "a-2"] {
            assert_eq!(sequence.take(Some(id)), Ok(()));
        }
        assert_eq!(sequence.last().as_deref(), Some("a-2"));
        let refused = |sequence: &mut Sequence, id| sequence.take(id).unwrap_err();
        assert!(refused(&mut sequence, Some("a-2")).contains("came twice"));
        assert!(refused(&mut sequence, Some("a-4")).contains("missing"));
        assert!(refused(&mut sequence, Some("b-3")).contains("not of this stream"));
        assert!(refused(&mut sequence, None).contains("without id"));
    }
}
