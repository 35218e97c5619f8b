//! What every policy promises, over any calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use unfazed_store::experts::{Policy, PolicyKind, Unit};

const UNITS: u32 = 60;

#[derive(Clone, Debug)]
enum Call {
    /// A unit is used: touched if it is there, admitted if not, while these are pinned.
    Use(u32, BTreeSet<u32>),
    Forget(u32),
    /// A slot is given up, while these are pinned.
    GiveUp(BTreeSet<u32>),
    /// One that was given up is there again.
    OpenUp,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let pins = prop::collection::btree_set(0..UNITS, 0..12);
    // Some units are used far more often than others, as experts are.
    let unit = prop_oneof![3 => 0..8u32, 1 => 0..UNITS];
    let call = prop_oneof![
        1 => pins.clone().prop_map(Call::GiveUp),
        1 => Just(Call::OpenUp),
        20 => (unit, pins).prop_map(|(unit, pins)| Call::Use(unit, pins)),
        1 => (0..UNITS).prop_map(Call::Forget),
    ];
    prop::collection::vec(call, 0..400)
}

/// Makes the calls and checks each against a plain set. Returns who was evicted, in order.
fn check(policy: &mut dyn Policy, most: usize, calls: &[Call]) -> Vec<Option<u32>> {
    let mut slots = most;
    let mut resident = BTreeSet::new();
    let mut history = Vec::new();
    for call in calls {
        match call {
            Call::Forget(unit) => {
                policy.forget(Unit(*unit));
                resident.remove(unit);
            }
            Call::GiveUp(pins) => {
                let leaves = policy.leave(&|unit| pins.contains(&unit.0));
                let may_leave = resident.iter().any(|unit| !pins.contains(unit));
                assert_eq!(leaves.is_some(), may_leave, "an unpinned unit is found if there is one");
                if let Some(unit) = leaves {
                    assert!(!pins.contains(&unit.0), "{unit:?} was pinned");
                    assert!(resident.remove(&unit.0), "{unit:?} was in no slot");
                    slots -= 1;
                    policy.resize(slots);
                }
                history.push(leaves.map(|unit| unit.0));
            }
            Call::OpenUp => {
                slots = most.min(slots + 1);
                policy.resize(slots);
            }
            Call::Use(unit, _) if resident.contains(unit) => policy.touch(Unit(*unit)),
            Call::Use(unit, pins) => {
                let admitted = policy.admit(Unit(*unit), &|other| pins.contains(&other.0));
                let may_leave = resident.len() < slots || resident.iter().any(|other| !pins.contains(other));
                assert_eq!(
                    admitted.is_some(),
                    may_leave && slots > 0,
                    "an unpinned slot is found if there is one"
                );
                if let Some(admitted) = admitted {
                    assert_eq!(admitted.evicted.is_some(), resident.len() == slots);
                    if let Some(evicted) = admitted.evicted {
                        assert!(!pins.contains(&evicted.0), "{evicted:?} was pinned");
                        assert!(resident.remove(&evicted.0), "{evicted:?} was in no slot");
                        history.push(Some(evicted.0));
                    }
                    resident.insert(*unit);
                } else {
                    history.push(None);
                }
            }
        }
        assert!(policy.len() <= slots);
        assert_eq!(policy.len(), resident.len());
        assert!((0..UNITS).all(|unit| policy.contains(Unit(unit)) == resident.contains(&unit)));
    }
    history
}

proptest! {
    #[test]
    fn no_pinned_unit_leaves_no_slot_is_lost_and_the_same_calls_do_the_same(
        calls in calls(),
        slots in 0usize..40,
    ) {
        for kind in PolicyKind::ALL {
            let first = check(&mut *kind.build(slots, UNITS), slots, &calls);
            let second = check(&mut *kind.build(slots, UNITS), slots, &calls);
            prop_assert_eq!(first, second, "{}", kind);
        }
    }
}

/// Hits in 100 rounds in which 15 units are used three times each and 30 others once, over 20 slots.
fn hits_beside_a_scan(kind: PolicyKind) -> usize {
    let mut policy = kind.build(20, 10_000);
    let mut hits = 0;
    let mut use_unit = |unit: u32| {
        if policy.contains(Unit(unit)) {
            policy.touch(Unit(unit));
            hits += 1;
        } else {
            policy.admit(Unit(unit), &|_| false).unwrap();
        }
    };
    for round in 0..100 {
        for _ in 0..3 {
            (0..15).for_each(&mut use_unit);
        }
        (0..30).for_each(|i| use_unit(100 + round * 30 + i));
    }
    hits
}

#[test]
fn what_is_used_once_does_not_drive_out_what_is_used_all_the_time() {
    let [s3_fifo, lru, lfu] = PolicyKind::ALL.map(hits_beside_a_scan);
    assert!(lru <= 3000, "a scan empties it: {lru} hits");
    assert!(s3_fifo > 4300 && lfu > 4300, "s3-fifo {s3_fifo}, lfu {lfu} of 4485 that can be hit");
}

#[test]
fn what_was_frequent_long_ago_leaves_in_the_end() {
    let mut policy = PolicyKind::Lfu.build(4, UNITS);
    let mut use_unit = |unit: u32| match policy.contains(Unit(unit)) {
        true => policy.touch(Unit(unit)),
        false => drop(policy.admit(Unit(unit), &|_| false).unwrap()),
    };
    (0..100_000).for_each(|i| use_unit(i % 4));
    // Far fewer uses than those before, but later ones; so many that scores are scaled down on the way.
    (0..600_000).for_each(|i| use_unit(10 + i % 4));
    assert!((10..14).all(|unit| policy.contains(Unit(unit))));
}

#[test]
fn a_policy_is_chosen_by_its_name() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "fifo".parse::<PolicyKind>().unwrap_err();
    assert!(error.contains("s3-fifo, lru, lfu"), "{error}");
}
