//! Memory that runs out: cache goes first, then the engine, never the front. Where no control group can be made nothing is tested
//! here.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::expert_model::{ExpertModel, PATH, answers, assert_same, end, request, sampled};
use crate::group::{Ballast, Group};
use crate::streams::Stream;
use crate::support::{PATIENCE, Server};

const MIB: usize = 1 << 20;
const LIMIT: u64 = 640 << 20;

fn requests() -> Vec<Value> {
    vec![request(1, 20, 60), sampled(2, 300, 60), sampled(3, 100, 60)]
}

/// A server in a group, with experts in slots, most of which are filled.
fn server(model: &ExpertModel, group: &Group) -> Server {
    let args = ["--stream-experts", "on", "--expert-cache", "400", "--recover-after", "1"];
    model.serve_in(group, &args)
}

/// Takes memory until an event has come; the events until then.
fn squeeze(
    server: &Server,
    ballast: &mut Ballast<'_>,
    part: usize,
    pause: Duration,
    name: &str,
) -> Vec<Value> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while !events.iter().any(|event: &Value| event["event"] == name) {
        assert!(start.elapsed() < PATIENCE, "no {name}: {events:?}");
        ballast.take(part);
        std::thread::sleep(pause);
        events.extend(server.past_events());
    }
    events
}

#[test]
fn memory_that_is_squeezed_slowly_takes_cache_and_ends_nobody() {
    let Some(group) = Group::limited(LIMIT) else { return };
    let model = ExpertModel::new();
    let expected = model.undisturbed(&requests());
    let mut server = server(&model, &group);
    assert_same(&answers(&server, &requests()), &expected, "before");
    let mut ballast = Ballast::new(&group);
    let events = squeeze(&server, &mut ballast, 4 * MIB, Duration::from_millis(40), "memory_given_up");
    let given = events.iter().rfind(|event| event["event"] == "memory_given_up").unwrap();
    println!("{given}");
    assert!(given["page_bytes"].as_u64().unwrap() + given["slot_bytes"].as_u64().unwrap() > 0, "{given}");
    assert_same(&answers(&server, &requests()), &expected, "squeezed");
    // As long as it is squeezed it is not taken again, and no engine ended for it.
    ballast.take(8 * MIB);
    let mut slots = server.metric("unfazed_expert_slots_open");
    let start = Instant::now();
    while slots == 400.0 && start.elapsed() < PATIENCE {
        ballast.take(4 * MIB);
        std::thread::sleep(Duration::from_millis(40));
        slots = server.metric("unfazed_expert_slots_open");
    }
    assert!(slots < 400.0, "slots were given up: {slots}");
    drop(ballast);
    let taken = server.event("memory_taken_up");
    println!("{taken}");
    assert_same(&answers(&server, &requests()), &expected, "after");
    assert_eq!(server.metric("unfazed_engine_exits_total"), 0.0);
    end(&mut server);
}

#[test]
fn memory_that_runs_out_ends_the_engine_alone_and_the_next_one_has_less() {
    let Some(group) = Group::limited(LIMIT) else { return };
    let model = ExpertModel::new();
    let requests = [sampled(7, 100, 1500), request(8, 400, 1500)];
    let expected = model.undisturbed(&requests);
    let mut server = server(&model, &group);
    let mut streams: Vec<_> = requests.iter().map(|request| Stream::open(&server, PATH, request)).collect();
    streams[0].next().unwrap();
    let mut ballast = Ballast::new(&group);
    let mut events = squeeze(&server, &mut ballast, 32 * MIB, Duration::ZERO, "engine_exit");
    ballast.give_back(6);
    let answers: Vec<_> = streams.into_iter().map(Stream::finish).collect();
    assert_same(&answers, &expected, "after the kernel has ended an engine");
    drop(ballast);
    events.extend(server.past_events());
    let find = |name: &str| {
        events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("{name}: {events:?}"))
    };
    assert_eq!(
        (&find("engine_exit")["cause"], &find("engine_exit")["signal"]),
        (&json!("out_of_memory"), &json!(9))
    );
    let fault = find("fault");
    assert_eq!((&fault["class"], &fault["action"]), (&json!("engine_out_of_memory"), &json!("step_down")));
    let degraded = find("degraded");
    println!("{degraded}");
    assert_eq!(degraded["ladder"], "memory");
    let slots =
        |name: &str| degraded[name].as_str().unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(slots("to") < slots("from"), "{degraded}");
    assert!(server.child.try_wait().unwrap().is_none(), "the front lives");
    end(&mut server);
}
