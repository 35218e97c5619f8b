//! Down one rung at a time, and up again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use proptest::prelude::*;
use unfazed_fault::{Change, Class, Ladder, Quiet};

const MINUTE: Duration = Duration::from_secs(60);
const RUNGS: [&str; 3] = ["full", "fewer layers on the GPU", "CPU"];

fn ladder() -> Ladder {
    Ladder::new(RUNGS, Quiet { first: 10 * MINUTE, longest: 60 * MINUTE })
}

#[test]
fn changes_say_from_where_to_where_and_why() {
    let mut ladder = ladder();
    let down = ladder.step_down(Class::Hang, MINUTE).unwrap();
    let (from, to) = ("full".to_owned(), "fewer layers on the GPU".to_owned());
    assert_eq!(down, Change::Degraded { from: from.clone(), to: to.clone(), why: Class::Hang });
    assert_eq!(ladder.climb(10 * MINUTE), None);
    let up = ladder.climb(11 * MINUTE).unwrap();
    assert_eq!(up, Change::Recovered { from: to, to: from, quiet: 10 * MINUTE });
    assert_eq!(ladder.climb(100 * MINUTE), None);
}

#[test]
fn a_fault_that_the_rung_bears_puts_the_climb_off() {
    let mut ladder = ladder();
    ladder.step_down(Class::Timeout, MINUTE);
    ladder.disturbed(9 * MINUTE);
    assert_eq!(ladder.climb(18 * MINUTE), None);
    assert!(ladder.climb(19 * MINUTE).is_some());
}

#[test]
fn each_failed_climb_doubles_the_quiet_time_up_to_a_ceiling_and_one_that_holds_resets_it() {
    let mut ladder = ladder();
    let mut now = MINUTE;
    ladder.step_down(Class::OutOfMemory, now);
    let mut needed = Vec::new();
    for _ in 0..5 {
        needed.push(ladder.needed() / 60);
        now += ladder.needed();
        assert!(ladder.climb(now).is_some());
        now += MINUTE;
        assert!(ladder.step_down(Class::OutOfMemory, now).is_some());
    }
    assert_eq!(needed.iter().map(Duration::as_secs).collect::<Vec<_>>(), [10, 20, 40, 60, 60]);
    now += ladder.needed();
    assert!(ladder.climb(now).is_some());
    now += 10 * MINUTE;
    assert!(ladder.step_down(Class::OutOfMemory, now).is_some());
    assert_eq!(ladder.needed(), 10 * MINUTE);
}

#[test]
fn below_the_lowest_rung_there_is_none() {
    let mut ladder = ladder();
    assert!(ladder.step_down(Class::Hang, MINUTE).is_some());
    assert!(ladder.step_down(Class::Hang, MINUTE).is_some());
    assert_eq!(ladder.step_down(Class::Hang, MINUTE), None);
    assert_eq!((ladder.rung(), ladder.name()), (ladder.lowest(), "CPU"));
    let mut single = Ladder::new(Vec::<String>::new(), Quiet::default());
    assert_eq!((single.step_down(Class::Hang, MINUTE), single.name()), (None, "full"));
}

/// What may happen.
#[derive(Clone, Debug)]
enum Event {
    Down,
    Disturbed,
    Climb,
}

proptest! {
    #[test]
    fn it_is_always_on_a_rung_moves_by_one_and_comes_back_to_full(
        rungs in 1usize..6,
        events in prop::collection::vec(
            (prop::sample::select(vec![Event::Down, Event::Disturbed, Event::Climb]), 0u64..3000),
            0..100,
        ),
    ) {
        let quiet = Quiet { first: 10 * MINUTE, longest: 60 * MINUTE };
        let mut ladder = Ladder::new((0..rungs).map(|rung| rung.to_string()), quiet);
        let mut now = Duration::ZERO;
        for (event, pause) in events {
            now += Duration::from_secs(pause);
            let before = ladder.rung();
            let change = match event {
                Event::Down => ladder.step_down(Class::Timeout, now),
                Event::Climb => ladder.climb(now),
                Event::Disturbed => { ladder.disturbed(now); None }
            };
            prop_assert!(ladder.rung() <= ladder.lowest());
            prop_assert_eq!(change.is_some(), ladder.rung() != before);
            prop_assert!(ladder.rung().abs_diff(before) <= 1);
            prop_assert!(ladder.needed() >= quiet.first && ladder.needed() <= quiet.longest);
            prop_assert_eq!(ladder.name(), ladder.rung().to_string());
        }
        // Left alone it is full again: each rung takes at most the longest quiet time.
        for _ in 0..rungs {
            now += quiet.longest;
            ladder.climb(now);
        }
        prop_assert_eq!(ladder.rung(), 0);
    }
}
