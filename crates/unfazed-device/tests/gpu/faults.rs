//! A real driver that fails by arrangement: each fault has its verdict in time, nothing panics out, and another device works.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_device::gpu::inject::{Act, Faults, open};
use unfazed_device::gpu::{Bound, Cost, Uploader, Verdict};
use unfazed_device::{Class, DeviceError, Fault};

use crate::chores::{Bench, soon, stepped};
use crate::support::{adapter, fresh, gpu};

/// How long a hang is given. Everything else must be told sooner.
const DEADLINE: Duration = Duration::from_secs(3);

/// A device that has worked, and its faults.
fn bench(words: u64) -> Option<(Bench, Arc<Faults>)> {
    gpu()?;
    let (gpu, faults) = open(&adapter()?).unwrap();
    let mut bench = Bench::new(gpu, words);
    bench.step(1, 1);
    assert_eq!(bench.read()[0], 1);
    Some((bench, faults))
}

/// What becomes of a step: of a submission, or of its verdict. Also that it was told in time.
fn fault_of(bench: &mut Bench) -> Fault {
    bench.step(2, 1);
    let begun = Instant::now();
    let fault = match bench.queue.submit() {
        Ok(ticket) => bench.queue.verdict(ticket, begun + DEADLINE).executed().unwrap_err(),
        Err(DeviceError::Fault(fault)) => fault,
        Err(other) => panic!("{other}"),
    };
    assert!(begun.elapsed() < DEADLINE + Duration::from_secs(1), "told after {:?}", begun.elapsed());
    fault
}

/// Nothing is done by the device any more, and nothing of it is believed; but another one works.
fn ends(mut bench: Bench, class: Class) {
    for _ in 0..3 {
        assert_eq!(fault_of(&mut bench).class, class);
        let read = bench.queue.read(&bench.words, 0, 4);
        let seen = bench.queue.collect(read, soon(), <[u8]>::len);
        assert!(matches!(seen, Err(DeviceError::Fault(fault)) if fault.class == class));
    }
    let begun = Instant::now();
    drop(bench);
    assert!(begun.elapsed() < Duration::from_secs(10), "the drop took {:?}", begun.elapsed());
    let mut other = Bench::new(fresh().unwrap(), 4);
    other.step(5, 2);
    assert_eq!(other.read(), [stepped(0, 5, 2); 4]);
}

#[test]
fn work_that_was_thrown_away_is_noticed_and_nothing_after_it_is_believed() {
    let Some((mut bench, faults)) = bench(4) else { return };
    faults.arrange(Act::Discard, 1);
    let fault = fault_of(&mut bench);
    assert_eq!(fault.class, Class::Discarded, "{fault}");
    assert!(fault.evidence.contains("instead of"), "{fault}");
    ends(bench, Class::Discarded);
}

#[test]
fn of_submissions_in_flight_those_before_the_discarded_one_count_and_those_after_do_not() {
    let Some((mut bench, faults)) = bench(4) else { return };
    faults.arrange(Act::Discard, 2);
    let mut tickets = Vec::new();
    for add in 0..3 {
        bench.step(add, 1);
        tickets.extend(bench.queue.submit());
    }
    let verdict = bench.queue.verdict(tickets[0], soon());
    assert_eq!(verdict, Verdict::Executed);
    for ticket in tickets.iter().skip(1) {
        let fault = bench.queue.verdict(*ticket, soon()).executed().unwrap_err();
        assert_eq!(fault.class, Class::Discarded);
    }
}

#[test]
fn a_device_that_is_lost_at_submit_is_told() {
    let Some((mut bench, faults)) = bench(4) else { return };
    faults.arrange(Act::LoseAtSubmit, 1);
    assert_eq!(fault_of(&mut bench).class, Class::DeviceLost);
    ends(bench, Class::DeviceLost);
}

#[test]
fn a_device_that_is_lost_at_wait_is_told_though_wgpu_panics() {
    let Some((mut bench, faults)) = bench(4) else { return };
    faults.arrange(Act::LoseAtWait, 1);
    assert_eq!(fault_of(&mut bench).class, Class::DeviceLost);
    ends(bench, Class::DeviceLost);
}

