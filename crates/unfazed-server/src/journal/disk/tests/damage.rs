//! Whatever the bytes on the disk: what is whole is there.

use proptest::prelude::*;

use super::super::format::{HEADER_BYTES, header};
use super::super::fuzzing::read_journal;
use super::*;

/// Two streams of four entries, over at least three segments.
fn written() -> World {
    let world = World::new(1);
    let (mut process, _, _) = Process::open(&world, small(), start()).unwrap();
    for number in 0..2 {
        process.admit(number, &[number as u8; 900]).unwrap();
    }
    for ordinal in 0..4_u8 {
        for number in 0..2 {
            process.append(number, &[ordinal; 1000]);
        }
    }
    process.flush().unwrap();
    assert_eq!(world.segments(), [1, 2, 3]);
    world
}

fn whole(number: usize, kept: &BTreeMap<u64, Kept>) -> usize {
    let number = number as u64;
    let Some(kept) = kept.get(&number) else { return 0 };
    assert_eq!(kept.admission, vec![number as u8; 900]);
    for (ordinal, entry) in kept.entries.iter().enumerate() {
        assert_eq!(*entry, vec![ordinal as u8; 1000]);
    }
    1 + kept.entries.len()
}

#[test]
fn an_undamaged_journal_is_whole() {
    let (kept, told) = found(&written(), small(), start());
    assert_eq!((whole(0, &kept), whole(1, &kept)), (5, 5));
    assert_eq!((told.bad_records, told.skipped_bytes, told.gaps, told.without_admission), (0, 0, 0, 0));
    assert_eq!(told.segments, 3);
}

#[test]
fn any_flipped_byte_costs_one_stream_what_follows_and_the_other_nothing() {
    for segment in 1..=3 {
        let mut len = 0;
        written().damage(segment, |bytes| len = bytes.len());
        for at in (0..len).step_by(13).chain(0..80) {
            let world = written();
            world.damage(segment, |bytes| bytes[at] ^= 0x10);
            let (kept, told) = found(&world, small(), start());
            let counts = [whole(0, &kept), whole(1, &kept)];
            assert_eq!(told.bad_records, 1, "byte {at} of {segment}");
            if at < HEADER_BYTES {
                assert_eq!(counts, [5, 5], "byte {at} of {segment}");
            } else {
                assert_eq!(
                    counts.iter().filter(|count| **count == 5).count(),
                    1,
                    "byte {at} of {segment}: {counts:?}"
                );
            }
        }
    }
}

#[test]
fn a_journal_cut_anywhere_opens_with_what_is_before_the_cut() {
    let mut len = 0;
    written().damage(3, |bytes| len = bytes.len());
    let mut most = 0;
    for cut in 0..=len {
        let world = written();
        world.damage(3, |bytes| bytes.truncate(cut));
        let (kept, _) = found(&world, small(), start());
        let count = whole(0, &kept) + whole(1, &kept);
        assert!(count >= most && count >= 7, "{count} records at {cut}, {most} before");
        most = count;
    }
    assert_eq!(most, 10);
}

#[test]
fn segments_that_are_missing_empty_or_garbage_cost_what_was_in_them() {
    type Change = (&'static str, fn(&World));
    let changes: [Change; 5] = [
        ("missing", |world| world.lose(2)),
        ("empty", |world| world.damage(2, Vec::clear)),
        ("garbage", |world| {
            world.damage(2, |bytes| bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31) ^ 7))
        }),
        ("header cut", |world| world.damage(2, |bytes| bytes.truncate(HEADER_BYTES - 1))),
        ("another one's", |world| world.damage(2, |bytes| *bytes = header(1, 0))),
    ];
    for (name, change) in changes {
        let world = written();
        change(&world);
        let (kept, told) = found(&world, small(), start());
        // The second segment began with the second entry of the first stream, or so.
        let counts = (whole(0, &kept), whole(1, &kept));
        assert!((2..5).contains(&counts.0) && (2..5).contains(&counts.1), "{name}: {counts:?}");
        assert_eq!(told.gaps, 2, "{name}");
        assert_eq!(told.bad_records, u64::from(name != "missing"), "{name}");
    }
}

#[test]
fn a_stream_without_its_admission_is_dropped_and_the_others_stay() {
    let world = written();
    world.damage(1, |bytes| bytes[HEADER_BYTES + 100] ^= 1);
    let (kept, told) = found(&world, small(), start());
    assert_eq!((whole(0, &kept), whole(1, &kept)), (0, 5));
    assert_eq!(told.without_admission, 1);
}

