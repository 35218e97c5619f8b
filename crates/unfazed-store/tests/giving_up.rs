//! Giving slots up when memory runs out: memory goes, answers stay.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::layer_experts;
use common::simulated::{Does, Simulated};
use proptest::prelude::*;
use unfazed_kernels::panel::unpack_row;
use unfazed_store::SystemClock;
use unfazed_store::experts::{
    ExpertConfig, ExpertId, ExpertPin, ExpertSources, ExpertStore, GivenUp, Order, PolicyKind, SlotMemory,
};
use unfazed_wire::memory::{Access, ExpertSegment, Mapping, Segment};

/// Two layers of eight experts.
const LAYERS: u32 = 2;
const EXPERTS: u32 = 8;
const HIDDEN: usize = 32;
const WIDTH: usize = 16;
const MATRIX: usize = HIDDEN * WIDTH * 4;
/// Bytes of a slot: three matrices and a record, in whole pages.
const SLOT: u64 = 8192;

/// Weight number `i` of the file is `i`.
fn content() -> Vec<u8> {
    let weights = (LAYERS * EXPERTS * 3) * (MATRIX / 4) as u32;
    (0..weights).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

fn offset(layer: u32, part: u32, expert: u32) -> usize {
    ((layer * 3 + part) * EXPERTS + expert) as usize * MATRIX
}

fn sources() -> ExpertSources {
    let layer = |layer| {
        layer_experts(layer, EXPERTS, [HIDDEN, WIDTH], |part, expert| offset(layer, part as u32, expert))
    };
    ExpertSources::new((0..LAYERS).map(|number| Some(layer(number))).collect()).unwrap()
}

/// A store whose memory somebody else holds as well.
struct Held {
    segment: Segment,
    store: ExpertStore,
}

/// Slots that outlive a store.
fn segment(slots: usize) -> Segment {
    Segment::create("slots", slots as u64 * SLOT).unwrap()
}

fn open(segment: Segment, policy: PolicyKind, open: usize, least: usize) -> Held {
    let again = segment.as_fd().try_clone_to_owned().unwrap();
    let again = Segment::received("slots", again, segment.len()).unwrap();
    let sizes = ExpertSegment { slots: (segment.len() / SLOT) as usize, slot_bytes: SLOT as usize };
    let memory = SlotMemory::open(&again, sizes).unwrap().limited(open, least);
    let storage = Simulated::new(content(), |_| Does::Reads);
    let config = ExpertConfig { policy, threads: 2, ring: 4, files: 1, profile: None };
    let store = ExpertStore::new(sources(), Arc::new(storage.reader()), memory, config).unwrap();
    Held { segment, store }
}

fn new(slots: usize, least: usize) -> Held {
    open(segment(slots), PolicyKind::S3Fifo, slots, least)
}

impl Held {
    /// Bytes of the slots that are in memory, whoever maps them.
    fn resident(&self) -> u64 {
        rustix::fs::fstat(&self.segment).unwrap().st_blocks as u64 * 512
    }

    /// How many of these experts are in slots.
    fn held(&self, layer: u32) -> usize {
        (0..EXPERTS).filter(|expert| self.store.holds(ExpertId { layer, expert: *expert })).count()
    }
}

/// Every weight is the file's.
fn check(pin: &ExpertPin) {
    let id = pin.id();
    for (part, matrix) in (0..).zip([pin.gate(), pin.up(), pin.down()]) {
        let (rows, columns) = if part == 2 { (HIDDEN, WIDTH) } else { (WIDTH, HIDDEN) };
        let first = offset(id.layer, part, id.expert) / 4;
        let mut row = vec![0.0; columns];
        for r in 0..rows {
            unpack_row(&matrix, r, &mut row);
            let right = row.iter().zip(first + r * columns..).all(|(weight, i)| *weight == i as f32);
            assert!(right, "{id}, part {part}, row {r}");
        }
    }
}

/// Uses experts of a layer one by one.
fn fill(store: &ExpertStore, layer: u32, experts: std::ops::Range<u32>) {
    experts.for_each(|expert| check(&pin(store, layer, expert)));
}

/// Uses experts as a step does. Returns how many were there at once.
fn use_experts(store: &ExpertStore, layer: u32, experts: &[u32], order: Order) -> usize {
    let mut supply = store.supply(layer, experts, order).unwrap();
    let hits = supply.here();
    while supply.left() > 0 {
        supply.next(usize::MAX).into_iter().for_each(|supplied| check(&supplied.expert.unwrap()));
    }
    hits
}

fn pin(store: &ExpertStore, layer: u32, expert: u32) -> ExpertPin {
    let mut supply = store.supply(layer, &[expert], Order::AsTheyCome).unwrap();
    supply.next(1).pop().unwrap().expert.unwrap()
}

#[test]
fn memory_of_slots_that_are_given_up_goes_and_they_stay_empty_until_they_are_opened_up() {
    let held = new(6, 1);
    let store = &held.store;
    fill(store, 0, 0..6);
    assert_eq!(held.resident(), 6 * SLOT);
    assert_eq!(store.give_up(SLOT + 1), GivenUp { slots: 2, bytes: 2 * SLOT });
    assert_eq!((held.resident(), held.held(0), store.open_slots()), (4 * SLOT, 4, 4));
    for layer in [0, 1, 0] {
        fill(store, layer, 0..EXPERTS);
    }
    assert_eq!((held.resident(), held.held(0)), (4 * SLOT, 4), "others took the place of others");
    let counts = store.counts();
    assert_eq!((counts.closed, counts.given_up, counts.given_up_bytes), (2, 2, 2 * SLOT));
    assert_eq!((store.open_up(1), store.open_up(9), store.open_up(1)), (1, 1, 0));
    fill(store, 0, 0..6);
    assert_eq!((held.resident(), held.held(0), store.counts().closed), (6 * SLOT, 6, 0));
    assert_eq!(use_experts(store, 0, &[0, 5], Order::AsTheyCome), 2);
}

#[test]
fn the_experts_that_were_used_least_go_first_whatever_the_policy() {
    for policy in PolicyKind::ALL {
        let held = open(segment(6), policy, 6, 1);
        fill(&held.store, 0, 0..6);
        for _ in 0..3 {
            fill(&held.store, 0, 2..5);
        }
        assert_eq!(held.store.give_up(3 * SLOT).slots, 3);
        assert!((2..5).all(|expert| held.store.holds(ExpertId { layer: 0, expert })), "{policy}");
    }
}

#[test]
fn what_is_pinned_stays_bit_for_bit_and_what_a_step_needs_stays_open() {
    let held = new(6, 3);
    let store = &held.store;
    fill(store, 0, 0..6);
    let pins: Vec<ExpertPin> = [0, 2, 4, 5].into_iter().map(|expert| pin(store, 0, expert)).collect();
    assert_eq!(store.give_up(u64::MAX).slots, 2, "four are pinned");
    assert_eq!(store.give_up(u64::MAX), GivenUp::default());
    pins.iter().for_each(check);
    assert_eq!(held.resident(), 4 * SLOT);
    drop(pins);
    assert_eq!(store.give_up(u64::MAX).slots, 1, "three stay open");
    assert_eq!((held.resident(), store.open_slots()), (3 * SLOT, 3));
    assert_eq!(store.give_up(u64::MAX), GivenUp::default());
}

#[test]
fn empty_slots_are_closed_first_and_only_memory_that_there_was_counts() {
    // Reading whether a slot holds something puts a page there.
    const RECORDS: u64 = 4 * 4096;
    let held = new(6, 1);
    fill(&held.store, 0, 0..2);
    assert_eq!(held.resident(), 2 * SLOT + RECORDS);
    assert_eq!(held.store.give_up(RECORDS + 1), GivenUp { slots: 5, bytes: RECORDS + SLOT });
    assert_eq!((held.resident(), held.held(0)), (SLOT, 1));
}

#[test]
fn who_waits_for_an_expert_gets_a_slot_for_it() {
    let held = new(4, 1);
    let store = &held.store;
    let first = pin(store, 0, 0);
    let mut waits = store.supply(0, &[1], Order::Ascending).unwrap();
    let mut others = store.supply(1, &[1], Order::Ascending).unwrap();
    store.give_up(u64::MAX);
    for supply in [&mut waits, &mut others] {
        check(supply.next(1)[0].expert.as_ref().unwrap());
    }
    check(&first);
}

#[test]
fn the_next_engine_finds_what_was_not_given_up_and_nothing_else() {
    let held = new(6, 1);
    fill(&held.store, 0, 0..6);
    assert_eq!(held.store.give_up(2 * SLOT).slots, 2);
    let left: Vec<u32> =
        (0..EXPERTS).filter(|expert| held.store.holds(ExpertId { layer: 0, expert: *expert })).collect();
    let Held { segment, store } = held;
    // Nothing is said at the end: an engine that is killed says nothing either.
    std::mem::forget(store);
    let next = open(segment, PolicyKind::S3Fifo, 6, 1);
    assert_eq!((left.len(), next.held(0), next.store.open_slots()), (4, 4, 6));
    assert_eq!(use_experts(&next.store, 0, &left[..3], Order::AsTheyCome), 3);
    assert_eq!(next.store.counts().distrusted, 0);
}

#[test]
fn an_engine_that_may_use_few_slots_returns_the_others_and_keeps_what_was_used_most() {
    let held = new(6, 1);
    fill(&held.store, 0, 0..6);
    let Held { segment, store } = held;
    std::mem::forget(store);
    let next = open(segment, PolicyKind::Lru, 2, 1);
    assert_eq!((next.store.open_slots(), next.held(0), next.resident()), (2, 2, 2 * SLOT));
    assert_eq!(next.store.counts().closed, 4);
    fill(&next.store, 1, 0..EXPERTS);
    assert_eq!((next.resident(), next.held(1)), (2 * SLOT, 2));
    next.store.pre_fill(&SystemClock::new());
    assert_eq!(next.resident(), 2 * SLOT);
    let Held { segment, store } = next;
    drop(store);
    // Fewer than a step needs are as many as it needs, more than there are as many as there are.
    assert_eq!(open(segment, PolicyKind::Lru, 0, 3).store.open_slots(), 3);
    assert_eq!(new(4, 99).store.open_slots(), 4);
    assert_eq!(new(4, 99).store.give_up(u64::MAX), GivenUp::default());
}

#[test]
fn huge_pages_under_slots_that_are_given_up_go_and_are_not_put_there_again() {
    const HUGE: usize = 2 << 20;
    let slots = 3 * HUGE / SLOT as usize;
    let segment = segment(slots);
    let mapping = Mapping::new(&segment, Access::Write).unwrap();
    for page in 0..3 * HUGE / 4096 {
        mapping.atomics(page * 4096, 1).unwrap()[0].store(0, Ordering::Relaxed);
    }
    // What an earlier engine left that has no use now, in whole pages of the system's or not.
    let held = open(segment, PolicyKind::S3Fifo, slots, 1);
    assert_eq!(held.resident(), 3 * HUGE as u64);
    let gathered = held.store.gather(0..HUGE);
    let given = held.store.give_up(HUGE as u64 + 1);
    assert_eq!((given.slots as u64, given.bytes), (HUGE as u64 / SLOT + 1, HUGE as u64 + SLOT));
    assert_eq!(held.resident(), 2 * HUGE as u64 - SLOT, "gathered: {gathered}");
    assert!(!held.store.gather(0..HUGE));
    let rest = held.store.give_up(u64::MAX);
    assert_eq!((rest.bytes, held.resident()), (2 * HUGE as u64 - 2 * SLOT, SLOT));
    assert_eq!(held.store.open_up(usize::MAX), slots - 1);
    fill(&held.store, 0, 0..EXPERTS);
    assert_eq!(use_experts(&held.store, 0, &[0, 7], Order::AsTheyCome), 2);
}

#[test]
fn steps_get_the_right_weights_while_slots_are_given_up_and_opened_up() {
    let held = new(12, 4);
    let (store, over) = (&held.store, AtomicBool::new(false));
    thread::scope(|scope| {
        let steps: Vec<_> = (0..3u32)
            .map(|t| {
                scope.spawn(move || {
                    for i in 0..400u32 {
                        let mix = (t * 7 + i).wrapping_mul(2_654_435_761) >> 16;
                        let experts = [mix % EXPERTS, (mix + 1 + mix / 8 % 7) % EXPERTS];
                        use_experts(store, mix / 64 % LAYERS, &experts, Order::AsTheyCome);
                    }
                })
            })
            .collect();
        let over = &over;
        scope.spawn(move || {
            let mut bytes = SLOT;
            while !over.load(Ordering::Relaxed) {
                store.give_up(bytes);
                assert!(store.open_slots() >= 4);
                store.open_up(3);
                bytes = bytes * 3 % (20 * SLOT);
            }
        });
        steps.into_iter().for_each(|step| step.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    assert!(store.counts().given_up > 0);
}

#[derive(Clone, Debug)]
enum Call {
    Use(u32, Vec<u32>, bool),
    Pin(u32, u32),
    Unpin,
    GiveUp(u64),
    OpenUp(usize),
    /// The engine dies; the next one may use so many slots.
    Die(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let experts = prop::collection::btree_set(0..EXPERTS, 1..=EXPERTS as usize);
    let experts = experts.prop_map(|experts| experts.into_iter().collect());
    let call = prop_oneof![
        6 => (0..LAYERS, experts, any::<bool>()).prop_map(|(layer, experts, order)| Call::Use(layer, experts, order)),
        3 => (0..LAYERS, 0..EXPERTS).prop_map(|(layer, expert)| Call::Pin(layer, expert)),
        2 => Just(Call::Unpin),
        3 => (0..14 * SLOT).prop_map(Call::GiveUp),
        2 => (0usize..6).prop_map(Call::OpenUp),
        1 => (0usize..14).prop_map(Call::Die),
    ];
    prop::collection::vec(call, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_use_giving_up_opening_up_and_death_gives_the_right_weights(
        calls in calls(),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        const SLOTS: usize = 12;
        // A step of one layer takes two at most, and two are pinned beside it.
        const LEAST: usize = 4;
        let mut held = open(segment(SLOTS), policy, SLOTS, LEAST);
        let mut pins: Vec<ExpertPin> = Vec::new();
        for call in calls {
            match call {
                Call::Use(layer, experts, ascending) => {
                    let order = if ascending { Order::Ascending } else { Order::AsTheyCome };
                    use_experts(&held.store, layer, &experts, order);
                }
                Call::Pin(layer, expert) if pins.len() < 2 => pins.push(pin(&held.store, layer, expert)),
                Call::Pin(..) | Call::Unpin => drop(pins.pop()),
                Call::GiveUp(bytes) => {
                    let before = (held.store.open_slots(), held.resident());
                    let given = held.store.give_up(bytes);
                    prop_assert_eq!(held.store.open_slots(), before.0 - given.slots);
                    prop_assert!(given.bytes < bytes + SLOT && given.bytes <= given.slots as u64 * SLOT);
                    prop_assert!(held.resident() <= before.1);
                }
                Call::OpenUp(slots) => {
                    let before = held.store.open_slots();
                    let opened = held.store.open_up(slots);
                    prop_assert_eq!(opened, slots.min(SLOTS - before));
                }
                Call::Die(slots) => {
                    pins.clear();
                    let Held { segment, store } = held;
                    drop(store);
                    held = open(segment, policy, slots, LEAST);
                    prop_assert_eq!(held.store.open_slots(), slots.clamp(LEAST, SLOTS));
                }
            }
            pins.iter().for_each(check);
            let open = held.store.open_slots();
            prop_assert!((LEAST..=SLOTS).contains(&open));
            prop_assert_eq!(held.store.counts().closed as usize, SLOTS - open);
            prop_assert!(held.resident() <= open as u64 * SLOT);
        }
    }
}
