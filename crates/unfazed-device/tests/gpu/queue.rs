//! Healthy work: order, results, splitting, what is refused.

use std::sync::Arc;
use std::time::Duration;

use unfazed_device::gpu::{Bound, Budget, Cost, Limits, Memory, Verdict};
use unfazed_device::{Class, DeviceError, Generation};
use unfazed_fault::Latch;

use crate::chores::{Bench, UNHURRIED, soon, stepped};
use crate::support::fresh;

#[test]
fn a_hundred_submissions_run_in_order_and_each_has_its_receipt() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(gpu, 4);
    let mut expected = 0;
    let mut tickets = Vec::new();
    for add in 1..=100 {
        bench.step(add, 1);
        tickets.push(bench.queue.submit().unwrap());
        expected = stepped(expected, add, 1);
    }
    assert!(tickets.is_sorted());
    assert_eq!(bench.queue.verdict(tickets[99], soon()), Verdict::Executed);
    for ticket in tickets {
        assert!(bench.queue.is_done(ticket));
        assert_eq!(bench.queue.verdict(ticket, std::time::Instant::now()), Verdict::Executed);
    }
    assert_eq!(bench.read(), [expected; 4]);
    let figures = bench.queue.figures();
    assert!(figures.executed >= 101, "{figures:?}");
    assert!(figures.worst_ns > 0 && figures.worst_ns <= figures.busy_ns, "{figures:?}");
}

#[test]
fn writes_copies_dispatches_and_reads_take_effect_in_the_order_in_which_they_are_recorded() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(gpu, 4);
    let other = bench.memory.scratch("other", 16).unwrap();
    bench.queue.write(&bench.words, 0, bytemuck::cast_slice(&[5_u32, 6, 7, 8]));
    bench.step(1, 1);
    let before = bench.queue.read(&bench.words, 0, 16);
    bench.queue.copy((&bench.words, 0), (&other, 0), 16);
    bench.step(2, 1);
    bench.queue.copy((&other, 4), (&bench.words, 0), 4);
    bench.step(3, 1);
    let after = bench.queue.read(&bench.words, 0, 16);
    bench.queue.write(&bench.words, 4, bytemuck::cast_slice(&[9_u32]));
    bench.step(4, 1);
    let last = bench.read();
    let one = |x: u32, add: u32| stepped(x, add, 1);
    let first: Vec<u32> = [5, 6, 7, 8].iter().map(|&x| one(x, 1)).collect();
    let mut second: Vec<u32> = first.iter().map(|&x| one(x, 2)).collect();
    second[0] = first[1];
    let third: Vec<u32> = second.iter().map(|&x| one(x, 3)).collect();
    let mut fourth = third.clone();
    fourth[1] = 9;
    fourth.iter_mut().for_each(|x| *x = one(*x, 4));
    assert_eq!(last, fourth);
    // Collected late, and in another order.
    let words = |bytes: &[u8]| bytemuck::pod_collect_to_vec::<u8, u32>(bytes);
    assert_eq!(bench.queue.collect(after, soon(), words).unwrap(), third);
    assert_eq!(bench.queue.collect(before, soon(), words).unwrap(), first);
}

#[test]
fn a_dispatch_over_budget_is_split_and_computes_each_output_once() {
    let Some(gpu) = fresh() else { return };
    let limits = Limits { time: Duration::from_millis(2), dispatches: 48 };
    let mut bench = Bench::with(gpu, 20_000, limits);
    bench.step(7, 3_000);
    assert_eq!(bench.read(), vec![stepped(0, 7, 3_000); 20_000]);
    let figures = bench.queue.figures();
    assert!(figures.executed > 3, "it was not split: {figures:?}");
}

#[test]
fn estimates_of_one_queue_serve_the_next() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(Arc::clone(&gpu), 64);
    bench.step(7, 10);
    bench.read();
    // The kernel was not known: its first piece ran by itself, before the read.
    assert_eq!(bench.queue.figures().executed, 2);
    let budget = Budget::from_text(UNHURRIED, &bench.queue.budget().to_text()).unwrap();
    let mut later = Bench::knowing(gpu, 64, budget);
    later.step(7, 10);
    assert_eq!(later.read(), [stepped(0, 7, 10); 64]);
    assert_eq!(later.queue.figures().executed, 1);
}