#[test]
fn what_was_written_behind_a_gap_is_not_taken_for_what_came_in_its_place() {
    let world = World::new(1);
    let (mut process, _, _) = Process::open(&world, small(), start()).unwrap();
    process.admit(0, b"prompt").unwrap();
    for entry in [b"one", b"two", b"six", b"ten"] {
        process.append(0, entry);
    }
    process.flush().unwrap();
    let at = |bytes: &[u8]| bytes.windows(3).position(|window| window == b"two").unwrap();
    world.damage(1, |bytes| {
        let at = at(bytes);
        bytes[at] = b'T';
    });
    // Another cut of the text into entries: the old third entry would follow the new second one in number only.
    let (mut process, kept, told) = Process::open(&world, small(), start()).unwrap();
    assert_eq!((kept[0].entries.as_slice(), told.gaps), (&[b"one".to_vec()][..], 1));
    process.append(0, b"twosi");
    process.flush().unwrap();
    let (kept, _) = found(&world, small(), start());
    assert_eq!(entries(&kept, 0), [&b"one"[..], b"twosi"]);
    // The same cut again may go on with what is there: it is the same text.
    let (mut process, _, _) = Process::open(&world, small(), start()).unwrap();
    process.append(0, b"x");
    process.flush().unwrap();
    let (kept, _) = found(&world, small(), start());
    assert_eq!(entries(&kept, 0), [&b"one"[..], b"twosi", b"x"]);
}

#[test]
fn behind_a_torn_tail_nothing_is_written() {
    let world = written();
    world.damage(3, |bytes| bytes.truncate(bytes.len() - 1));
    let (mut process, _, _) = Process::open(&world, small(), start()).unwrap();
    process.admit(7, b"new").unwrap();
    assert_eq!(world.segments(), [1, 2, 3, 4]);
    assert!(found(&world, small(), start()).0.contains_key(&7));
}

#[test]
fn a_segment_of_a_later_format_is_refused_by_name() {
    let world = written();
    world.damage(2, |bytes| {
        bytes[8] = 9;
        let sum = twox_hash::XxHash3_64::oneshot(&bytes[..HEADER_BYTES - 8]);
        bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    });
    let error = Process::open(&world, small(), start()).err().unwrap().to_string();
    assert!(error.contains("0000000002.journal: format 9, this program reads 1"), "{error}");
}

#[test]
fn a_journal_of_the_highest_number_says_what_to_do() {
    let world = World::new(1);
    let (mut process, _, _) = Process::open(&world, small(), start()).unwrap();
    process.admit(0, b"prompt").unwrap();
    drop(world.folder().create(u64::MAX).unwrap());
    let (mut process, kept, _) = Process::open(&world, small(), start()).unwrap();
    assert_eq!(kept.len(), 1);
    let error = process.admit(1, b"prompt").unwrap_err().to_string();
    assert!(error.contains("move the files with the highest numbers away"), "{error}");
}

proptest! {
    #[test]
    fn any_bytes_are_opened_and_counted(
        segments in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..4),
        seal in any::<bool>(),
    ) {
        let len = segments.iter().map(Vec::len).sum::<usize>() as u64;
        if let Some([kept, skipped]) = read_journal(segments, seal) {
            prop_assert!(kept + skipped <= len);
        }
    }

    #[test]
    fn any_damage_leaves_beginnings_of_streams_and_a_journal_that_goes_on(
        hits in proptest::collection::vec((1_u64..=3, any::<proptest::sample::Index>(), 1_usize..600, any::<u8>()), 1..6),
    ) {
        let world = written();
        for (segment, from, len, with) in hits {
            world.damage(segment, |bytes| {
                let from = from.index(bytes.len());
                let to = (from + len).min(bytes.len());
                bytes[from..to].fill(with);
            });
        }
        let (mut process, kept, _) = Process::open(&world, small(), start()).unwrap();
        let before = kept.len();
        process.admit(9, b"new").unwrap();
        process.later(Duration::from_secs(60));
        process.flush().unwrap();
        let (kept, _) = found(&world, small(), start());
        let _ = (whole(0, &kept), whole(1, &kept));
        prop_assert_eq!(kept.len(), before + 1);
    }
}
