//! The expert store over simulated storage.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;
mod ring;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use common::layer_experts;
use common::simulated::{Asked, Does, Simulated};
use rustix::io::Errno;
use unfazed_kernels::panel::{PackedMatrix, unpack_row};
use unfazed_store::experts::{
    ExpertConfig, ExpertId, ExpertPin, ExpertSources, ExpertStore, Order, PolicyKind, Profile, ProfileKey,
    SlotMemory, Supply,
};
use unfazed_store::{Clock, StoreError, SystemClock};
use unfazed_wire::memory::{Access, ExpertSegment, Mapping, Segment};

/// Layer 0 has no experts, layers 1 and 2 have six each.
const LAYERS: u32 = 3;
const EXPERTS: u32 = 6;
const HIDDEN: usize = 32;
const WIDTH: usize = 16;
/// Bytes of a matrix, and of the three of an expert.
const MATRIX: usize = HIDDEN * WIDTH * 4;
const UNIT: usize = 3 * MATRIX;

/// Weight number `i` of the file is `i`.
fn content() -> Vec<u8> {
    let weights = (2 * EXPERTS as usize * UNIT / 4) as u32;
    (0..weights).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

/// Where part `part` (gate, up, down) of an expert is: stacks lie one behind the other, as in a file.
fn offset(layer: u32, part: usize, expert: u32) -> usize {
    ((layer as usize - 1) * 3 + part) * EXPERTS as usize * MATRIX + expert as usize * MATRIX
}

fn sources() -> ExpertSources {
    let layer =
        |layer| layer_experts(layer, EXPERTS, [HIDDEN, WIDTH], |part, expert| offset(layer, part, expert));
    ExpertSources::new(vec![None, Some(layer(1)), Some(layer(2))]).unwrap()
}

fn key() -> ProfileKey {
    let sources = sources();
    ProfileKey { units: sources.units(), experts: sources.fingerprint(), files: 1 }
}

fn sizes(slots: usize) -> ExpertSegment {
    ExpertSegment { slots, slot_bytes: sources().slot_bytes() }
}

fn config() -> ExpertConfig {
    ExpertConfig { policy: PolicyKind::S3Fifo, threads: 2, ring: 2, files: 1, profile: None }
}

fn store(storage: &Simulated, slots: usize) -> ExpertStore {
    let memory = SlotMemory::private(sizes(slots)).unwrap();
    ExpertStore::new(sources(), Arc::new(storage.reader()), memory, config()).unwrap()
}

fn quick() -> Simulated {
    Simulated::new(content(), |_| Does::Reads)
}

/// Every weight is the file's.
fn check_matrices(id: ExpertId, matrices: [PackedMatrix<'_>; 3]) {
    for (part, matrix) in matrices.iter().enumerate() {
        let (rows, columns) = if part == 2 { (HIDDEN, WIDTH) } else { (WIDTH, HIDDEN) };
        let first = offset(id.layer, part, id.expert) / 4;
        let mut row = vec![0.0; columns];
        for r in 0..rows {
            unpack_row(matrix, r, &mut row);
            assert!(
                row.iter().zip(first + r * columns..).all(|(weight, i)| *weight == i as f32),
                "{id}, part {part}, row {r}"
            );
        }
    }
}

fn check(pin: &ExpertPin) {
    check_matrices(pin.id(), [pin.gate(), pin.up(), pin.down()]);
}

/// The next expert of a supply.
fn take(supply: &mut Supply) -> Result<ExpertPin, StoreError> {
    supply.next(1).pop().unwrap().expert
}

fn ask(store: &ExpertStore, layer: u32, experts: &[u32]) -> Supply {
    store.supply(layer, experts, Order::AsTheyCome).unwrap()
}

/// Uses experts of a layer as a step does. Returns how many were there at once.
fn use_experts(store: &ExpertStore, layer: u32, experts: &[u32]) -> Result<usize, StoreError> {
    let mut supply = store.supply(layer, experts, Order::AsTheyCome)?;
    let hits = supply.here();
    while supply.left() > 0 {
        for supplied in supply.next(usize::MAX) {
            check(&supplied.expert?);
        }
    }
    Ok(hits)
}

/// Reads of units so far.
fn units_read(storage: &Simulated) -> usize {
    assert_eq!(storage.attempts().len() % 3, 0, "a unit is read whole");
    storage.attempts().len() / 3
}

#[test]
fn an_expert_is_read_once_and_its_three_parts_are_used_from_its_slot() {
    let storage = quick();
    let store = store(&storage, 8);
    assert_eq!(use_experts(&store, 1, &[0, 3, 5]).unwrap(), 0);
    assert_eq!(use_experts(&store, 1, &[5, 0, 3]).unwrap(), 3);
    assert_eq!(use_experts(&store, 2, &[5]).unwrap(), 0);
    assert_eq!(units_read(&storage), 4);
    let counts = store.counts();
    assert_eq!((counts.uses, counts.hits, counts.filled), (7, 3, 4));
}

#[test]
fn experts_that_do_not_exist_and_slots_that_do_not_fit_are_refused() {
    let storage = quick();
    let experts = store(&storage, 2);
    for (layer, expert) in [(0, 0), (3, 0), (1, 6)] {
        let error = experts.supply(layer, &[expert], Order::AsTheyCome).err().unwrap().to_string();
        assert!(error.contains(&format!("expert {expert} of layer {layer}")), "{error}");
    }
    let too_small = ExpertSegment { slots: 2, slot_bytes: 4096 };
    for sizes in [sizes(0), too_small] {
        let memory = SlotMemory::private(sizes).unwrap();
        let refused = ExpertStore::new(sources(), Arc::new(storage.reader()), memory, config());
        assert!(matches!(refused, Err(StoreError::Experts { .. })));
    }
    assert!(ExpertSources::new(vec![None]).is_err());
}

#[test]
fn fewer_slots_than_a_step_needs_are_enough() {
    for policy in PolicyKind::ALL {
        let storage = quick();
        let memory = SlotMemory::private(sizes(2)).unwrap();
        let config = ExpertConfig { policy, ..config() };
        let store = ExpertStore::new(sources(), Arc::new(storage.reader()), memory, config).unwrap();
        for round in 0..20 {
            use_experts(&store, 1 + round % 2, &[0, 1, 2, 3, 4, 5]).unwrap();
        }
    }
}

#[test]
fn a_pinned_expert_stays_while_others_come_and_go() {
    let storage = quick();
    let store = store(&storage, 3);
    let pin = take(&mut ask(&store, 1, &[2])).unwrap();
    for expert in [0, 1, 3, 4, 5, 0, 1, 3, 4, 5] {
        use_experts(&store, 2, &[expert]).unwrap();
    }
    check(&pin);
    assert!(store.holds(pin.id()));
    let generation = pin.generation();
    drop(pin);
    for expert in 0..6 {
        use_experts(&store, 2, &[expert]).unwrap();
    }
    assert!(!store.holds(ExpertId { layer: 1, expert: 2 }));
    assert!(take(&mut ask(&store, 1, &[2])).unwrap().generation() > generation);
}

/// A storage whose reads wait until they are let go.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn pass(&self) {
        let mut open = self.0.lock().unwrap();
        while !*open {
            open = self.1.wait(open).unwrap();
        }
    }

    fn set(&self, open: bool) {
        *self.0.lock().unwrap() = open;
        self.1.notify_all();
    }
}