#[test]
fn memory_that_is_missing_at_submit_is_told() {
    let Some((mut bench, faults)) = bench(4) else { return };
    faults.arrange(Act::OutOfMemory, 1);
    assert_eq!(fault_of(&mut bench).class, Class::OutOfMemory);
    ends(bench, Class::OutOfMemory);
}

#[test]
fn memory_that_is_missing_at_an_allocation_is_an_error_and_the_device_lives() {
    let Some((mut bench, faults)) = bench(4) else { return };
    faults.refuse_memory(true);
    // Larger than what the driver's allocator has at hand.
    for _ in 0..2 {
        match bench.memory.scratch("large", 300 << 20) {
            Err(DeviceError::Fault(fault)) => assert_eq!(fault.class, Class::OutOfMemory, "{fault}"),
            other => panic!("{other:?}"),
        }
    }
    let used = bench.memory.used();
    faults.refuse_memory(false);
    bench.step(2, 1);
    assert_eq!(bench.read(), [stepped(1, 2, 1); 4]);
    let large = bench.memory.scratch("large", 300 << 20).unwrap();
    assert_eq!(bench.memory.used(), used + large.bytes());
}

#[test]
fn work_that_never_ends_is_hung_at_its_deadline_and_its_device_is_not_waited_for() {
    let Some((mut bench, faults)) = bench(4) else { return };
    faults.arrange(Act::Hang, 1);
    let limit = bench.queue.budget().limit();
    let begun = Instant::now();
    assert_eq!(fault_of(&mut bench).class, Class::Hang);
    assert!(begun.elapsed() >= DEADLINE);
    assert_eq!(bench.queue.budget().limit(), limit / 2);
    ends(bench, Class::Hang);
}

#[test]
fn a_dispatch_that_runs_away_is_hung_at_its_deadline() {
    let Some(gpu) = fresh() else { return };
    let mut bench = Bench::new(gpu, 4);
    bench.step(1, 1);
    bench.read();
    // What is timed here is repeated for six seconds, in one piece.
    bench.step(1, 1 << 24);
    let begun = Instant::now();
    bench.read();
    let rounds = f64::from(1 << 24) * 6.0 / begun.elapsed().as_secs_f64();
    let scalars = [0, 1, rounds.min(4e9) as u32];
    let (pipeline, group) = (&bench.pipeline, &bench.group);
    bench.queue.dispatch(pipeline, group, bytemuck::cast_slice(&scalars), [4, 1, 1], Cost::WHOLE);
    let begun = Instant::now();
    let ticket = bench.queue.submit().unwrap();
    let verdict = bench.queue.verdict(ticket, begun + Duration::from_millis(500));
    assert!(matches!(verdict, Verdict::Hung(_)), "{verdict:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "told after {:?}", begun.elapsed());
    drop(bench);
    assert!(begun.elapsed() < Duration::from_secs(3), "the drop waited for it");
}

#[test]
fn an_upload_that_was_thrown_away_never_becomes_ready() {
    // Each submission in turn: of the two pieces, and of the step that would read them.
    for nth in 1..=2 {
        let Some((mut bench, faults)) = bench(4) else { return };
        let mut uploader = Uploader::new(&bench.queue, 1, DEADLINE).unwrap();
        let source = vec![3_u8; (16 << 20) + 64];
        let blank = bench.memory.blank("weights", source.len() as u64).unwrap();
        faults.arrange(Act::Discard, nth);
        let fault = match uploader.fill(&mut bench.queue, blank, &source) {
            Ok(pending) => pending.ready(&mut bench.queue, soon()).unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(&fault, DeviceError::Fault(fault) if fault.class == Class::Discarded), "{fault}");
        ends(bench, Class::Discarded);
    }
}

#[test]
fn what_the_host_wrote_for_a_step_is_part_of_what_its_receipt_says() {
    let Some((mut bench, faults)) = bench(4) else { return };
    let other = bench.memory.scratch("other", 16).unwrap();
    bench.queue.write(&other, 0, &[1; 16]);
    bench.queue.write(&bench.words, 0, &[0; 16]);
    bench.step(3, 1);
    assert_eq!(bench.read(), [3; 4]);
    bench.memory.bind(&bench.pipeline, &[Bound::from(&other)]).unwrap();
    bench.queue.write(&bench.words, 0, &[1; 16]);
    faults.arrange(Act::Discard, 1);
    assert_eq!(fault_of(&mut bench).class, Class::Discarded);
}
