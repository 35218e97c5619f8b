//! The journal with its thread, in folders of this machine.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::super::format::MAX_RECORD_BYTES;
use super::super::handle::{Disk, Opened};
use super::super::queue::{MAX_QUEUED_BYTES, Queue};
use super::*;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("journal");
    (folder, dir)
}

fn open(dir: &Path) -> Result<Opened, JournalError> {
    Disk::open(dir, Limits::default(), Told::default().sink())
}

/// Everything is written and the folder free when this is done.
async fn close(disk: Disk) {
    drop(disk.hand_over().await.unwrap());
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o777
}

#[tokio::test]
async fn what_was_given_is_there_for_the_next_process() {
    let (_folder, dir) = folder();
    let Opened { disk, kept, .. } = open(&dir).unwrap();
    assert_eq!(kept, []);
    disk.admit(key(0), b"prompt".to_vec()).await.unwrap();
    disk.append(key(0), b"one".to_vec());
    disk.append_written(key(0), b"two".to_vec()).await.unwrap();
    disk.admit(key(1), b"other".to_vec()).await.unwrap();
    disk.forget(key(1));
    disk.flush().await.unwrap();
    let state = disk.state();
    assert_eq!((state.streams, state.segments, state.unsynced_bytes, state.broken), (1, 1, 0, None));
    close(disk).await;
    let Opened { disk, kept, found } = open(&dir).unwrap();
    assert_eq!((found.bad_records, found.skipped_bytes), (0, 0));
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].key, kept[0].admission.as_slice()), (key(0), &b"prompt"[..]));
    assert_eq!(kept[0].entries, [b"one", b"two"]);
    disk.append(key(0), b"three".to_vec());
    // The last handle may go at any time: what is queued is written.
    drop(disk);
    let deadline = Instant::now() + Duration::from_secs(30);
    let kept = loop {
        match open(&dir) {
            Err(JournalError::Locked { .. }) if Instant::now() < deadline => std::thread::yield_now(),
            other => break other.unwrap().kept,
        }
    };
    assert_eq!(kept[0].entries, [&b"one"[..], b"two", b"three"]);
}

#[tokio::test]
async fn nobody_else_can_read_it() {
    let (_folder, dir) = folder();
    let disk = open(&dir).unwrap().disk;
    disk.admit(key(0), b"prompt".to_vec()).await.unwrap();
    assert_eq!(mode(&dir), 0o700);
    for file in ["lock", "0000000001.journal"] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
    close(disk).await;
    // A folder that was made by hand, or opened by mistake, is closed again.
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    close(open(&dir).unwrap().disk).await;
    assert_eq!(mode(&dir), 0o700);
    // One with other things in it is not touched.
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(dir.join("notes.txt"), "").unwrap();
    let error = open(&dir).unwrap_err().to_string();
    assert!(error.contains("\"notes.txt\"") && error.contains("755"), "{error}");
    assert_eq!(mode(&dir), 0o755);
}

#[tokio::test]
async fn a_second_server_hears_who_has_it() {
    let (_folder, dir) = folder();
    let disk = open(&dir).unwrap().disk;
    let error = open(&dir).unwrap_err();
    assert_eq!(error, JournalError::Locked { dir: dir.clone(), pid: Some(std::process::id()) });
    assert!(error.to_string().contains(&format!("in use by process {}", std::process::id())), "{error}");
    close(disk).await;
    close(open(&dir).unwrap().disk).await;
}

#[tokio::test]
async fn a_successor_gets_the_lock_and_the_streams_and_nobody_in_between() {
    let (_folder, dir) = folder();
    let disk = open(&dir).unwrap().disk;
    disk.admit(key(0), b"prompt".to_vec()).await.unwrap();
    disk.append(key(0), b"one".to_vec());
    let lock = disk.hand_over().await.unwrap();
    assert!(matches!(open(&dir), Err(JournalError::Locked { .. })));
    assert_eq!(disk.admit(key(1), Vec::new()).await, Err(JournalError::HandedOver));
    let theirs = lock.try_clone().unwrap();
    let next = Disk::open_with_lock(&dir, theirs, Limits::default(), Told::default().sink()).unwrap();
    assert_eq!(next.kept[0].entries, [b"one"]);
    drop((disk, lock));
    next.disk.append(key(0), b"two".to_vec());
    next.disk.flush().await.unwrap();
    assert!(matches!(open(&dir), Err(JournalError::Locked { .. })));
    close(next.disk).await;
    assert_eq!(open(&dir).unwrap().kept[0].entries, [b"one", b"two"]);
}

