//! Files of this machine, read in every way there is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::{extent, pattern};
use unfazed_formats::source::FileSource;
use unfazed_store::{LocalOptions, LocalStorage, Reader, StorageReader, StoreError};

/// A length that is no multiple of anything.
const LEN: usize = (5 << 20) + 12_345;

fn file() -> tempfile::NamedTempFile {
    // Beside the sources' build: a folder for temporary files is often no disk.
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&pattern(LEN)).unwrap();
    file.as_file().sync_all().unwrap();
    file
}

fn open(file: &tempfile::NamedTempFile, options: LocalOptions) -> (LocalStorage, StorageReader) {
    let source = FileSource::new("model.gguf", File::open(file.path()).unwrap()).unwrap();
    let storage = LocalStorage::new(&[source], options).unwrap();
    (storage.clone(), StorageReader::new(Arc::new(storage)))
}

/// Every choice that options leave.
fn all_options() -> impl Iterator<Item = LocalOptions> {
    (0..16).map(|bits| LocalOptions {
        depth: Some(if bits & 8 == 0 { 1 } else { 7 }),
        ring: bits & 1 == 0,
        direct: bits & 2 == 0,
        cached: bits & 4 == 0,
    })
}

/// The page cache lets go of the file. Not on file systems in memory.
fn evict(file: &tempfile::NamedTempFile) {
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let _ = file;
}

#[test]
fn every_way_of_reading_gives_the_files_bytes_at_any_offset_and_length() {
    let file = file();
    let content = pattern(LEN);
    let starts = [0, 1, 511, 512, 4095, 4096, 4097, 1_000_000, 1 << 20, LEN - 12_345, LEN - 1];
    let lens = [1, 2, 511, 4096, 4097, 65_537, (1 << 20) - 8192, 1 << 20, 3 << 20, LEN];
    for options in all_options() {
        evict(&file);
        let (_, reader) = open(&file, options);
        let mut reads = Vec::new();
        for start in starts {
            for len in lens.into_iter().filter(|len| start + len <= LEN) {
                reads.push((start, len, reader.begin("t", extent(start as u64, len as u64))));
            }
        }
        // Many more at a time than the ring has entries.
        assert!(reads.len() > 64);
        for (start, len, read) in reads {
            let bytes = read.wait().unwrap();
            assert!(bytes[..] == content[start..start + len], "{len} bytes at {start} with {options:?}");
        }
    }
}

#[test]
fn reads_that_nobody_waits_for_disturb_no_others() {
    let file = file();
    let content = pattern(LEN);
    for options in all_options() {
        evict(&file);
        let (_, reader) = open(&file, options);
        for round in 0..20u64 {
            drop((0..10).map(|i| reader.begin("t", extent(i * 4096, 1 << 20))).collect::<Vec<_>>());
            let start = round * 100_000;
            let bytes = reader.begin("t", extent(start, 300_000)).wait().unwrap();
            assert!(bytes[..] == content[start as usize..start as usize + 300_000], "{options:?}");
        }
    }
}

#[test]
fn a_file_that_somebody_writes_or_shortens_is_refused_in_every_way() {
    for options in all_options() {
        let file = file();
        let (_, reader) = open(&file, options);
        reader.begin("t", extent(0, 10_000)).wait().unwrap();
        // The clock of a file system may stand still for a few milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.as_file().write_all_at(b"x", 3).unwrap();
        let error = reader.begin("t", extent(0, 10_000)).wait().unwrap_err();
        assert!(matches!(error, StoreError::Changed { .. }), "{error} with {options:?}");
        file.as_file().set_len(100).unwrap();
        let error = reader.begin("t", extent(50_000, 10_000)).wait().unwrap_err().to_string();
        assert!(error.contains("model.gguf") && error.contains("has 100 now"), "{error} with {options:?}");
    }
}

/// What this asks of the system is asked on Linux alone, and a file system in memory holds all that it has.
#[test]
fn weights_are_not_kept_in_the_page_cache_as_well() {
    for options in all_options() {
        let file = file();
        evict(&file);
        let (storage, reader) = open(&file, options);
        let Some(0.0) = storage.cached_share(0) else { return };
        reader.begin("t", extent(0, LEN as u64)).wait().unwrap();
        let share = storage.cached_share(0).unwrap();
        assert!(share < 0.05, "{:.0} % are in the page cache with {options:?}", share * 100.0);
    }
}

#[test]
fn what_the_page_cache_holds_is_read_from_there_and_stays() {
    let file = file();
    std::fs::read(file.path()).unwrap();
    for options in all_options().filter(|options| options.cached) {
        let (storage, reader) = open(&file, options);
        let Some(before) = storage.cached_share(0) else { return };
        assert!(before > 0.99, "{before}");
        assert!(reader.begin("t", extent(0, LEN as u64)).wait().unwrap()[..] == pattern(LEN));
        assert_eq!(storage.cached_share(0), Some(before), "{options:?}");
    }
}

#[test]
fn a_file_that_is_opened_again_is_the_one_of_that_name() {
    use unfazed_store::Storage;

    let file = file();
    let (storage, reader) = open(&file, LocalOptions::default());
    storage.reopen(0).unwrap();
    assert!(reader.begin("t", extent(0, LEN as u64)).wait().unwrap()[..] == pattern(LEN));
    // Another file of the same content takes its name.
    let copy = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::copy(file.path(), copy.path()).unwrap();
    std::fs::rename(copy.path(), file.path()).unwrap();
    storage.reopen(0).unwrap();
    assert!(matches!(reader.begin("t", extent(0, 10)).wait(), Err(StoreError::Changed { .. })));
    std::fs::remove_file(file.path()).unwrap();
    assert_eq!(storage.reopen(0).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_disk_that_nobody_measured_is_measured_in_a_moment() {
    use unfazed_store::storage::tune;

    let file = file();
    evict(&file);
    let source = FileSource::new("model.gguf", File::open(file.path()).unwrap()).unwrap();
    // `None`: a file system in memory.
    if let Some(found) = tune::quick(&source).unwrap() {
        println!("{found:?}");
        assert!(found.tried.iter().any(|(depth, rate)| *depth == found.depth && rate.bytes_per_second > 0.0));
    }
    std::fs::read(file.path()).unwrap();
    if open(&file, LocalOptions::default()).0.cached_share(0) == Some(1.0) {
        assert_eq!(tune::quick(&source).unwrap(), None, "the page cache has it");
    }
}
