//! Experts come from a file system that stalls, fails and goes away while answers and prompts are computed. Where no FUSE file
//! system can be mounted nothing is tested here.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use unfazed_testkit::fuse::FaultyMount;

use crate::expert_model::{ExpertModel, PATH, assert_same, request, sampled};
use crate::streams::{Stream, Tally};
use crate::support::{Server, until};

/// Slow enough for requests to outlast what happens.
const SLOW: u64 = 20_000_000;
/// Input/output error.
const EIO: i32 = 5;

/// Requests run side by side over the smallest cache, and a stall, errors and the mount's absence, one after the other, fall
/// between what they do: `goes_on` waits until it is sure that they read again. No answer is another one than ever.
fn answers_in_spite_of_faults(requests: &[Value], goes_on: impl Fn(&FaultyMount, &Tally)) {
    let model = ExpertModel::new();
    let Some(mut mount) = model.mount() else { return };
    let expected = model.undisturbed(requests);
    let server = model.serve_from(&mount.file(), &["--expert-cache", &model.least_slots().to_string()]);
    mount.behave(|behaviour| behaviour.bytes_per_second = Some(SLOW));
    let tally = Tally::default();
    let answers = thread::scope(|scope| {
        let streams: Vec<_> = requests.iter().map(|request| Stream::open(&server, PATH, request)).collect();
        let following = |(number, stream)| {
            scope.spawn({
                let tally = &tally;
                move || tally.follow(stream, number)
            })
        };
        let streams: Vec<_> = (0..).zip(streams).map(following).collect();
        goes_on(&mount, &tally);

        mount.behave(|behaviour| behaviour.stalled = true);
        waits(&server);
        thread::sleep(Duration::from_secs(5));
        mount.behave(|behaviour| behaviour.stalled = false);
        goes_on(&mount, &tally);

        mount.behave(|behaviour| behaviour.failing = Some((EIO, 5)));
        until("all errors have come", || {
            let mut left = 0;
            mount.behave(|behaviour| left = behaviour.failing.map_or(0, |(_, left)| left));
            left == 0
        });
        goes_on(&mount, &tally);

        mount.vanish().unwrap();
        let what = waits(&server);
        thread::sleep(Duration::from_secs(10));
        assert_eq!(tally.count().ended, 0, "all of it happened to all of them");
        mount.mount().unwrap();
        goes_on(&mount, &tally);
        println!("{what}");

        mount.behave(|behaviour| behaviour.bytes_per_second = None);
        streams.into_iter().map(|stream| stream.join().unwrap()).collect::<Vec<_>>()
    });
    assert_same(&answers, &expected, "in spite of faults");
    let events = server.past_events();
    assert!(events.iter().all(|event| event["event"] != "engine_exit"), "{events:?}");
}

/// The server says that it waits for an expert.
fn waits(server: &Server) -> String {
    loop {
        let waiting = server.event("waiting");
        let what = waiting["what"].as_str().unwrap();
        if what.starts_with("reading blk.") && what.contains("expert ") {
            return what.to_owned();
        }
    }
}

#[test]
fn faults_while_answers_read_experts_cost_no_request() {
    let requests = [sampled(1, 5, 150), sampled(2, 40, 150), request(3, 10, 150)];
    answers_in_spite_of_faults(&requests, |_, tally| tally.wait_for_tokens(tally.count().tokens + 30));
}

#[test]
fn faults_while_prompts_read_experts_cost_no_request() {
    let requests = [sampled(1, 1500, 10), request(2, 1200, 10)];
    answers_in_spite_of_faults(&requests, |mount, tally| {
        let before = mount.reads();
        until("experts are read", || mount.reads() > before + 200);
        assert_eq!(tally.count().tokens, 0, "prompts are being computed");
    });
}