#[tokio::test]
async fn a_successor_that_failed_leaves_the_journal_to_whom_it_was_from() {
    let (_folder, dir) = folder();
    let disk = open(&dir).unwrap().disk;
    disk.admit(key(0), b"prompt".to_vec()).await.unwrap();
    disk.append(key(0), b"one".to_vec());
    let lock = disk.hand_over().await.unwrap();
    // What comes meanwhile waits.
    disk.append(key(0), b"two".to_vec());
    let theirs = lock.try_clone().unwrap();
    let next = Disk::open_with_lock(&dir, theirs, Limits::default(), Told::default().sink()).unwrap();
    next.disk.append(key(0), b"other".to_vec());
    next.disk.append(key(0), b"words".to_vec());
    next.disk.admit(key(1), b"came there".to_vec()).await.unwrap();
    close(next.disk).await;
    let came = disk.take_back(lock).await.unwrap();
    assert_eq!(came.iter().map(|kept| kept.key).collect::<Vec<_>>(), [key(1)]);
    disk.append(key(0), b"three".to_vec());
    disk.append(key(1), b"token".to_vec());
    disk.flush().await.unwrap();
    assert!(matches!(open(&dir), Err(JournalError::Locked { .. })));
    close(disk).await;
    let kept = open(&dir).unwrap().kept;
    let of = |number| &kept.iter().find(|kept| kept.key == key(number)).unwrap().entries;
    assert_eq!(*of(0), [&b"one"[..], b"two", b"three"]);
    assert_eq!(*of(1), [b"token"]);
}

#[tokio::test]
async fn only_the_lock_is_taken_for_the_lock() {
    let (_folder, dir) = folder();
    close(open(&dir).unwrap().disk).await;
    let other = std::fs::File::open(dir.parent().unwrap()).unwrap().into();
    let error = Disk::open_with_lock(&dir, other, Limits::default(), Told::default().sink()).unwrap_err();
    assert!(error.to_string().contains("another file's"), "{error}");
}

