//! How much is kept and for how long, and what happens while nothing can be written.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Whether the disk has these bytes anywhere.
fn is_on_disk(world: &World, bytes: &[u8]) -> bool {
    let holds = |segment| {
        let contents = world.folder().read(segment, u64::MAX).unwrap();
        contents.bytes.windows(bytes.len()).any(|window| window == bytes)
    };
    world.segments().into_iter().any(holds)
}

fn opened(limits: Limits) -> (World, Process) {
    let world = World::new(1);
    let (process, _, _) = Process::open(&world, limits, start()).unwrap();
    (world, process)
}

#[test]
fn a_stream_that_is_too_old_is_dropped_when_the_journal_is_opened_and_leaves_the_disk() {
    let (world, mut process) = opened(small());
    process.admit(0, b"old prompt").unwrap();
    process.later(HOUR / 2);
    process.admit(1, b"new prompt").unwrap();
    process.later(HOUR / 2 + Duration::from_secs(1));
    let (mut process, kept, told) = Process::open(&world, small(), process.now).unwrap();
    assert_eq!((kept.len(), kept[0].key, told.expired), (1, key(1), 1));
    assert!(is_on_disk(&world, b"old prompt"));
    process.flush().unwrap();
    assert!(!is_on_disk(&world, b"old prompt"));
    assert!(is_on_disk(&world, b"new prompt"));
}

#[test]
fn a_stream_that_gets_too_old_is_dropped_and_leaves_the_disk() {
    let (world, mut process) = opened(small());
    process.admit(0, b"old prompt").unwrap();
    process.admit(1, b"new prompt").unwrap();
    process.later(HOUR / 2);
    process.append(1, b"token");
    process.later(HOUR / 2 + Duration::from_secs(1));
    process.step(Vec::new());
    assert_eq!(process.told.take(), [JournalEvent::Dropped { keys: vec![key(0)], why: Dropped::Age }]);
    process.later(Duration::from_secs(60));
    process.step(Vec::new());
    assert!(!is_on_disk(&world, b"old prompt"));
    let (kept, _) = found(&world, small(), process.now);
    assert_eq!((kept.len(), entries(&kept, 1)), (1, vec![&b"token"[..]]));
}

#[test]
fn what_is_forgotten_leaves_the_disk() {
    let (world, mut process) = opened(small());
    process.admit(0, b"a prompt").unwrap();
    process.forget(0);
    process.later(Duration::from_secs(60));
    process.step(Vec::new());
    assert!(world.segments().is_empty());
    process.admit(1, b"another").unwrap();
    assert_eq!(found(&world, small(), process.now).0.len(), 1);
}

