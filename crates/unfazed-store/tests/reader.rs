//! Reads of a storage that stalls, fails, vanishes and changes. All time is the simulated clock's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::simulated::{Does, Simulated, Told};
use common::{extent, pattern};
use proptest::prelude::*;
use rustix::io::Errno;
use unfazed_formats::{BlockFormat, Extent, FileId};
use unfazed_store::{Clock, Loader, MatrixSource, Reader, Source, StoreError, VectorSource};

const SECOND: Duration = Duration::from_secs(1);

/// Reads bytes 100 to 1100 and checks them.
fn read(storage: &Simulated) -> Result<(), StoreError> {
    let bytes = storage.reader().begin("blk.0.attn_q.weight", extent(100, 1000)).wait()?;
    assert_eq!(&bytes[..], &pattern(5000)[100..1100]);
    Ok(())
}

#[test]
fn an_error_that_passes_costs_pauses_and_nothing_else() {
    for errno in [Errno::IO, Errno::AGAIN, Errno::STALE, Errno::NOENT, Errno::NOTCONN] {
        let storage = Simulated::new(pattern(5000), move |asked| match asked.number {
            0..3 => Does::Fails(errno),
            _ => Does::Reads,
        });
        read(&storage).unwrap();
        assert_eq!(storage.attempts().len(), 4);
        assert_eq!(storage.clock().now(), Duration::from_millis(50 + 100 + 200), "{errno}");
    }
    let interrupted = Simulated::new(pattern(5000), |asked| match asked.number {
        0..10 => Does::Fails(Errno::INTR),
        _ => Does::Reads,
    });
    read(&interrupted).unwrap();
    assert_eq!(
        interrupted.clock().now(),
        Duration::ZERO,
        "a read that was interrupted is made again at once"
    );
}

#[test]
fn a_stall_of_five_seconds_is_one_wait() {
    let storage = Simulated::new(pattern(5000), |_| Does::Stalls(5 * SECOND));
    read(&storage).unwrap();
    assert_eq!((storage.attempts().len(), storage.clock().now()), (1, 5 * SECOND));
}

#[test]
fn a_read_that_misses_its_deadline_is_made_again() {
    let storage = Simulated::new(pattern(5000), |asked| match asked.number {
        0 => Does::Stalls(Duration::MAX),
        _ => Does::Reads,
    });
    read(&storage).unwrap();
    assert_eq!(storage.attempts().len(), 2);
    assert_eq!(storage.clock().now(), Duration::from_millis(30_050));
}

#[test]
fn a_mount_that_vanishes_for_ten_seconds_and_comes_back_is_opened_again() {
    let away = 10 * SECOND;
    let storage = Simulated::with(
        pattern(5000),
        move |asked| if asked.now < away { Does::Fails(Errno::NOTCONN) } else { Does::Reads },
        move |now| if now < away { Err(Errno::NOENT) } else { Ok(()) },
        None,
        1,
    );
    let told = Arc::new(Told::default());
    let reader = storage.reader_told_to(told.clone());
    let mut buf = [0; 1000];
    reader.read("blk.0.attn_q.weight", extent(100, 1000), &mut buf).unwrap();
    assert_eq!(buf[..], pattern(5000)[100..1100]);
    assert_eq!(storage.attempts().len(), 2, "no read is tried before the file was opened again");
    assert!(storage.clock().now() >= away && storage.clock().now() < away + 2 * SECOND);
    let lines = told.lines.lock().unwrap();
    assert_eq!(lines[0], "reading blk.0.attn_q.weight");
    assert!(lines[1].starts_with("reading blk.0.attn_q.weight from model.gguf, which fails: "), "{lines:?}");
    assert_eq!(*told.open.lock().unwrap(), 0, "the wait is over");
}

#[test]
fn an_error_that_stays_ends_the_read_and_names_file_and_offset() {
    let limits = [(Errno::IO, 30), (Errno::NOTCONN, 600), (Errno::STALE, 600), (Errno::ACCESS, 0)];
    for (errno, seconds) in limits {
        let storage = Simulated::new(pattern(5000), move |_| Does::Fails(errno));
        let error = read(&storage).unwrap_err();
        assert!(
            matches!(&error, StoreError::Read { file, offset: 100, .. } if file == "model.gguf"),
            "{error}"
        );
        let error = error.to_string();
        assert!(error.contains("model.gguf") && error.contains(" at 100 "), "{error}");
        assert!(error.contains(&std::io::Error::from(errno).to_string()), "{error}");
        let waited = storage.clock().now().as_secs();
        assert!((seconds..=seconds + 2).contains(&waited), "{errno}: {waited} s");
    }
}