#[tokio::test]
async fn a_folder_that_was_deleted_is_noticed_at_the_next_admission() {
    let (_folder, dir) = folder();
    let told = Told::default();
    let disk = Disk::open(&dir, Limits::default(), told.sink()).unwrap().disk;
    disk.admit(key(0), b"prompt".to_vec()).await.unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let error = disk.admit(key(1), b"prompt".to_vec()).await.unwrap_err().to_string();
    assert!(error.contains("its file was deleted"), "{error}");
    assert!(matches!(told.take().as_slice(), [JournalEvent::Broken { .. }]));
    // It is not made again by itself: what is missing may be a disk. Once it is there, all goes on.
    std::fs::create_dir(&dir).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while disk.admit(key(2), b"prompt".to_vec()).await.is_err() {
        assert!(Instant::now() < deadline, "it did not mend: {:?}", told.take());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(matches!(open(&dir), Err(JournalError::Locked { .. })), "it has the lock of the new folder");
    close(disk).await;
    assert_eq!(open(&dir).unwrap().kept.len(), 1);
}

#[tokio::test]
async fn what_is_too_large_is_refused_and_never_written() {
    let (_folder, dir) = folder();
    let disk = open(&dir).unwrap().disk;
    let large = || vec![0; MAX_RECORD_BYTES + 1];
    let too_large = JournalError::TooLarge { bytes: MAX_RECORD_BYTES + 1, most: MAX_RECORD_BYTES };
    assert_eq!(disk.admit(key(0), large()).await, Err(too_large.clone()));
    disk.admit(key(1), vec![7; MAX_RECORD_BYTES]).await.unwrap();
    disk.append(key(1), b"one".to_vec());
    assert_eq!(disk.append_written(key(1), large()).await, Err(too_large));
    assert_eq!(disk.append_written(key(1), b"three".to_vec()).await, Err(JournalError::NotKept(key(1))));
    assert_eq!(disk.state().gaps, 1);
    close(disk).await;
    let kept = open(&dir).unwrap().kept;
    assert_eq!((kept[0].admission.len(), kept[0].entries.len()), (MAX_RECORD_BYTES, 1));
}

#[tokio::test]
async fn a_disk_that_is_too_slow_costs_entries_and_no_memory() {
    let queue = Queue::new();
    // Nobody takes anything out.
    for _ in 0..(MAX_QUEUED_BYTES >> 20) + 10 {
        queue.append(key(0), vec![0; 1 << 20]);
    }
    assert!(queue.waiting().0 <= MAX_QUEUED_BYTES);
    assert!(matches!(
        queue.admit(key(1), vec![0; 1 << 20]).wait().await,
        Err(JournalError::Overloaded { .. })
    ));
    queue.append(key(0), b"small".to_vec());
    let batch = queue.next(None);
    assert_eq!(batch.items.len(), 63);
    assert_eq!(batch.new_gaps, [(key(0), "too much waits for the disk")], "told once");
    queue.append(key(0), b"small".to_vec());
    queue.append(key(2), b"small".to_vec());
    let batch = queue.next(None);
    assert_eq!((batch.items.len(), batch.new_gaps.len()), (1, 0), "a gap stays one, and others go on");
}

#[tokio::test]
async fn what_is_no_file_is_left_alone() {
    let (_folder, dir) = folder();
    let disk = open(&dir).unwrap().disk;
    disk.admit(key(0), b"prompt".to_vec()).await.unwrap();
    close(disk).await;
    std::fs::create_dir(dir.join("0000000005.journal")).unwrap();
    let Opened { disk, kept, found } = open(&dir).unwrap();
    assert_eq!((kept.len(), found.bad_records), (1, 1));
    disk.admit(key(1), b"prompt".to_vec()).await.unwrap();
    assert!(dir.join("0000000006.journal").is_file());
    close(disk).await;
    assert_eq!(open(&dir).unwrap().kept.len(), 2);
}

/// With a real disk that is full: `UNFAZED_TEST_SMALL_DISK` names an empty one of a few MiB, such as
/// `mount -t tmpfs -o size=4m none DIR`.
#[tokio::test]
#[ignore = "needs a small disk"]
async fn a_full_disk_refuses_admissions_and_loses_nothing_once_there_is_room() {
    let small = PathBuf::from(std::env::var_os("UNFAZED_TEST_SMALL_DISK").expect("UNFAZED_TEST_SMALL_DISK"));
    let dir = small.join("journal");
    let told = Told::default();
    let disk = Disk::open(&dir, Limits::default(), told.sink()).unwrap().disk;
    disk.admit(key(0), b"prompt".to_vec()).await.unwrap();
    let (mut admitted, mut appended) = (vec![key(0)], 0_u32);
    let refused = loop {
        disk.append(key(0), appended.to_le_bytes().to_vec());
        appended += 1;
        let number = u64::from(appended);
        match disk.admit(key(number), vec![1; 100_000]).await {
            Ok(()) => admitted.push(key(number)),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, JournalError::Broken { .. }), "{refused}");
    assert!(matches!(told.take().as_slice(), [JournalEvent::Broken { .. }]));
    disk.append(key(0), appended.to_le_bytes().to_vec());
    appended += 1;
    // Room comes as streams are not needed any more.
    let freed = admitted.split_off(1 + admitted.len() / 4);
    freed.iter().for_each(|key| disk.forget(*key));
    std::fs::remove_file(small.join("ballast")).ok();
    let deadline = Instant::now() + Duration::from_secs(30);
    while disk.flush().await.is_err() {
        assert!(Instant::now() < deadline, "it did not mend: {:?}", disk.state());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(told.take().contains(&JournalEvent::Mended));
    close(disk).await;
    let kept = open(&dir).unwrap().kept;
    assert_eq!(
        kept.iter().map(|kept| kept.key).collect::<std::collections::BTreeSet<_>>(),
        admitted.into_iter().collect()
    );
    let stream = kept.iter().find(|kept| kept.key == key(0)).unwrap();
    let expected = (0..appended).map(|number| number.to_le_bytes().to_vec());
    assert!(stream.entries.iter().cloned().eq(expected), "{} entries of {appended}", stream.entries.len());
}

/// Run by the test below, in a process of its own.
#[tokio::test]
#[ignore = "is killed"]
async fn a_process_that_is_killed() {
    let Some(dir) = std::env::var_os("JOURNAL_TEST_FOLDER").map(PathBuf::from) else { return };
    let Opened { disk, kept, .. } = open(&dir).unwrap();
    let mut counts: Vec<u32> = vec![0; 1 + kept.len()];
    let life = kept.len() as u64;
    for kept in &kept {
        let number = u64::from_le_bytes(kept.key.0[..8].try_into().unwrap());
        counts[number as usize] = kept.entries.len() as u32;
    }
    disk.admit(key(life), life.to_le_bytes().to_vec()).await.unwrap();
    println!("\nadmitted {life}");
    for round in 0_u64.. {
        let number = round % (life + 1);
        let count = &mut counts[number as usize];
        disk.append(key(number), count.to_le_bytes().to_vec());
        *count += 1;
        if round % 5 == 0 {
            disk.append_written(key(number), count.to_le_bytes().to_vec()).await.unwrap();
            *count += 1;
            println!("written {number} {count}");
        }
    }
}

#[tokio::test]
async fn a_killed_process_loses_nothing_that_it_was_told_is_written() {
    let (_folder, dir) = folder();
    for life in 0..6_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--nocapture",
                "--exact",
                "journal::disk::tests::real::a_process_that_is_killed",
            ])
            .env("JOURNAL_TEST_FOLDER", &dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut told = BTreeMap::<u64, u32>::new();
        let mut seen = 0;
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["admitted", number] => assert_eq!(*number, life.to_string()),
                ["written", number, count] => {
                    _ = told.insert(number.parse().unwrap(), count.parse().unwrap())
                }
                _ => continue,
            }
            seen += 1;
            if seen == 3 + 40 * life {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= 3 + 40 * life, "life {life} ended after {seen} lines");
        // The system closes a killed process's files before it is reaped.
        let Opened { disk, kept, .. } = open(&dir).unwrap();
        close(disk).await;
        assert_eq!(kept.len() as u64, life + 1);
        for kept in kept {
            let number = u64::from_le_bytes(kept.key.0[..8].try_into().unwrap());
            assert_eq!(kept.admission, number.to_le_bytes());
            let expected = (0..kept.entries.len() as u32).map(|count| count.to_le_bytes().to_vec());
            assert!(kept.entries.iter().cloned().eq(expected));
            assert!(kept.entries.len() as u32 >= told.get(&number).copied().unwrap_or(0), "stream {number}");
        }
    }
}

