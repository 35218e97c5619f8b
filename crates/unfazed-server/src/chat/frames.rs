//! What is said between the front and a process that renders: a length and JSON, over a socket.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Limits;

/// The first message, before any that is to be rendered.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) source: String,
    pub(super) limits: Limits,
}

/// Bytes that are read at once: no more memory is taken than has come.
const PIECE: usize = 1 << 20;

/// Sends a message.
pub(super) fn write(mut socket: &UnixStream, message: &[u8]) -> io::Result<()> {
    socket.write_all(&(message.len() as u64).to_le_bytes())?;
    socket.write_all(message)
}

/// Waits for a message of at most so many bytes, until a moment if one is given. `None` at the end.
pub(super) fn read(socket: &UnixStream, most: usize, until: Option<Instant>) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    if !fill(socket, &mut length, until)? {
        return Ok(None);
    }
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > most {
        let text = format!("a message of {length} bytes, over {most}");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    let mut message = Vec::new();
    while message.len() < length {
        let start = message.len();
        message.resize(length.min(start.saturating_add(PIECE)), 0);
        let rest = message.get_mut(start..).unwrap_or_default();
        if !fill(socket, rest, until)? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Some(message))
}

/// Fills a buffer; `false` if the other side has ended before its first byte.
fn fill(mut socket: &UnixStream, mut buffer: &mut [u8], until: Option<Instant>) -> io::Result<bool> {
    let mut begun = false;
    while !buffer.is_empty() {
        if let Some(until) = until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            // Less than a microsecond would be no limit at all.
            socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        }
        match socket.read(buffer) {
            Ok(0) if begun => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(0) => return Ok(false),
            Ok(read) => {
                begun = true;
                buffer = buffer.get_mut(read..).unwrap_or_default();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_in_order_and_a_long_or_unfinished_one_is_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let long = vec![7; 3 * PIECE + 5];
        let sent = long.clone();
        let sender = std::thread::spawn(move || {
            write(&theirs, b"").unwrap();
            write(&theirs, &sent).unwrap();
            write(&theirs, b"12345").unwrap();
            (&theirs).write_all(&9u64.to_le_bytes()).unwrap();
            (&theirs).write_all(b"1234").unwrap();
        });
        assert_eq!(read(&ours, 0, None).unwrap(), Some(Vec::new()));
        assert!(read(&ours, long.len(), None).unwrap() == Some(long));
        assert_eq!(read(&ours, 4, None).unwrap_err().kind(), ErrorKind::InvalidData);
        let (ours, theirs) = UnixStream::pair().unwrap();
        sender.join().unwrap();
        (&theirs).write_all(&9u64.to_le_bytes()).unwrap();
        (&theirs).write_all(b"1234").unwrap();
        drop(theirs);
        assert_eq!(read(&ours, 9, None).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read(&ours, 9, None).unwrap(), None);
    }

    #[test]
    fn nobody_waits_for_a_message_beyond_its_moment() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(&9u64.to_le_bytes()).unwrap();
        let error = read(&ours, 9, Some(Instant::now() + Duration::from_millis(20))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