fn gated() -> (Simulated, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let inside = Arc::clone(&gate);
    let storage = Simulated::new(content(), move |_| {
        inside.pass();
        Does::Reads
    });
    (storage, gate)
}

#[test]
fn a_miss_holds_up_nobody_whose_experts_are_there() {
    let (storage, gate) = gated();
    let store = store(&storage, 6);
    gate.set(true);
    use_experts(&store, 1, &[0, 1]).unwrap();
    gate.set(false);
    let mut slow = ask(&store, 1, &[0, 4]);
    assert_eq!((slow.here(), slow.left()), (1, 2));
    assert_eq!(
        take(&mut slow).unwrap().id(),
        ExpertId { layer: 1, expert: 0 },
        "it does not wait for the other"
    );
    // Another sequence goes on, though the disk gives nothing.
    for _ in 0..100 {
        assert_eq!(use_experts(&store, 1, &[0, 1]).unwrap(), 2);
    }
    gate.set(true);
    assert_eq!(take(&mut slow).unwrap().id(), ExpertId { layer: 1, expert: 4 });
}

#[test]
fn a_miss_waits_for_a_slot_while_all_are_pinned() {
    let storage = quick();
    let store = Arc::new(store(&storage, 2));
    let mut first = ask(&store, 1, &[0, 1]);
    let pins = [take(&mut first).unwrap(), take(&mut first).unwrap()];
    let mut third = ask(&store, 1, &[2]);
    let waiting = thread::spawn(move || take(&mut third).map(|pin| check(&pin)));
    assert_eq!(use_experts(&store, 1, &[0]).unwrap(), 1, "those that are pinned can be used");
    assert!(!waiting.is_finished());
    pins.iter().for_each(check);
    drop(pins);
    waiting.join().unwrap().unwrap();
}