#[test]
fn a_storage_that_never_answers_is_given_up_when_patience_ends() {
    let storage = Simulated::new(pattern(5000), |_| Does::Stalls(Duration::MAX));
    let error = read(&storage).unwrap_err().to_string();
    assert!(error.contains("attempts") && error.contains("model.gguf"), "{error}");
    assert!((600..=660).contains(&storage.clock().now().as_secs()));
}

#[test]
fn a_file_that_changed_is_refused() {
    let storage = Simulated::new(pattern(5000), |_| Does::Reads);
    read(&storage).unwrap();
    storage.change(|_, identity| identity.modified.1 += 1);
    let error = read(&storage).unwrap_err();
    assert!(matches!(error, StoreError::Changed { .. }), "{error}");
    storage.change(|_, identity| (identity.modified.1, identity.inode) = (2, 4));
    let error = read(&storage).unwrap_err().to_string();
    assert!(error.contains("model.gguf") && error.contains("another file has its name"), "{error}");
}

#[test]
fn a_file_that_was_truncated_is_refused_with_both_lengths() {
    let storage = Simulated::new(pattern(5000), |_| Does::Reads);
    storage.change(|content, _| content.truncate(600));
    let error = read(&storage).unwrap_err().to_string();
    assert!(error.contains("model.gguf") && error.contains("5000 bytes and has 600"), "{error}");
    assert_eq!(storage.attempts().len(), 1, "it is not tried again");
}

#[test]
fn a_file_that_ends_early_without_a_change_is_an_error_and_no_endless_loop() {
    let storage = Simulated::new(pattern(5000), |_| Does::ReadsShort(0));
    let error = read(&storage).unwrap_err();
    assert!(
        matches!(&error, StoreError::Read { source, .. }
        if source.kind() == std::io::ErrorKind::UnexpectedEof),
        "{error}"
    );
}

#[test]
fn nothing_outside_of_a_file_or_an_extent_is_read() {
    let storage = Simulated::new(pattern(5000), |_| Does::Reads);
    let reader = storage.reader();
    let mut buf = [0; 100];
    assert!(reader.read("t", extent(0, 99), &mut buf).is_err(), "the extent is too short");
    for (offset, len) in [(4901, 100), (5000, 1), (u64::MAX, 100), (0, u64::MAX)] {
        assert!(reader.begin("t", extent(offset, len)).wait().is_err(), "{offset} {len}");
    }
    let other = Extent { file: FileId(1), offset: 0, len: 1 };
    assert!(reader.begin("t", other).wait().is_err());
    assert_eq!(storage.attempts().len(), 0);
    assert!(reader.begin("t", extent(5000, 0)).wait().unwrap().is_empty());
}

proptest! {
    /// Whatever passes, in whatever order, the bytes are the file's.
    #[test]
    fn faults_that_pass_change_no_byte(
        faults in prop::collection::vec(prop_oneof![
            Just(Does::Fails(Errno::IO)),
            Just(Does::Fails(Errno::NOTCONN)),
            Just(Does::Fails(Errno::INTR)),
            Just(Does::Stalls(SECOND)),
            Just(Does::Stalls(Duration::MAX)),
            (1usize..700).prop_map(Does::ReadsShort),
        ], 0..12),
        offset in 0u64..4000,
        len in 0usize..1000,
    ) {
        let storage = Simulated::new(
            pattern(5000),
            move |asked| faults.get(asked.number).copied().unwrap_or(Does::Reads),
        );
        let bytes = storage.reader().begin("t", extent(offset, len as u64)).wait().unwrap();
        prop_assert_eq!(&bytes[..], &pattern(5000)[offset as usize..offset as usize + len]);
    }
}

