//! Reads primitive values in order, each checked against the bytes that are left before anything is allocated.

use std::fmt::Arguments;

use crate::{ByteSource, FormatError};

/// A header longer than this is refused. Headers of the largest vocabularies (262144 tokens with scores and
/// merges) take about 20 MB.
pub(crate) const HEADER_BYTES_MAX: u64 = 128 << 20;

/// Bytes fetched at a time: a header is thousands of values of a few bytes each.
const WINDOW_BYTES: usize = 64 << 10;

/// A position in the header of a file, and the bytes that follow it.
pub(crate) struct Cursor<'a> {
    source: &'a dyn ByteSource,
    position: u64,
    end: u64,
    window: Vec<u8>,
    /// Bytes of the window that were consumed.
    consumed: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(source: &'a dyn ByteSource) -> Cursor<'a> {
        let end = source.len().min(HEADER_BYTES_MAX);
        Cursor { source, position: 0, end, window: Vec::new(), consumed: 0 }
    }

    /// Offset of the next byte in the file.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that the header can still have.
    pub(crate) fn remaining(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// Base name of the file, for errors.
    pub(crate) fn file(&self) -> &'a str {
        self.source.name()
    }

    /// The next `N` bytes. `field` names what they are, for errors.
    pub(crate) fn array<const N: usize>(&mut self, field: Arguments<'_>) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        self.require(field, N as u64)?;
        self.fill(field, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u8(&mut self, field: Arguments<'_>) -> Result<u8, FormatError> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, field: Arguments<'_>) -> Result<u32, FormatError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: Arguments<'_>) -> Result<u64, FormatError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A number of elements that take at least `bytes_min` bytes each, so that it can be allocated for.
    pub(crate) fn count(&mut self, field: Arguments<'_>, bytes_min: u64) -> Result<usize, FormatError> {
        let count = self.u64(field)?;
        let fits = count.checked_mul(bytes_min).is_some_and(|bytes| bytes <= self.remaining());
        match usize::try_from(count) {
            Ok(count) if fits => Ok(count),
            _ => Err(FormatError::invalid(
                self.file(),
                field,
                count,
                format!("each takes at least {bytes_min} bytes, and {}", self.what_is_left()),
            )),
        }
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, field: Arguments<'_>, len: usize) -> Result<Vec<u8>, FormatError> {
        self.require(field, len as u64)?;
        let mut bytes = vec![0; len];
        self.fill(field, &mut bytes)?;
        Ok(bytes)
    }

    /// A length and that many bytes of UTF-8, at most `len_max`.
    pub(crate) fn string(&mut self, field: Arguments<'_>, len_max: u64) -> Result<String, FormatError> {
        let len = self.u64(format_args!("length of {field}"))?;
        if len > self.remaining() {
            let reason = self.what_is_left();
            return Err(FormatError::invalid(self.file(), format_args!("length of {field}"), len, reason));
        }
        if len > len_max {
            let reason = format!("at most {len_max} bytes are allowed");
            return Err(FormatError::invalid(self.file(), format_args!("length of {field}"), len, reason));
        }
        let bytes = self.bytes(field, len as usize)?;
        String::from_utf8(bytes).map_err(|error| {
            let lossy = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let reason = format!("it is not UTF-8 at byte {}", error.utf8_error().valid_up_to());
            FormatError::invalid(self.file(), field, format_args!("\"{lossy}\""), reason)
        })
    }

    /// "... bytes are left" for messages, which must not blame the file's end for our own bound.
    fn what_is_left(&self) -> String {
        let left = self.remaining();
        if self.end < self.source.len() {
            format!("{left} bytes are left of the {HEADER_BYTES_MAX} that a header may have")
        } else {
            format!("{left} bytes are left in the file")
        }
    }

    fn require(&self, field: Arguments<'_>, len: u64) -> Result<(), FormatError> {
        if len <= self.remaining() {
            return Ok(());
        }
        let reason = format!(
            "it starts at byte {}, takes {len} bytes, and {}; the file is cut off or damaged",
            self.position,
            self.what_is_left()
        );
        Err(FormatError::missing(self.file(), field, reason))
    }

    /// Fills `buf`, which [`Cursor::require`] found to be inside the file.
    fn fill(&mut self, field: Arguments<'_>, buf: &mut [u8]) -> Result<(), FormatError> {
        let in_window = self.consumed..self.consumed.saturating_add(buf.len());
        if let Some(found) = self.window.get(in_window.clone()) {
            buf.copy_from_slice(found);
            self.consumed = in_window.end;
        } else if buf.len() >= WINDOW_BYTES {
            self.window.clear();
            self.consumed = 0;
            self.read(field, buf)?;
        } else {
            let mut window = std::mem::take(&mut self.window);
            window.resize(self.remaining().min(WINDOW_BYTES as u64) as usize, 0);
            self.read(field, &mut window)?;
            let (found, _) = window.split_at_checked(buf.len()).unwrap_or_default();
            buf.copy_from_slice(found);
            self.window = window;
            self.consumed = buf.len();
        }
        self.position += buf.len() as u64;
        Ok(())
    }

    fn read(&self, field: Arguments<'_>, buf: &mut [u8]) -> Result<(), FormatError> {
        let result = self.source.read_exact_at(buf, self.position);
        result.map_err(|error| FormatError::io(self.file(), field, error))
    }
}
