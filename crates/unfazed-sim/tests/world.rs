//! Worlds by the hundred: nothing is lost in any, and bugs that are planted are found and cut down to few faults.

#![allow(clippy::unwrap_used, clippy::panic)]

use unfazed_fault::{Class, Origin};
use unfazed_sim::device::Bug;
use unfazed_sim::plan::Place;
use unfazed_sim::world::shrink::shrink;
use unfazed_sim::world::{Ground, Scenario};

const SEEDS: u64 = 400;

#[test]
fn no_fault_of_any_class_at_any_step_loses_anything() {
    let ground = Ground::new().unwrap();
    let (mut faults, mut engines, mut steps) = (Vec::new(), 0, 0);
    for seed in 0..SEEDS {
        let outcome = ground.run(&Scenario::of_seed(seed, None)).unwrap();
        if let Some(loss) = &outcome.loss {
            let (short, outcome) = shrink(&ground, &Scenario::of_seed(seed, None)).unwrap().unwrap();
            panic!(
                "seed {seed}: {loss}; in short: {:?} {:?}: {outcome:?}",
                short.requests, short.plan.script
            );
        }
        faults.extend(outcome.faults.iter().map(|at| at.fault.0));
        (engines, steps) = (engines + outcome.engines, steps + outcome.steps);
    }
    println!("{SEEDS} seeds: {steps} steps, {engines} engines, {} faults", faults.len());
    for class in Class::ALL.into_iter().filter(|class| Place::Step.holds(*class)) {
        assert!(faults.contains(&class), "{} never came", class.name());
    }
}

#[test]
fn a_run_can_be_had_again_by_its_seed() {
    let ground = Ground::new().unwrap();
    for seed in [3, 50, 71] {
        let run = || ground.run(&Scenario::of_seed(seed, None)).unwrap();
        assert_eq!(run(), run());
    }
}

/// The first seed whose run loses something, cut down.
fn found(bug: Bug) -> (u64, usize, usize) {
    let ground = Ground::new().unwrap();
    let seeds = 0..SEEDS;
    let lost = seeds
        .into_iter()
        .find_map(|seed| Some((seed, shrink(&ground, &Scenario::of_seed(seed, Some(bug))).unwrap()?)));
    let (seed, (short, outcome)) = lost.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS} seeds"));
    println!(
        "{bug:?}: seed {seed}: {}; {}",
        outcome.loss.as_deref().unwrap(),
        serde_json::to_string(&short.plan.script).unwrap()
    );
    assert_eq!(ground.run(&short).unwrap(), outcome, "the short run can be had again");
    (seed, short.plan.script.len(), short.requests.len())
}

#[test]
fn a_commit_before_the_verdict_is_found_and_takes_one_discarded_step() {
    let (_, faults, requests) = found(Bug::CommitBeforeVerdict);
    assert!(faults == 1 && requests <= 3, "{faults} faults, {requests} requests");
}

#[test]
fn a_page_used_after_its_generation_is_found_and_takes_one_lost_device() {
    let (_, faults, requests) = found(Bug::UseAfterGeneration);
    assert!(faults == 1 && requests <= 3, "{faults} faults, {requests} requests");
}

#[test]
fn the_atlas_puts_every_device_fault_into_steps_and_every_storage_fault_into_reads() {
    for class in Class::ALL.into_iter().filter(|class| !class.is_kernel_panic()) {
        if class.origin() == Origin::Storage && ![Class::BusError, Class::StorageCorrupt].contains(&class) {
            assert!(Place::Read.holds(class) && !Place::Step.holds(class), "{class:?}");
        }
    }
    assert_eq!(Class::ALL.into_iter().filter(|class| Place::Step.holds(*class)).count(), 15);
}