#[test]
fn what_cannot_be_recorded_is_refused_at_submit_and_the_queue_goes_on() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(gpu, 4);
    bench.step(1, 1);
    bench.queue.copy((&bench.words, 8), (&bench.words, 0), 12);
    bench.step(1, 1);
    assert!(matches!(bench.queue.submit(), Err(DeviceError::Setup(_))));
    bench.queue.write(&bench.words, 2, &[0; 4]);
    assert!(matches!(bench.queue.submit(), Err(DeviceError::Setup(_))));
    let outside = bench.queue.read(&bench.words, 16, 4);
    assert!(matches!(bench.queue.collect(outside, soon(), <[u8]>::len), Err(DeviceError::Setup(_))));
    // The first step was of a kernel that was not known: it ran by itself.
    bench.step(2, 1);
    assert_eq!(bench.read(), [stepped(stepped(0, 1, 1), 2, 1); 4]);
}

#[test]
fn what_is_of_another_generation_is_a_typed_error() {
    let Some(gpu) = fresh() else { return };
    let mut latch = Latch::default();
    let next = latch.rebuilt().unwrap();
    let mut bench = Bench::new(Arc::clone(&gpu), 4);
    let memory = Memory::new(gpu, next, 1 << 20);
    let later = memory.scratch("later", 16).unwrap();
    let stale = |error: DeviceError| matches!(error, DeviceError::Unusable(_));
    assert!(stale(bench.memory.bind(&bench.pipeline, &[Bound::from(&later)]).err().unwrap()));
    let group = memory.bind(&bench.pipeline, &[Bound::from(&later)]).unwrap();
    bench.queue.dispatch(&bench.pipeline, &group, &[0; 12], [1, 1, 1], Cost::WHOLE);
    assert!(stale(bench.queue.submit().unwrap_err()));
    bench.queue.write(&later, 0, &[0; 4]);
    assert!(stale(bench.queue.submit().unwrap_err()));
    let read = bench.queue.read(&later, 0, 4);
    assert!(stale(bench.queue.collect(read, soon(), <[u8]>::len).unwrap_err()));
    bench.step(1, 1);
    assert_eq!(bench.read(), [1; 4]);
    assert_ne!(next, Generation::default());
}

#[test]
fn memory_is_counted_and_its_limit_is_an_error_by_name() {
    let Some(gpu) = fresh() else { return };
    let memory = Memory::new(gpu, Generation::default(), 1000);
    let first = memory.scratch("first", 600).unwrap();
    assert_eq!((first.bytes(), memory.used()), (608, 608));
    match memory.blank("second", 500) {
        Err(DeviceError::Fault(fault)) => {
            assert_eq!(fault.class, Class::OutOfMemory);
            assert!(fault.evidence.contains("second"), "{}", fault.evidence);
        }
        other => panic!("{other:?}"),
    }
    drop(first);
    assert_eq!(memory.used(), 0);
    assert!(memory.scratch("third", 900).is_ok());
}

/// A measurement: run it by hand on a real GPU, optimised.
#[test]
#[ignore = "a measurement"]
fn how_long_a_step_takes_beside_its_work() {
    let Some(gpu) = fresh() else { return };
    let limits = Limits { time: Duration::from_millis(50), dispatches: 512 };
    let mut bench = Bench::with(gpu, 64, limits);
    for dispatches in [1, 10, 100, 400] {
        let rounds = 200;
        let (mut recorded, mut whole) = (Duration::ZERO, Duration::ZERO);
        for round in 0..rounds + 20 {
            let begun = std::time::Instant::now();
            bench.queue.write(&bench.words, 0, &[0; 16]);
            for add in 0..dispatches {
                bench.step(add, 1);
            }
            let read = bench.queue.read(&bench.words, 0, 256);
            let ticket = bench.queue.submit().unwrap();
            let submitted = begun.elapsed();
            assert_eq!(bench.queue.verdict(ticket, soon()), Verdict::Executed);
            bench.queue.collect(read, soon(), <[u8]>::len).unwrap();
            // The first ones are of a kernel that is not known.
            if round >= 20 {
                recorded += submitted;
                whole += begun.elapsed();
            }
        }
        let (recorded, whole) = (recorded / rounds, whole / rounds);
        eprintln!("{dispatches} dispatches: {recorded:?} to record and submit, {whole:?} to the result");
    }
    eprintln!("{:?}", bench.queue.figures());
}