/// What it costs, printed:
/// `cargo test --release -p unfazed-server --lib journal::disk -- --ignored --nocapture what_the_journal_costs`; in the
/// folder that `UNFAZED_TEST_JOURNAL` names, or a temporary one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn what_the_journal_costs() {
    let temporary = tempfile::tempdir().unwrap();
    let base = std::env::var_os("UNFAZED_TEST_JOURNAL").map_or(temporary.path().to_owned(), PathBuf::from);
    let disk = open(&base.join("measured")).unwrap().disk;
    let mut random = [0; 16];
    getrandom::fill(&mut random).unwrap();
    let run = u64::from_le_bytes(random[..8].try_into().unwrap()) >> 1;
    let name = |number: u64| key(run.wrapping_add(number));
    disk.admit(name(0), vec![1; 2000]).await.unwrap();
    let appends = 200_000_u32;
    let begun = Instant::now();
    for _ in 0..appends {
        disk.append(name(0), vec![2; 40]);
    }
    let append_ns = begun.elapsed().as_nanos() / u128::from(appends);
    disk.flush().await.unwrap();
    println!("append: {append_ns} ns; {appends} of 40 bytes on the disk after {:?}", begun.elapsed());
    let begun = Instant::now();
    for _ in 0..2000 {
        disk.append_written(name(0), vec![2; 40]).await.unwrap();
    }
    println!("append_written: {:?} each", begun.elapsed() / 2000);
    for side_by_side in [1_u64, 16, 128] {
        let (begun, rounds) = (Instant::now(), 2000 / side_by_side.max(8));
        let mut slowest = Duration::ZERO;
        for round in 0..rounds {
            let admissions = (0..side_by_side).map(|at| {
                let disk = disk.clone();
                let number = side_by_side * 1_000_000 + round * side_by_side + at;
                async move {
                    let begun = Instant::now();
                    disk.admit(name(number), vec![3; 2000]).await.unwrap();
                    begun.elapsed()
                }
            });
            slowest = futures::future::join_all(admissions).await.into_iter().max().unwrap().max(slowest);
        }
        let count = rounds * side_by_side;
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        println!("admit, {side_by_side} side by side: {rate:.0}/s, {slowest:?} at most");
    }
    let state = disk.state();
    close(disk).await;
    let begun = Instant::now();
    let opened = open(&base.join("measured")).unwrap();
    println!("opening {} bytes, {} streams: {:?}", state.bytes, opened.kept.len(), begun.elapsed());
    close(opened.disk).await;
}
