//! A file system that is slow, fails and goes away, below the real readers. Where it cannot be mounted nothing is tested
//! here; the same faults are in `reader.rs`, simulated.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![cfg(target_os = "linux")]

mod common;

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::simulated::Told;
use common::{extent, pattern};
use rustix::io::Errno;
use unfazed_formats::source::FileSource;
use unfazed_store::reader::Patience;
use unfazed_store::{LocalOptions, LocalStorage, Reader, StorageReader, StoreError, SystemClock};
use unfazed_testkit::fuse::FaultyMount;

const LEN: usize = (2 << 20) + 777;
/// Attempts are given up soon, so that no test takes long.
const ATTEMPT: Duration = Duration::from_millis(200);

struct Setup {
    mount: FaultyMount,
    storage: LocalStorage,
    reader: StorageReader,
    told: Arc<Told>,
    _folders: [tempfile::TempDir; 2],
}

/// `None` where nothing can be mounted, which is said.
fn setup(options: LocalOptions, change: impl FnOnce(&FaultyMount)) -> Option<Setup> {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let content = folders[0].path().join("model.gguf");
    std::fs::write(&content, pattern(LEN)).unwrap();
    let Some(mount) = FaultyMount::new(folders[1].path(), &content).unwrap() else {
        eprintln!("skipped: no FUSE file system can be mounted here");
        return None;
    };
    change(&mount);
    let source = FileSource::new("model.gguf", File::open(mount.file()).unwrap()).unwrap();
    let storage = LocalStorage::new(&[source], options).unwrap();
    let patience = Patience {
        attempt: ATTEMPT,
        away: Duration::from_secs(30),
        media: Duration::from_millis(500),
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
    };
    let told = Arc::new(Told::default());
    let clock = Arc::new(SystemClock::new());
    let reader = StorageReader::patient(Arc::new(storage.clone()), patience, clock, told.clone());
    Some(Setup { mount, storage, reader, told, _folders: folders })
}

fn read_all(reader: &StorageReader) -> Result<(), StoreError> {
    let pieces: Vec<_> = (0..LEN as u64)
        .step_by(300_000)
        .map(|start| (start, reader.begin("t", extent(start, 300_000.min(LEN as u64 - start)))))
        .collect();
    let content = pattern(LEN);
    for (start, piece) in pieces {
        let bytes = piece.wait()?;
        assert!(bytes[..] == content[start as usize..][..bytes.len()]);
    }
    Ok(())
}

#[test]
fn a_fuse_file_is_read_directly_where_it_can_be_and_through_the_cache_where_not() {
    for refuses in [false, true] {
        let options = LocalOptions { depth: Some(4), ..LocalOptions::default() };
        let Some(setup) = setup(options, |mount| mount.behave(|b| b.refuses_direct = refuses)) else {
            return;
        };
        assert_eq!(setup.storage.reads_directly(0), !refuses);
        read_all(&setup.reader).unwrap();
        assert!(setup.mount.reads() > 0);
        assert!(setup.storage.cached_share(0).unwrap_or(0.0) < 0.3);
    }
}

#[test]
fn a_read_that_fails_and_passes_changes_no_byte() {
    let Some(setup) = setup(LocalOptions::default(), |_| {}) else { return };
    setup.mount.behave(|b| b.failing = Some((Errno::IO.raw_os_error(), 5)));
    read_all(&setup.reader).unwrap();
    let lines = setup.told.lines.lock().unwrap();
    assert!(lines.iter().any(|line| line.contains("which fails: Input/output error")), "{lines:?}");
}

#[test]
fn a_stall_of_many_deadlines_ends_and_the_bytes_are_right() {
    let Some(setup) = setup(LocalOptions { depth: Some(2), ..LocalOptions::default() }, |_| {}) else {
        return;
    };
    setup.mount.behave(|b| b.stalled = true);
    let reader = setup.reader.clone();
    let reading = thread::spawn(move || read_all(&reader));
    thread::sleep(5 * ATTEMPT);
    assert!(!reading.is_finished(), "nothing can have come");
    setup.mount.behave(|b| b.stalled = false);
    reading.join().unwrap().unwrap();
    let lines = setup.told.lines.lock().unwrap();
    assert!(lines.iter().any(|line| line.contains("no answer within 0.2 s")), "{lines:?}");
}

#[test]
fn a_mount_that_goes_away_and_comes_back_is_read_on() {
    let Some(mut setup) = setup(LocalOptions::default(), |_| {}) else { return };
    read_all(&setup.reader).unwrap();
    setup.mount.vanish().unwrap();
    let reader = setup.reader.clone();
    let reading = thread::spawn(move || read_all(&reader));
    thread::sleep(5 * ATTEMPT);
    assert!(!reading.is_finished(), "nothing can have come");
    setup.mount.mount().unwrap();
    reading.join().unwrap().unwrap();
}

#[test]
fn an_error_that_stays_is_told_with_file_and_offset() {
    let Some(setup) = setup(LocalOptions::default(), |_| {}) else { return };
    setup.mount.behave(|b| b.failing = Some((Errno::IO.raw_os_error(), usize::MAX)));
    let error =
        setup.reader.begin("blk.3.ffn_up_exps.weight", extent(4000, 100)).wait().unwrap_err().to_string();
    for part in ["model.gguf", "blk.3.ffn_up_exps.weight", "100 bytes at 4000", "Input/output error"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_file_that_gets_shorter_is_refused() {
    let Some(setup) = setup(LocalOptions::default(), |_| {}) else { return };
    setup.mount.behave(|b| b.truncated = Some(1000));
    let error = read_all(&setup.reader).unwrap_err();
    assert!(matches!(&error, StoreError::Changed { file, .. } if file == "model.gguf"), "{error}");
}

#[test]
fn a_slow_file_system_is_read_at_its_rate() {
    let Some(setup) = setup(LocalOptions::default(), |_| {}) else { return };
    setup.mount.behave(|b| b.bytes_per_second = Some(20_000_000));
    let start = Instant::now();
    read_all(&setup.reader).unwrap();
    println!("{:.1} MB/s of 20", LEN as f64 / start.elapsed().as_secs_f64() / 1e6);
}