#[test]
fn many_threads_over_few_slots_all_get_the_right_weights() {
    let storage = quick();
    let store = Arc::new(store(&storage, 4));
    thread::scope(|scope| {
        for t in 0..6u32 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..150u32 {
                    let mix = (t * 7 + i).wrapping_mul(2_654_435_761) >> 16;
                    use_experts(store, 1 + mix % 2, &[mix % 6, (mix + 1 + (mix / 6) % 5) % 6]).unwrap();
                }
            });
        }
    });
    assert_eq!(store.counts().uses, 6 * 150 * 2);
}

#[test]
fn an_error_reaches_those_who_wait_and_the_next_attempt_may_succeed() {
    let broken = Arc::new(AtomicBool::new(true));
    let inside = Arc::clone(&broken);
    let bad = offset(1, 1, 3) as u64;
    let storage = Simulated::new(content(), move |asked: Asked| {
        let fails = asked.offset == bad && inside.load(Ordering::SeqCst);
        if fails { Does::Fails(Errno::IO) } else { Does::Reads }
    });
    let store = store(&storage, 4);
    let error = use_experts(&store, 1, &[3]).unwrap_err().to_string();
    assert!(error.contains("model.gguf") && error.contains(&format!("at {bad} ")), "{error}");
    assert!(error.contains("blk.1.ffn_up_exps.weight, expert 3"), "{error}");
    assert_eq!(use_experts(&store, 1, &[2]).unwrap(), 0, "others are not affected");
    broken.store(false, Ordering::SeqCst);
    assert_eq!(use_experts(&store, 1, &[3, 2]).unwrap(), 1);
}

#[test]
fn an_error_that_passes_is_not_seen() {
    let storage = Simulated::new(content(), |asked| match asked.number % 4 {
        0 => Does::Fails(Errno::IO),
        _ => Does::Reads,
    });
    let store = store(&storage, 4);
    for round in 0..12 {
        use_experts(&store, 1 + round % 2, &[round % 6, (round + 3) % 6]).unwrap();
    }
}

#[test]
fn a_flipped_byte_is_found_by_the_hash_of_the_first_fill_and_told_with_its_place() {
    let flips = Arc::new(AtomicBool::new(false));
    let inside = Arc::clone(&flips);
    let at = offset(1, 2, 0) as u64;
    let storage = Simulated::new(content(), move |_| match inside.load(Ordering::SeqCst) {
        true => Does::Flips(at + 100),
        false => Does::Reads,
    });
    let store = store(&storage, 1);
    use_experts(&store, 1, &[0]).unwrap();
    use_experts(&store, 1, &[1]).unwrap();
    flips.store(true, Ordering::SeqCst);
    let error = use_experts(&store, 1, &[0]).unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { offset, .. } if *offset == at), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("model.gguf") && error.contains("blk.1.ffn_down_exps.weight, expert 0"),
        "{error}"
    );
    flips.store(false, Ordering::SeqCst);
    use_experts(&store, 1, &[0]).unwrap();
}

#[test]
fn a_byte_that_was_flipped_on_its_way_once_is_read_again() {
    let flips = Arc::new(AtomicBool::new(false));
    let inside = Arc::clone(&flips);
    let at = offset(1, 0, 0) as u64;
    let storage = Simulated::new(content(), move |asked: Asked| {
        let flip = asked.offset == at && inside.swap(false, Ordering::SeqCst);
        if flip { Does::Flips(at) } else { Does::Reads }
    });
    let store = store(&storage, 1);
    use_experts(&store, 1, &[0]).unwrap();
    use_experts(&store, 1, &[1]).unwrap();
    flips.store(true, Ordering::SeqCst);
    use_experts(&store, 1, &[0]).unwrap();
    assert_eq!(storage.attempts().len(), 10, "one part once more");
}

