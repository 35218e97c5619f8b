//! The table and what is decided by it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use proptest::prelude::*;
use unfazed_fault::policy::{Pause, Row};
use unfazed_fault::{Action, Class, Decision, Origin, POLICY, Policy};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_table_has_one_row_for_each_class() {
    for class in Class::ALL {
        assert_eq!(POLICY.iter().filter(|row| row.class == class).count(), 1, "{class}");
        assert_eq!(Row::of(class).class, class);
        assert!(!Row::of(class).actions.is_empty(), "{class}");
    }
}

#[test]
fn a_wait_is_never_the_last_thing_tried_and_requests_fail_only_for_what_is_theirs_or_storages() {
    for row in &POLICY {
        assert_ne!(row.actions.last(), Some(&Action::Wait), "{}", row.class);
        if row.actions.contains(&Action::FailRequest) {
            assert!(row.class == Class::NonFinite || row.class.origin() == Origin::Storage, "{}", row.class);
        }
        if row.actions.contains(&Action::Wait) {
            assert_eq!(row.pause, Pause::First, "{} would be tried again without a pause", row.class);
        }
        if row.class.outlives_rebuild() {
            assert!(!row.actions.contains(&Action::RebuildDevice), "{}", row.class);
        }
    }
}

#[test]
fn an_innocent_victim_waits_a_moment_and_tries_the_same_again() {
    let Decision { action, wait, .. } = Policy::default().decide(Class::InnocentVictim, SECOND, 0.0);
    assert_eq!((action, wait), (Action::RetryStep, Duration::from_millis(100)));
}

#[test]
fn storage_is_waited_for_as_long_as_patience_lasts() {
    for class in [Class::StorageGone, Class::StorageTransient, Class::StorageSlow] {
        let mut policy = Policy::new(100 * SECOND, 600 * SECOND);
        for second in 0..100 {
            let decision = policy.decide(class, SECOND * second, 0.0);
            assert_eq!(decision.action, Action::Wait, "{class} after {second} s");
            assert!(decision.wait >= Duration::from_millis(100), "{decision:?}");
        }
        for second in 100..110 {
            let decision = policy.decide(class, SECOND * second, 0.0);
            assert_eq!((decision.action, decision.wait), (Action::FailRequest, Duration::ZERO), "{class}");
        }
        // A read that succeeds is a reason for patience.
        policy.recovered(class);
        assert_eq!(policy.decide(class, SECOND * 111, 0.0).action, Action::Wait);
    }
}

#[test]
fn what_was_corrupt_is_read_once_more_and_what_is_not_finite_computed_once_more() {
    for class in [Class::StorageCorrupt, Class::NonFinite] {
        let mut policy = Policy::default();
        let actions: Vec<_> = (0..3).map(|_| policy.decide(class, SECOND, 0.5).action).collect();
        assert_eq!(actions, [Action::RetryStep, Action::FailRequest, Action::FailRequest], "{class}");
    }
}

#[test]
fn attempts_of_a_class_count_by_themselves_and_begin_anew_after_a_quiet_time() {
    let mut policy = Policy::default();
    let attempt = |policy: &mut Policy, class, at: u32| policy.decide(class, SECOND * at, 0.5).attempt;
    assert_eq!(attempt(&mut policy, Class::Timeout, 0), 1);
    assert_eq!(attempt(&mut policy, Class::Hang, 1), 1);
    assert_eq!(attempt(&mut policy, Class::Timeout, 2), 2);
    assert_eq!(attempt(&mut policy, Class::Timeout, 601), 3);
    assert_eq!(attempt(&mut policy, Class::Hang, 601), 1);
    assert_eq!(attempt(&mut policy, Class::Timeout, 1201), 1);
}

proptest! {
    /// Whatever comes, at whatever times, even backwards: attempts go through the row in order, waits are bounded, and
    /// devices and engines are never given up.
    #[test]
    fn decisions_follow_the_table(
        faults in prop::collection::vec((prop::sample::select(&Class::ALL[..]), 0u64..2000, 0.0f64..1.0), 1..200),
    ) {
        let mut policy = Policy::default();
        for (class, second, chance) in faults {
            let decision = policy.decide(class, Duration::from_secs(second), chance);
            let row = Row::of(class);
            prop_assert!(decision.attempt >= 1 && decision.class == class);
            prop_assert!(row.actions.contains(&decision.action));
            prop_assert!(decision.wait <= 30 * SECOND);
            if row.pause == Pause::No {
                prop_assert_eq!(decision.wait, Duration::ZERO);
            }
            if !row.actions.contains(&Action::Wait) {
                let step = (decision.attempt as usize - 1).min(row.actions.len() - 1);
                prop_assert_eq!(decision.action, row.actions[step]);
            }
        }
    }
}

/// A row of the table in docs/faults.md.
fn documented(row: &Row) -> String {
    let mut actions: Vec<(Action, usize)> = Vec::new();
    for action in row.actions {
        match actions.last_mut() {
            Some((last, times)) if last == action => *times += 1,
            _ => actions.push((*action, 1)),
        }
    }
    let tell = |(action, times): (Action, usize)| match times {
        1 => format!("`{}`", action.name()),
        _ => format!("`{}` × {times}", action.name()),
    };
    let actions: Vec<String> = actions.into_iter().map(tell).collect();
    let class = row.class;
    let trusted = if class.spoils_memory() { "no" } else { "yes" };
    let origin = class.origin().name();
    format!("| `{}` | {} | {origin} | {} | {trusted} |", class.name(), class.meaning(), actions.join(", "))
}

#[test]
fn the_documentation_has_the_table() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/faults.md")).unwrap();
    let expected: Vec<String> = POLICY.iter().map(documented).collect();
    let found: Vec<&str> = docs.lines().filter(|line| line.starts_with("| `")).take(POLICY.len()).collect();
    assert!(found == expected, "the table in docs/faults.md should be:\n{}", expected.join("\n"));
}
