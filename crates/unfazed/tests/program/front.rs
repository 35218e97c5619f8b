//! The front killed or stopped: nothing of it is left, or nothing of it is lost.

use std::collections::BTreeSet;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::processes::{children, holders, holdings, runs, signal_to};
use crate::streams::Stream;
use crate::support::{Server, program, until};

/// Kills a front and waits until nothing is left of it and of its engine.
fn kill_and_watch(front: &mut Child, engine: u32, when: &str) {
    let theirs: BTreeSet<String> = [front.id(), engine].into_iter().flat_map(holdings).collect();
    // Standard error, which they inherited, may be a socket.
    let held = &theirs - &holdings(std::process::id());
    let killed = Instant::now();
    front.kill().unwrap();
    front.wait().unwrap();
    until("the engine has ended", || !runs(engine));
    println!("front killed {when}: its engine ended within {:?}", killed.elapsed());
    until("nobody holds sockets or shared memory of theirs", || holders(&held).is_empty());
}

#[test]
fn nothing_is_left_of_a_front_that_is_killed_while_it_streams() {
    let mut server = Server::start(&[]);
    let engine = server.engine();
    let mut stream = Stream::open(&server, "/v1/chat/completions", &story(1000));
    while stream.next() == Some(0) {}
    let held = holdings(server.child.id());
    let segments = held.iter().filter(|name| name.starts_with("shared memory"));
    assert_eq!(segments.count(), 3, "the demo model, weights and KV pages: {held:?}");
    kill_and_watch(&mut server.child, engine, "while it streams");
}

#[test]
fn nothing_is_left_of_a_front_that_is_killed_while_its_engine_starts_and_loads() {
    for delay in [0, 1, 2, 4, 8, 16] {
        let mut front = program(&["serve", "--port", "0", "--log", "off"]).spawn().unwrap();
        until("an engine is started", || !children(front.id()).is_empty());
        let engine = children(front.id())[0];
        thread::sleep(Duration::from_millis(delay));
        kill_and_watch(&mut front, engine, &format!("{delay} ms after its engine's start"));
    }
}

#[test]
fn a_front_that_was_stopped_for_longer_than_an_engine_may_hang_goes_on_with_its_engine() {
    stop_for_long(|_| Vec::new());
}

#[test]
fn a_machine_that_slept_for_longer_than_an_engine_may_hang_goes_on_where_it_was() {
    stop_for_long(|engine| vec![engine]);
}

/// Stops the front, and some others, in mid stream for longer than any limit.
fn stop_for_long(others: impl Fn(u32) -> Vec<u32>) {
    let server = Server::start(&["--stall-ms", "1500"]);
    let engine = server.engine();
    let undisturbed = Stream::open(&server, "/v1/chat/completions", &story(1200)).finish();
    assert_eq!(undisturbed.error, Value::Null);
    let mut stream = Stream::open(&server, "/v1/chat/completions", &story(1200));
    while stream.next() == Some(0) {}
    let stopped: Vec<u32> = [server.child.id()].into_iter().chain(others(engine)).collect();
    stopped.iter().for_each(|pid| signal_to(*pid, Signal::STOP));
    thread::sleep(Duration::from_secs(5));
    stopped.iter().for_each(|pid| signal_to(*pid, Signal::CONT));
    stream.finish().assert_equals(&undisturbed, "a stream over a stopped front");
    assert!(!server.ask("Tell me about rain.", 12).is_empty());
    assert_eq!(server.engine(), engine);
    assert_eq!(server.metric("unfazed_engine_restarts_total"), 0.0);
}

fn story(tokens: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "max_tokens": tokens,
        "ignore_eos": true,
        "temperature": 0.8,
        "seed": 1,
        "logprobs": true,
    })
}