#[test]
fn a_flipped_byte_is_found_by_the_hash_in_the_profile_of_an_earlier_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.usage");
    let first = store(&quick(), 4);
    use_experts(&first, 2, &[1]).unwrap();
    first.profile().save(&path).unwrap();
    drop(first);
    let at = offset(2, 1, 1) as u64;
    let damaged = Simulated::new(content(), move |_| Does::Flips(at + 7));
    let profile = Profile::load(&path, key()).unwrap();
    let memory = SlotMemory::private(sizes(4)).unwrap();
    let config = ExpertConfig { profile, ..config() };
    let store = ExpertStore::new(sources(), Arc::new(damaged.reader()), memory, config).unwrap();
    let error = use_experts(&store, 2, &[1]).unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { offset, .. } if *offset == at), "{error}");
}

#[test]
fn the_profile_fills_the_slots_at_the_next_start_with_what_was_used_most() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.usage");
    let first = store(&quick(), 4);
    for expert in [0, 1, 2, 3, 2, 3, 3, 2, 5] {
        use_experts(&first, 1, &[expert]).unwrap();
    }
    first.profile().save(&path).unwrap();
    let storage = quick();
    let profile = Profile::load(&path, key()).unwrap();
    let memory = SlotMemory::private(sizes(3)).unwrap();
    let config = ExpertConfig { profile, ..config() };
    let store = ExpertStore::new(sources(), Arc::new(storage.reader()), memory, config).unwrap();
    let filled = store.pre_fill(&SystemClock::new());
    assert_eq!((filled.filled, filled.slots, filled.first_verified), (3, 3, Some(true)));
    assert_eq!(units_read(&storage), 3);
    assert_eq!(use_experts(&store, 1, &[2, 3, 0]).unwrap(), 3);
    assert_eq!(store.pre_fill(&SystemClock::new()).filled, 0, "they are there");
}

fn again(segment: &Segment) -> Segment {
    Segment::received("slots", segment.as_fd().try_clone_to_owned().unwrap(), segment.len()).unwrap()
}

fn open(segment: &Segment, storage: &Simulated, slots: usize, files: u64) -> ExpertStore {
    let memory = SlotMemory::open(&again(segment), sizes(slots)).unwrap();
    let config = ExpertConfig { files, ..config() };
    ExpertStore::new(sources(), Arc::new(storage.reader()), memory, config).unwrap()
}

#[test]
fn slots_outlive_the_engine_that_filled_them() {
    let segment = Segment::create("slots", sizes(5).bytes().unwrap() as u64).unwrap();
    let first = open(&segment, &quick(), 5, 1);
    use_experts(&first, 1, &[0, 1, 2]).unwrap();
    let generation = take(&mut ask(&first, 1, &[0])).unwrap().generation();
    // Nothing is said at the end: an engine that is killed says nothing either.
    std::mem::forget(first);
    let storage = quick();
    let second = open(&segment, &storage, 5, 1);
    assert_eq!(use_experts(&second, 1, &[0, 1, 2]).unwrap(), 3);
    assert_eq!(storage.attempts().len(), 0);
    use_experts(&second, 2, &[0]).unwrap();
    let pin = take(&mut ask(&second, 2, &[0])).unwrap();
    assert!(pin.generation() > generation, "generations go on");
    drop(pin);
    drop(second);
    // The files were written since: what was kept of them is no use.
    let storage = quick();
    assert_eq!(use_experts(&open(&segment, &storage, 5, 2), 1, &[0, 1, 2]).unwrap(), 0);
    assert_eq!(units_read(&storage), 3);
}

