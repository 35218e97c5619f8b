//! Finds the records that are whole in a segment's bytes, whatever those are.

use super::format::{HEADER_BYTES, Header, MARKER, Parsed, Record, parse, parse_header};

/// How often over a segment's bytes may be looked at in search of a whole record. A search behind damage checks each place
/// that looks like the beginning of a record, and a prompt may be full of such places.
const MAX_LOOKS: usize = 64;

/// What a segment's bytes were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// `None` if it is not whole.
    pub(super) header: Option<Header>,
    /// Bytes of whole records.
    pub(super) whole_bytes: u64,
    /// Stretches that hold no whole record.
    pub(super) bad: u64,
    /// Bytes of them.
    pub(super) skipped_bytes: u64,
}

/// Calls `each` with every whole record of segment `segment`, in order.
pub(super) fn scan<'a>(bytes: &'a [u8], segment: u64, mut each: impl FnMut(Record<&'a [u8]>)) -> Scan {
    let header = parse_header(bytes).filter(|header| header.segment == segment);
    let mut scan = Scan { header, ..Scan::default() };
    let mut at = if header.is_some() { HEADER_BYTES } else { 0 };
    let mut bad_from = None;
    let mut looks = bytes.len().saturating_mul(MAX_LOOKS);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        match parse(rest, segment, at as u64) {
            Parsed::Record(record) => {
                scan.skip(bad_from.take(), at);
                scan.whole_bytes += record.size();
                at += record.size() as usize;
                each(record);
            }
            Parsed::Nothing { looked_at } => {
                bad_from.get_or_insert(at);
                looks = looks.saturating_sub(looked_at);
                let next = next_marker(rest).filter(|_| looks > 0);
                at = next.map_or(bytes.len(), |next| at + next);
            }
        }
    }
    scan.skip(bad_from, bytes.len());
    // Without its header a segment is damaged, even if nothing else is missing.
    scan.bad += u64::from(header.is_none() && scan.bad == 0);
    scan
}

impl Scan {
    fn skip(&mut self, from: Option<usize>, to: usize) {
        if let Some(from) = from {
            self.bad += 1;
            self.skipped_bytes += (to - from) as u64;
        }
    }
}

/// Where the next marker begins, behind the first byte.
pub(super) fn next_marker(bytes: &[u8]) -> Option<usize> {
    let [first, ..] = MARKER;
    let mut from = 1;
    loop {
        let rest = bytes.get(from..)?;
        let at = from + rest.iter().position(|byte| *byte == first)?;
        if bytes.get(at..)?.starts_with(&MARKER) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::{Kind, StreamKey, header};
    use super::*;

    const SEGMENT: u64 = 5;

    fn segment(records: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        let mut out = header(SEGMENT, 1);
        let mut ends = vec![out.len()];
        for (ordinal, bytes) in records.iter().enumerate() {
            let record = Record {
                kind: Kind::Entry,
                epoch: 1,
                key: StreamKey([1; 16]),
                ordinal: ordinal as u32,
                follows: 0,
                time_ms: 0,
                bytes,
            };
            record.encode(SEGMENT, out.len() as u64, &mut out);
            ends.push(out.len());
        }
        (out, ends)
    }

    fn found(bytes: &[u8]) -> (Scan, Vec<u32>) {
        let mut ordinals = Vec::new();
        let scan = scan(bytes, SEGMENT, |record| ordinals.push(record.ordinal));
        (scan, ordinals)
    }

    #[test]
    fn a_flipped_byte_costs_the_record_that_it_is_in_and_no_other() {
        let records: Vec<Vec<u8>> = (0..4).map(|n| vec![n; 20 + usize::from(n)]).collect();
        let (mut bytes, ends) = segment(&records);
        assert_eq!(found(&bytes).1, [0, 1, 2, 3]);
        for at in 0..bytes.len() {
            bytes[at] ^= 0x20;
            let hit = ends.iter().position(|end| at < *end).unwrap().checked_sub(1);
            let expected: Vec<u32> = (0..4).filter(|n| Some(*n as usize) != hit).collect();
            let (scan, ordinals) = found(&bytes);
            assert_eq!(ordinals, expected, "byte {at}");
            assert_eq!(scan.bad, 1, "byte {at}");
            bytes[at] ^= 0x20;
        }
    }

    #[test]
    fn a_segment_cut_anywhere_gives_the_records_before_the_cut() {
        let (bytes, ends) = segment(&[b"one".to_vec(), vec![], MARKER.repeat(9)]);
        for len in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= len).count().saturating_sub(1) as u32;
            let (scan, ordinals) = found(&bytes[..len]);
            assert_eq!(ordinals, (0..whole).collect::<Vec<_>>(), "{len} bytes");
            assert_eq!(scan.bad, u64::from(!ends.contains(&len)), "{len} bytes");
        }
    }

    #[test]
    fn a_prompt_full_of_markers_does_not_make_a_search_endless() {
        let mut bytes = header(SEGMENT, 1);
        // Each says that it is as long as can be, so that each is looked at to the end.
        for left in (0..1_usize << 16).rev() {
            bytes.extend(MARKER);
            bytes.extend(((left * 16) as u32).to_le_bytes());
            bytes.extend([0; 8]);
        }
        let (scan, ordinals) = found(&bytes);
        assert!(ordinals.is_empty());
        assert_eq!(scan.skipped_bytes as usize, bytes.len() - HEADER_BYTES);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_and_each_is_counted(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (scan, _) = found(&bytes);
            let head = if scan.header.is_some() { HEADER_BYTES as u64 } else { 0 };
            prop_assert_eq!(head + scan.whole_bytes + scan.skipped_bytes, bytes.len() as u64);
        }

        #[test]
        fn damage_costs_only_what_it_touches(
            sizes in proptest::collection::vec(0_usize..60, 1..8),
            from in any::<proptest::sample::Index>(),
            len in 1_usize..50,
            with in any::<u8>(),
        ) {
            let records: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0xf5; *size]).collect();
            let (whole, ends) = segment(&records);
            let mut bytes = whole.clone();
            let from = from.index(bytes.len());
            let to = (from + len).min(bytes.len());
            bytes[from..to].fill(with);
            let (_, ordinals) = found(&bytes);
            for (ordinal, ends) in ends.windows(2).enumerate() {
                let untouched = bytes[ends[0]..ends[1]] == whole[ends[0]..ends[1]];
                prop_assert_eq!(ordinals.contains(&(ordinal as u32)), untouched);
            }
        }
    }
}