#[test]
fn when_too_much_is_needed_the_least_recently_written_go_and_the_newest_stays() {
    let (world, mut process) = opened(small());
    for number in 0..40 {
        process.later(Duration::from_secs(1));
        process.admit(number, &[number as u8; 2000]).unwrap();
        process.append(0, b"goes on");
    }
    process.flush().unwrap();
    let dropped: Vec<StreamKey> = process
        .told
        .take()
        .into_iter()
        .flat_map(|event| match event {
            JournalEvent::Dropped { keys, why: Dropped::Size } => keys,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(dropped.len() >= 25, "{dropped:?}");
    assert_eq!(dropped, (1..=dropped.len() as u64).map(key).collect::<Vec<_>>());
    assert!(world.bytes() <= small().total_bytes, "{} bytes", world.bytes());
    let (kept, _) = found(&world, small(), process.now);
    assert_eq!(kept.len(), 40 - dropped.len());
    assert_eq!(kept[&0].entries.len(), 40);
    assert!(kept.contains_key(&39));
}

#[test]
fn a_stream_larger_than_all_that_may_be_kept_is_kept_while_it_is_the_newest() {
    let (world, mut process) = opened(small());
    process.admit(0, &[1; 100_000]).unwrap();
    process.append(0, b"token");
    process.flush().unwrap();
    assert_eq!(entries(&found(&world, small(), process.now).0, 0), [b"token"]);
    process.later(Duration::from_secs(60));
    process.admit(1, b"next").unwrap();
    process.later(Duration::from_secs(60));
    process.flush().unwrap();
    assert_eq!(found(&world, small(), process.now).0.into_keys().collect::<Vec<_>>(), [1]);
    assert!(world.bytes() < 4096, "{} bytes", world.bytes());
}

#[test]
fn limits_that_were_lowered_drop_the_least_recently_written_when_the_journal_is_opened() {
    let large = Limits { total_bytes: 1 << 20, ..small() };
    let (world, mut process) = opened(large);
    for number in 0..100 {
        process.later(Duration::from_secs(1));
        process.admit(number, &[number as u8; 2000]).unwrap();
    }
    let (mut process, kept, told) = Process::open(&world, small(), process.now).unwrap();
    assert!(kept.len() < 17 && kept.last().unwrap().key == key(99), "{}", kept.len());
    assert_eq!(told.over_size as usize, 100 - kept.len());
    process.flush().unwrap();
    assert!(world.bytes() <= small().total_bytes, "{} bytes", world.bytes());
    assert!(found(&world, small(), process.now).0.len() <= kept.len());
}

#[test]
fn a_segment_that_rotted_while_streams_need_it_stays_and_is_told() {
    let (world, mut process) = opened(small());
    process.admit(0, &[1; 1000]).unwrap();
    process.admit(1, &[2; 1000]).unwrap();
    process.admit(2, &[3; 2500]).unwrap();
    world.damage(1, |bytes| bytes[1500] ^= 1);
    process.forget(0);
    for _ in 0..3 {
        process.later(HOUR / 2);
        process.append(1, b"still there");
        process.append(2, b"still there");
    }
    process.later(Duration::from_secs(60));
    process.step(Vec::new());
    let told = process.told.take();
    assert!(
        matches!(told.as_slice(), [JournalEvent::Damaged { segment, .. }] if segment.contains("0000000001")),
        "{told:?}"
    );
    assert!(world.segments().contains(&1));
    process.forget(1);
    process.later(Duration::from_secs(60));
    process.step(Vec::new());
    assert!(!world.segments().contains(&1));
}

#[test]
fn while_nothing_can_be_written_admissions_fail_and_entries_wait_and_the_owner_hears_once() {
    let (world, mut process) = opened(small());
    process.admit(0, b"before").unwrap();
    process.append(0, b"one");
    world.fail_in(0, u64::MAX);
    let broken = process.admit(1, b"prompt").unwrap_err();
    assert!(matches!(&broken, JournalError::Broken { reason } if reason.contains("/simulated")), "{broken}");
    process.append(0, b"two");
    assert_eq!(process.admit(2, b"prompt"), Err(broken.clone()));
    assert_eq!(process.flush(), Err(broken));
    for _ in 0..4 {
        process.later(Duration::from_secs(5));
        process.append(0, b"more");
    }
    assert!(process.writer.broken().is_some());
    assert!(matches!(process.told.take().as_slice(), [JournalEvent::Broken { .. }]));
    world.fail_in(0, 0);
    process.later(Duration::from_secs(4));
    process.append(0, b"last");
    assert!(process.writer.broken().is_some(), "it tries every five seconds");
    process.later(Duration::from_secs(1));
    process.step(Vec::new());
    assert_eq!((process.writer.broken(), process.told.take()), (None, vec![JournalEvent::Mended]));
    assert_eq!(process.writer.held_bytes(), 0);
    world.power_cycle();
    let (kept, _) = found(&world, small(), process.now);
    assert_eq!(kept.keys().collect::<Vec<_>>(), [&0]);
    assert_eq!(entries(&kept, 0), [&b"one"[..], b"two", b"more", b"more", b"more", b"more", b"last"]);
}

#[test]
fn a_stream_whose_records_were_deleted_has_a_gap() {
    let (world, mut process) = opened(small());
    process.admit(0, b"prompt").unwrap();
    world.fail_in(0, 1);
    process.append(0, b"one");
    world.lose(1);
    process.later(Duration::from_secs(5));
    process.step(Vec::new());
    let told = process.told.take();
    assert!(
        matches!(
            told.as_slice(),
            [JournalEvent::Broken { .. }, JournalEvent::Gap { .. }, JournalEvent::Mended]
        ),
        "{told:?}"
    );
    assert_eq!(process.writer.gaps(), 1);
    process.admit(1, b"goes on").unwrap();
    assert_eq!(found(&world, small(), process.now).0.into_keys().collect::<Vec<_>>(), [1]);
}

#[test]
fn admissions_that_wait_together_share_a_sync() {
    let (world, mut process) = opened(Limits::default());
    process.admit(0, b"first").unwrap();
    let before = world.operations();
    let (items, answers): (Vec<_>, Vec<_>) = (1..50).map(|number| admission(number, b"prompt")).unzip();
    process.step(items);
    answers.into_iter().for_each(|answer| said(answer).unwrap());
    assert_eq!(world.operations() - before, 2, "a write and a sync");
}

#[test]
fn an_admission_costs_one_sync_and_entries_are_synced_once_a_second() {
    let (world, mut process) = opened(Limits::default());
    process.admit(0, b"first").unwrap();
    let before = world.operations();
    process.admit(1, b"second").unwrap();
    assert_eq!(world.operations() - before, 2, "a write and a sync");
    process.append(1, b"token");
    process.later(Duration::from_millis(900));
    process.append(1, b"token");
    assert_eq!(world.operations() - before, 4, "two writes more");
    assert_eq!(process.writer.due(), Some(Duration::from_secs(1)));
    process.later(Duration::from_millis(100));
    process.step(Vec::new());
    assert_eq!((world.operations() - before, process.writer.held_bytes()), (5, 0));
}

#[test]
fn a_stream_is_admitted_once_and_has_no_entries_before() {
    let (world, mut process) = opened(small());
    let (written, answer) = oneshot::channel();
    process.step(vec![Item::Append { key: key(0), bytes: Vec::new(), written: Some(written) }]);
    assert_eq!(said(answer), Err(JournalError::NotKept(key(0))));
    process.admit(0, b"prompt").unwrap();
    assert_eq!(process.admit(0, b"prompt"), Err(JournalError::Known(key(0))));
    process.forget(0);
    assert_eq!(process.admit(0, b"prompt"), Err(JournalError::Known(key(0))));
    assert!(found(&world, small(), process.now).0.is_empty());
}