#[test]
fn a_slot_whose_bytes_changed_under_its_record_is_read_again() {
    let segment = Segment::create("slots", sizes(2).bytes().unwrap() as u64).unwrap();
    let first = open(&segment, &quick(), 2, 1);
    use_experts(&first, 1, &[0]).unwrap();
    use_experts(&first, 1, &[1]).unwrap();
    std::mem::forget(first);
    let mapping = Mapping::new(&segment, Access::Write).unwrap();
    let inside = sizes(2).slot_offset(0).unwrap() + 512;
    mapping.atomics_to_write(inside, 1).unwrap()[0].fetch_xor(1 << 20, Ordering::Relaxed);
    drop(mapping);
    let storage = quick();
    let second = open(&segment, &storage, 2, 1);
    assert_eq!(use_experts(&second, 1, &[0, 1]).unwrap(), 1);
    assert_eq!((units_read(&storage), second.counts().distrusted), (1, 1));
}

#[test]
fn a_slot_that_an_engine_was_filling_when_it_died_is_empty() {
    let segment = Segment::create("slots", sizes(1).bytes().unwrap() as u64).unwrap();
    let (storage, gate) = gated();
    gate.set(true);
    let first = open(&segment, &storage, 1, 1);
    use_experts(&first, 1, &[0]).unwrap();
    gate.set(false);
    let pending = ask(&first, 1, &[1]);
    // Its thread has begun when the read has.
    while storage.attempts().len() < 4 {
        thread::yield_now();
    }
    std::mem::forget((first, pending));
    let storage = quick();
    let second = open(&segment, &storage, 1, 1);
    assert_eq!(use_experts(&second, 1, &[0]).unwrap(), 0);
}

#[test]
fn look_ahead_uses_an_idle_disk_alone() {
    let (storage, gate) = gated();
    let store = store(&storage, 8);
    // One thread of two waits for the disk; the other one must not begin what was only predicted.
    let mut missed = ask(&store, 1, &[0]);
    while storage.attempts().is_empty() {
        thread::yield_now();
    }
    store.look_ahead(2, &[3]).unwrap();
    gate.set(true);
    drop(take(&mut missed).unwrap());
    let predicted = ExpertId { layer: 2, expert: 3 };
    while !store.holds(predicted) {
        thread::yield_now();
    }
    let mut first: Vec<u64> = storage.attempts().iter().take(3).map(|asked| asked.offset).collect();
    // Several threads read the parts of an expert.
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2].map(|part| offset(1, part, 0) as u64), "the miss was read first, and whole");
    assert_eq!(use_experts(&store, 2, &[3]).unwrap(), 1);
    assert_eq!(store.counts().looked_ahead, 1);
}

#[test]
fn look_ahead_that_is_mostly_wrong_reads_nothing_more() {
    let storage = quick();
    let store = store(&storage, 3);
    for _ in 0..300 {
        store.look_ahead(1, &[0, 1, 2]).unwrap();
        use_experts(&store, 1, &[5]).unwrap();
        // Predictions of others' experts push these out again.
        use_experts(&store, 2, &[0, 1, 2]).unwrap();
    }
    assert!(store.look_ahead_accuracy() < 0.5);
    let before = store.counts().looked_ahead;
    store.look_ahead(1, &[0, 1, 2]).unwrap();
    use_experts(&store, 1, &[5]).unwrap();
    assert_eq!(store.counts().looked_ahead, before);
}

#[test]
fn the_profile_is_saved_every_few_minutes_and_at_the_end() {
    use std::time::Duration;
    use unfazed_store::experts::ProfileKeeper;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.usage");
    let storage = quick();
    let store = store(&storage, 2);
    let clock = storage.clock();
    let mut keeper = ProfileKeeper::new(path.clone(), clock.now());
    use_experts(&store, 1, &[1]).unwrap();
    assert!(!keeper.tick(&store, clock.now()).unwrap() && !path.exists());
    clock.sleep(Duration::from_secs(200));
    assert!(keeper.tick(&store, clock.now()).unwrap());
    assert!(!keeper.tick(&store, clock.now()).unwrap());
    use_experts(&store, 1, &[1]).unwrap();
    keeper.save(&store).unwrap();
    let unit = sources().unit(ExpertId { layer: 1, expert: 1 }).unwrap();
    assert_eq!(Profile::load(&path, key()).unwrap().unwrap().uses(unit), 1.0, "two uses, halved");
    assert_eq!(LAYERS, sources().units().layers);
}