/// A matrix of 16 MiB on a storage of 20 MB/s.
#[test]
fn a_load_at_20_mb_per_second_tells_what_has_come_as_it_comes() {
    const RATE: u64 = 20_000_000;
    let (rows, columns) = (4096, 1024);
    let total = (rows * columns * 4) as u64;
    let weights: Vec<u8> = (0..rows * columns).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let storage = Simulated::with(weights, |_| Does::Reads, |_| Ok(()), Some(RATE), 8);
    let clock = storage.clock();
    let reports = Arc::new(std::sync::Mutex::new(Vec::new()));
    let progress = {
        let (clock, reports) = (clock.clone(), Arc::clone(&reports));
        Box::new(move |done| reports.lock().unwrap().push((clock.now(), done)))
    };
    let loader = Loader::new(Arc::new(storage.reader()), 1, progress);
    let source = MatrixSource {
        name: "output.weight".to_owned(),
        format: BlockFormat::F32,
        rows,
        columns,
        parts: vec![extent(0, total)],
    };
    loader.load_matrix(&source).unwrap();
    let reports = reports.lock().unwrap();
    assert!(reports.len() >= 16, "{} reports", reports.len());
    for (now, done) in reports.iter() {
        let left = (total - done) as f64 / (*done as f64 / now.as_secs_f64());
        let truly = total as f64 / RATE as f64 - now.as_secs_f64();
        assert!((left - truly).abs() < 0.01, "{left} s left at {now:?}, truly {truly}");
    }
    assert_eq!(reports.last().unwrap().1, total);
}

#[test]
fn a_drive_that_is_unplugged_for_a_minute_gives_media_errors_and_is_found_again() {
    let away = 60 * SECOND;
    let storage = Simulated::with(
        pattern(5000),
        move |asked| if asked.now < away { Does::Fails(Errno::IO) } else { Does::Reads },
        move |now| if now < away { Err(Errno::NOENT) } else { Ok(()) },
        None,
        1,
    );
    read(&storage).unwrap();
    assert!(storage.clock().now() < away + 3 * SECOND);
}

#[test]
fn what_comes_next_in_the_order_of_a_load_is_read_ahead_whatever_is_loaded_then() {
    let (rows, columns) = (700, 1024);
    let len = (rows * columns * 4) as u64;
    let weights: Vec<u8> = (0..3 * rows * columns).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let matrix = |number: u64| MatrixSource {
        name: format!("blk.{number}.attn_q.weight"),
        format: BlockFormat::F32,
        rows,
        columns,
        parts: vec![extent(number * len, len)],
    };
    let matrices = [0, 1, 2].map(matrix);
    let norm =
        VectorSource { name: "norm".to_owned(), format: BlockFormat::F32, len: 8, extent: extent(len, 32) };
    let order = || {
        let [first, second, third] = &matrices;
        [Source::Matrix(first), Source::Vector(&norm), Source::Matrix(second), Source::Matrix(third)]
    };
    // As it was said, with one left out, in another order, and without a word before.
    for (said, loaded) in [(true, "0n12"), (true, "02"), (true, "n210"), (false, "0n12")] {
        let storage = Simulated::with(weights.clone(), |_| Does::Reads, |_| Ok(()), None, 4);
        let loader = Loader::new(Arc::new(storage.reader()), 2, Box::new(|_| {}));
        if said {
            loader.expect(order());
        }
        for what in loaded.chars() {
            match what.to_digit(10) {
                None => assert_eq!(loader.load_vector(&norm).unwrap()[0], (rows * columns) as f32),
                Some(number) => {
                    let stack = loader.load_matrix(&matrices[number as usize]).unwrap();
                    let mut row = vec![0.0; columns];
                    unfazed_kernels::panel::unpack_row(&stack.matrix(0), rows - 1, &mut row);
                    let last = (number as usize + 1) * rows * columns - 1;
                    assert_eq!(row[columns - 1], last as f32);
                }
            }
        }
        let mut offsets: Vec<_> = storage.attempts().iter().map(|asked| (asked.offset, asked.len)).collect();
        let count = offsets.len();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), count, "{loaded}: nothing is used twice");
        match loaded {
            "0n12" => assert_eq!(storage.begun(), count, "nothing is read twice"),
            "02" => assert!(storage.begun() > count, "what was to come next was begun"),
            _ => {}
        }
    }
}
