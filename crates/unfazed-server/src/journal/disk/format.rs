//! The bytes of a segment: a header, then records. `docs/journal.md` has the tables.
//!
//! A record says where it is: its checksum covers the segment's number and its offset, so a copy of it elsewhere, such as
//! in a block that the file system used before, is none. An entry also says what it follows: a hash over the admission and
//! all entries before it. Entries that were written behind a gap by an earlier process are therefore never taken for those
//! that came in their place.

use std::fmt;

use twox_hash::XxHash3_64;

/// First bytes of a segment.
const MAGIC: [u8; 8] = *b"unfzjrnl";
/// Version of this format.
pub(super) const VERSION: u32 = 1;
/// Bytes of a segment's header: magic, version, number, time of creation, checksum.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 8 + 8 + 8;
/// First bytes of a record. Not text, so that text seldom holds it.
pub(super) const MARKER: [u8; 4] = [0xf5, b'J', 0x9d, 0xc1];
/// Marker, length, checksum.
const FRAME_BYTES: usize = 4 + 4 + 8;
/// Kind, epoch, key, ordinal, what it follows, time.
const FIXED_BYTES: usize = 1 + 8 + 16 + 4 + 8 + 8;
/// Bytes that a record takes beside those that it keeps.
pub(super) const RECORD_OVERHEAD: usize = FRAME_BYTES + FIXED_BYTES;
/// Most bytes that a record keeps: above any request's body, and small enough to be read whole.
pub(crate) const MAX_RECORD_BYTES: usize = 64 << 20;

/// Names a stream. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamKey(pub(crate) [u8; 16]);

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What a record says of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It begins.
    Admission,
    /// It goes on.
    Entry,
    /// It is not needed any more: nothing before this counts.
    Forgotten,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Admission => 1,
            Kind::Entry => 2,
            Kind::Forgotten => 3,
        }
    }

    fn of(code: u8) -> Option<Kind> {
        [Kind::Admission, Kind::Entry, Kind::Forgotten].into_iter().find(|kind| kind.code() == code)
    }
}

/// A record: `B` are bytes of its own or those of a file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<B> {
    pub(super) kind: Kind,
    /// Counts up with each process that writes the journal. Of two entries with one ordinal the later counts.
    pub(super) epoch: u64,
    pub(super) key: StreamKey,
    /// Number of the entry in its stream, from 0; 0 in other records.
    pub(super) ordinal: u32,
    /// [`chain`] over the admission and all entries before; 0 in other records.
    pub(super) follows: u64,
    /// When it was written first, in milliseconds since 1970.
    pub(super) time_ms: u64,
    pub(super) bytes: B,
}

impl<B: AsRef<[u8]>> Record<B> {
    /// Bytes that it takes in a segment.
    pub(super) fn size(&self) -> u64 {
        (RECORD_OVERHEAD + self.bytes.as_ref().len()) as u64
    }

    /// Appends it as it has to stand at this place.
    pub(super) fn encode(&self, segment: u64, offset: u64, out: &mut Vec<u8>) {
        let bytes = self.bytes.as_ref();
        debug_assert!(bytes.len() <= MAX_RECORD_BYTES, "longer ones are refused on their way in");
        let length = (FIXED_BYTES + bytes.len()) as u32;
        out.extend(MARKER);
        out.extend(length.to_le_bytes());
        let at = out.len();
        out.extend([0; 8]);
        out.push(self.kind.code());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.key.0);
        out.extend(self.ordinal.to_le_bytes());
        out.extend(self.follows.to_le_bytes());
        out.extend(self.time_ms.to_le_bytes());
        out.extend(bytes);
        let sum = checksum(length, segment, offset, &out[at + 8..]);
        out[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    }
}

/// What the next entry follows, after an entry (or the admission, with 0 before it) of these bytes.
pub(super) fn chain(before: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(before, bytes)
}

fn checksum(length: u32, segment: u64, offset: u64, payload: &[u8]) -> u64 {
    let mut place = [0; 20];
    place[..4].copy_from_slice(&length.to_le_bytes());
    place[4..12].copy_from_slice(&segment.to_le_bytes());
    place[12..].copy_from_slice(&offset.to_le_bytes());
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&place), payload)
}

/// Takes numbers off the front of bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn int(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

/// What stands where a record should begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<'a> {
    Record(Record<&'a [u8]>),
    /// No record. Finding out took a look at so many bytes.
    Nothing {
        looked_at: usize,
    },
}

/// Reads the record at the front of `bytes`, which stand at `offset` of segment `segment`.
pub(super) fn parse(bytes: &[u8], segment: u64, offset: u64) -> Parsed<'_> {
    let Some((length, sum, payload)) = framed(bytes) else {
        return Parsed::Nothing { looked_at: FRAME_BYTES };
    };
    if checksum(length, segment, offset, payload) != sum {
        return Parsed::Nothing { looked_at: FRAME_BYTES + payload.len() };
    }
    fields(payload).map_or(Parsed::Nothing { looked_at: FRAME_BYTES + payload.len() }, Parsed::Record)
}

fn framed(bytes: &[u8]) -> Option<(u32, u64, &[u8])> {
    let mut frame = Fields(bytes);
    if frame.take()? != MARKER {
        return None;
    }
    let (length, sum) = (frame.int()?, frame.long()?);
    let len = usize::try_from(length).ok()?;
    if !(FIXED_BYTES..=FIXED_BYTES + MAX_RECORD_BYTES).contains(&len) {
        return None;
    }
    Some((length, sum, frame.bytes(len)?))
}

fn fields(payload: &[u8]) -> Option<Record<&[u8]>> {
    let mut fields = Fields(payload);
    Some(Record {
        kind: Kind::of(fields.byte()?)?,
        epoch: fields.long()?,
        key: StreamKey(fields.take()?),
        ordinal: fields.int()?,
        follows: fields.long()?,
        time_ms: fields.long()?,
        bytes: fields.0,
    })
}

/// Gives what is framed as a record the checksum that makes it one. Its length.
pub(super) fn reseal(bytes: &mut [u8], segment: u64, offset: u64) -> Option<usize> {
    let (length, _, payload) = framed(bytes)?;
    let (sum, len) = (checksum(length, segment, offset, payload), FRAME_BYTES + payload.len());
    bytes.get_mut(8..FRAME_BYTES)?.copy_from_slice(&sum.to_le_bytes());
    Some(len)
}

/// A segment's first bytes.
pub(super) fn header(segment: u64, created_ms: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend(segment.to_le_bytes());
    out.extend(created_ms.to_le_bytes());
    let sum = XxHash3_64::oneshot(&out);
    out.extend(sum.to_le_bytes());
    out
}

/// What a whole header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) segment: u64,
    pub(super) created_ms: u64,
}

/// Reads a segment's header; `None` if it is not whole.
pub(super) fn parse_header(bytes: &[u8]) -> Option<Header> {
    let head = bytes.get(..HEADER_BYTES)?;
    let (said, sum) = head.split_last_chunk::<8>()?;
    let mut fields = Fields(said);
    if fields.take()? != MAGIC || XxHash3_64::oneshot(said) != u64::from_le_bytes(*sum) {
        return None;
    }
    Some(Header { version: fields.int()?, segment: fields.long()?, created_ms: fields.long()? })
}

/// A segment's file name.
pub(super) fn file_name(segment: u64) -> String {
    format!("{segment:010}.journal")
}

/// The segment that a file name names; `None` for other files.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".journal")?;
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    (file_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: &[u8]) -> Record<&[u8]> {
        let key = StreamKey([7; 16]);
        Record {
            kind: Kind::Entry,
            epoch: 3,
            key,
            ordinal: 9,
            follows: 11,
            time_ms: 1_700_000_000_000,
            bytes,
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_only_where_it_was_written() {
        for bytes in [&b""[..], b"token", &[0xf5; 300]] {
            let mut out = Vec::new();
            record(bytes).encode(4, 100, &mut out);
            assert_eq!(out.len() as u64, record(bytes).size());
            assert_eq!(parse(&out, 4, 100), Parsed::Record(record(bytes)));
            assert!(matches!(parse(&out, 5, 100), Parsed::Nothing { .. }));
            assert!(matches!(parse(&out, 4, 101), Parsed::Nothing { .. }));
        }
    }

    #[test]
    fn no_flipped_bit_and_no_missing_byte_leaves_a_record() {
        let mut out = Vec::new();
        record(b"some tokens").encode(1, 36, &mut out);
        for bit in 0..out.len() * 8 {
            out[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(parse(&out, 1, 36), Parsed::Nothing { .. }), "bit {bit}");
            out[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..out.len() {
            assert!(matches!(parse(&out[..len], 1, 36), Parsed::Nothing { .. }), "{len} bytes");
        }
    }

    #[test]
    fn a_header_is_whole_or_none() {
        let mut bytes = header(12, 34);
        assert_eq!(parse_header(&bytes), Some(Header { version: VERSION, segment: 12, created_ms: 34 }));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse_header(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            assert_eq!(parse_header(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn only_names_that_a_journal_gives_are_segments() {
        for number in [0, 1, 9_999_999_999, 10_000_000_000, u64::MAX] {
            assert_eq!(segment_number(&file_name(number)), Some(number));
        }
        for name in [
            "1.journal",
            "00000000001.journal",
            "+000000001.journal",
            "0000000001.journal.bak",
            ".journal",
            "lock",
        ] {
            assert_eq!(segment_number(name), None, "{name}");
        }
    }
}
