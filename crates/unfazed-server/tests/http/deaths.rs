//! What clients notice when engines die: nothing, but for a request that kills them.

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use unfazed_server::{Event, ServeOptions};
use unfazed_wire::memory::WEIGHTS_OFFSET;
use unfazed_wire::{FinishReason, Start, Submit};

use crate::fake_engine::{Boot, PATIENCE, Step, submits};
use crate::server::{Server, body, chunks, error, options};

const ABORTED: i32 = 6;
/// Short enough to wait for, and long enough for an engine that works to be heard on a busy machine.
const STALL: Duration = Duration::from_secs(1);

/// What an engine does first with a request, and what the next one does that goes on with it.
fn twice(submit: &Submit, first: &[Step], then: &[Step]) -> Vec<Step> {
    if submit.resumed.is_some() { then.to_vec() } else { first.to_vec() }
}

/// The rest of an answer.
fn rest(text: &'static str) -> Vec<Step> {
    vec![Step::Admit(2), Step::Text(text), Step::Finish(FinishReason::Stop)]
}

/// The first part of an answer, and then this.
fn begin(text: &'static str, then: Step) -> Vec<Step> {
    vec![Step::Admit(0), Step::Text(text), then]
}

fn first(submit: &Submit) -> char {
    char::from_u32(submit.prompt[0]).unwrap()
}

fn exit(event: &Event) -> Option<Value> {
    matches!(event, Event::EngineExit { .. }).then(|| serde_json::to_value(event).unwrap())
}

fn text(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect()
}

async fn metrics(server: &Server) -> String {
    server.get("/metrics").send().await.unwrap().text().await.unwrap()
}

/// Waits until a request waits.
async fn until_queued(server: &Server) {
    while !metrics(server).await.lines().any(|line| line == "unfazed_requests_queued 1") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_over_a_death_has_its_tokens_once_each() {
    let script = |submit: &Submit| twice(submit, &begin("so ", Step::Die), &rest("far"));
    let mut server = Server::start(script).await;
    let chunks = chunks(server.complete(json!({"prompt": "x", "stream": true})).await).await;
    assert_eq!(text(&chunks), "so far");
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    let timings = &last["timings"];
    assert!(timings["prompt_ms"] != 10.0 && timings["predicted_ms"] != 30.0, "whole times: {timings}");
    let resumed = server.control.submits().pop().unwrap().resumed.unwrap();
    assert_eq!(resumed.tokens, "so ".bytes().map(u32::from).collect::<Vec<_>>());
    let events = server.events_until(|event| matches!(event, Event::RequestResumed { .. })).await;
    let exit = events.iter().find_map(exit).unwrap();
    assert_eq!((&exit["code"], &exit["signal"], &exit["cause"]), (&json!(3), &Value::Null, &json!("code")));
    assert_eq!((&exit["requests"], &exit["failed_requests"]), (&json!(1), &json!(0)));
    assert!(events.contains(&Event::EngineRestart { attempt: 1, wait_ms: 0 }), "{events:?}");
    let ready =
        Event::EngineReady { load_ms: 1.5, read_bytes: 0, kept_bytes: 2_000, engine: "cpu", gpu_layers: 0 };
    assert!(events.contains(&ready), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, Event::Ready(_))), "ready comes once");
    let resumed = Event::RequestResumed { request: 0, tokens: 3, kept_positions: 2, missing_positions: 2 };
    assert_eq!(events.last(), Some(&resumed));
    assert_lines(
        &metrics(&server).await,
        &[
            "unfazed_engine_exits_total{cause=\"code\"} 1",
            "unfazed_engine_restarts_total 1",
            "unfazed_requests_resumed_total 1",
            "unfazed_positions_kept_total 2",
            "unfazed_positions_recomputed_total 2",
            "unfazed_weights_read_bytes_total 2000",
            "unfazed_weights_kept_bytes_total 2000",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_engine_gets_the_memory_of_the_last_one() {
    let server = Server::start(|submit| twice(submit, &begin("a", Step::Signal(9)), &rest("b"))).await;
    assert_eq!(body(server.complete(json!({"prompt": "x"})).await).await["choices"][0]["text"], "ab");
    let given = server.control.given(|given| (given.inodes(), given.start.clone()));
    assert_eq!(given.len(), 2);
    let (first, second) = (&given[0], &given[1]);
    assert_eq!((&first.0, Start { engine: 2, ..first.1.clone() }), (&second.0, second.1.clone()));
    let start = &given[0].1;
    let weights = WEIGHTS_OFFSET as u64 + 2_000;
    assert_eq!((start.pages, start.weight_memory, start.kv_memory), (14, weights, 4096 + 14 * 32_768));
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_flow_while_an_engine_restarts_and_health_stays_good() {
    let options = ServeOptions { keep_alive: Duration::from_millis(20), ..options() };
    let script = |submit: &Submit| twice(submit, &begin("a", Step::Die), &rest("b"));
    let mut server = Server::launch(options, Boot::Held, script).await;
    server.control.let_load();
    server.ready().await;
    server.control.hold();
    let mut stream = server.complete(json!({"prompt": "x", "stream": true})).await.bytes_stream();
    let mut seen = String::new();
    server.events_until(|event| matches!(event, Event::EngineRestart { .. })).await;
    let health = server.get("/health").send().await.unwrap();
    assert_eq!(health.status(), 200);
    let health = body(health).await;
    assert_eq!(
        (&health["status"], &health["state"], &health["restarts"]),
        (&json!("ok"), &json!("restarting"), &json!(1))
    );
    assert_eq!(health["last_exit"], json!({"cause": "code", "code": 3, "signal": null}));
    let fault = &health["faults"][0];
    assert_eq!(
        (&fault["class"], &fault["action"]),
        (&json!("engine_exited"), &json!("new_engine")),
        "{health}"
    );
    assert_eq!(fault["evidence"], Value::Null, "those without a key are told no more than the class");
    assert_eq!((&health["struck_bytes"], &health["ladder"]["memory"]["rung"]), (&json!(0), &json!(0)));
    while seen.matches(": keep-alive").count() < 3 {
        let block = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
        seen += std::str::from_utf8(&block).unwrap();
    }
    server.control.let_load();
    while let Some(block) = stream.next().await {
        seen += std::str::from_utf8(&block.unwrap()).unwrap();
    }
    assert!(seen.contains("\"text\":\"a\"") && seen.contains("\"text\":\"b\""), "{seen}");
    let health = body(server.get("/health").send().await.unwrap()).await;
    assert_eq!(health["state"], "ready", "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_engine_is_replaced() {
    let options = ServeOptions { stall: STALL, ..options() };
    let script = |submit: &Submit| twice(submit, &begin("a", Step::Hang), &rest("b"));
    let mut server = Server::launch(options, Boot::Normal, script).await;
    server.ready().await;
    assert_eq!(body(server.complete(json!({"prompt": "x"})).await).await["choices"][0]["text"], "ab");
    let events = server.events_until(|event| exit(event).is_some()).await;
    let exit = exit(events.last().unwrap()).unwrap();
    assert_eq!((&exit["cause"], &exit["signal"]), (&json!("stalled"), &json!(9)));
    assert!(exit["message"].as_str().unwrap().starts_with("it made no progress for"), "{exit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_never_says_which_build_it_is_is_replaced() {
    let options = ServeOptions { stall: STALL, ..options() };
    let mut server = Server::launch(options, Boot::StillbornFirst(1), |_| rest("x")).await;
    let events = server.events_until(|event| exit(event).is_some()).await;
    assert_eq!(exit(events.last().unwrap()).unwrap()["cause"], "stalled");
    server.control.let_load();
    server.ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_wait_is_no_stall_and_is_told_once() {
    let options = ServeOptions { stall: STALL, ..options() };
    let script = |_: &Submit| [begin("a", Step::Wait), rest("b")].concat();
    let mut server = Server::launch(options, Boot::Normal, script).await;
    server.ready().await;
    let answer = tokio::spawn(server.post("/v1/completions", &json!({"prompt": "x"})).send());
    // They come every 20 ms, for several times as long as a stall.
    let control = std::sync::Arc::clone(&server.control);
    tokio::task::spawn_blocking(move || control.wait_for_waits(150)).await.unwrap();
    server.control.let_go();
    assert_eq!(body(answer.await.unwrap().unwrap()).await["choices"][0]["text"], "ab");
    server.shut_down();
    let events = server.events_until(|event| matches!(event, Event::Shutdown { .. })).await;
    let waits: Vec<_> = events.iter().filter(|event| matches!(event, Event::Waiting { .. })).collect();
    assert_eq!(waits, [&Event::Waiting { what: "a disk".to_owned(), ms: 1000 }]);
    assert!(!events.iter().any(|event| exit(event).is_some()), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_wait_has_its_own_limit() {
    let options = ServeOptions { storage_patience: Duration::from_millis(300), ..options() };
    let script = |submit: &Submit| twice(submit, &begin("a", Step::Wait), &rest("b"));
    let mut server = Server::launch(options, Boot::Normal, script).await;
    server.ready().await;
    assert_eq!(body(server.complete(json!({"prompt": "x"})).await).await["choices"][0]["text"], "ab");
    let events = server.events_until(|event| exit(event).is_some()).await;
    let exit = exit(events.last().unwrap()).unwrap();
    assert_eq!(exit["cause"], "stalled");
    assert!(exit["message"].as_str().unwrap().contains("it waited for a disk"), "{exit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_an_engine_that_cannot_be_ended_is_not_used_until_it_ends() {
    let options = ServeOptions { stall: STALL, ..options() };
    let script = |submit: &Submit| match first(submit) {
        '!' => twice(submit, &begin("a", Step::Stick), &rest("b")),
        '9' => twice(submit, &begin("a", Step::Signal(9)), &rest("b")),
        _ => rest("x"),
    };
    let mut server = Server::launch(options, Boot::Normal, script).await;
    server.ready().await;
    assert_eq!(body(server.complete(json!({"prompt": "!"})).await).await["choices"][0]["text"], "ab");
    let events = server.events_until(|event| matches!(event, Event::RequestResumed { .. })).await;
    // KV pages and the scratch of the plan; the weights are sealed where a system can seal.
    let weights = if cfg!(target_os = "linux") { 0 } else { 2_000 };
    let bytes = 4096 + 14 * 32_768 + 500 + weights;
    assert!(events.contains(&Event::MemoryStruck { bytes, kv_pages: 7 }), "{events:?}");
    let health = body(server.get("/health").send().await.unwrap()).await;
    assert_eq!((&health["state"], &health["struck_bytes"]), (&json!("degraded"), &json!(bytes)), "{health}");
    assert_lines(
        &metrics(&server).await,
        &[&format!("unfazed_memory_struck_bytes {bytes}"), "unfazed_kv_pages 7"],
    );
    server.control.let_end();
    let events = server.events_until(|event| matches!(event, Event::MemoryReturned { .. })).await;
    assert_eq!(events.last(), Some(&Event::MemoryReturned { bytes }));
    assert_eq!(body(server.complete(json!({"prompt": "9"})).await).await["choices"][0]["text"], "ab");
    let given = server.control.given(|given| (given.inodes(), given.start.pages));
    let pages: Vec<usize> = given.iter().map(|(_, pages)| *pages).collect();
    assert_eq!(pages, [14, 7, 14]);
    assert_ne!(given[0].0.1, given[1].0.1, "the second engine has KV pages of its own");
    assert_eq!(given[0].0.0 == given[1].0.0, cfg!(target_os = "linux"), "and shares sealed weights");
    assert_lines(&metrics(&server).await, &["unfazed_memory_struck_bytes 0", "unfazed_kv_pages 14"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_though_its_engine_cannot_be_ended() {
    let options = ServeOptions { drain: Duration::ZERO, ..options() };
    let mut server = Server::launch(options, Boot::Normal, |_| begin("a", Step::Stick)).await;
    server.ready().await;
    let stream = server.complete(json!({"prompt": "x", "stream": true})).await;
    server.control.wait_for("the request", |messages| submits(messages).into_iter().next());
    server.shut_down();
    assert_eq!(chunks(stream).await.last().unwrap()["error"]["code"], "shutting_down");
    server.result().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_engines_die_of_before_they_are_ready_is_replaced() {
    let mut server = Server::launch(options(), Boot::DiesOfMemory, |_| rest("x")).await;
    let answer = tokio::spawn(server.post("/v1/completions", &json!({"prompt": "x"})).send());
    until_queued(&server).await;
    server.control.let_load();
    let events = server.events_until(|event| matches!(event, Event::Ready(_))).await;
    assert_eq!(events.iter().filter(|event| exit(event).is_some()).count(), 3, "{events:?}");
    assert_eq!(body(answer.await.unwrap().unwrap()).await["choices"][0]["text"], "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_fails_by_the_machines_fault_is_tried_again_and_no_request_is_lost() {
    let script = |submit: &Submit| twice(submit, &begin("a", Step::Signal(9)), &rest("b"));
    let mut server = Server::launch(options(), Boot::TroubledSecond, script).await;
    assert_eq!(body(server.complete(json!({"prompt": "x"})).await).await["choices"][0]["text"], "ab");
    let events = server.events_until(|event| matches!(event, Event::EngineReady { .. })).await;
    let exits: Vec<Value> = events.iter().filter_map(exit).collect();
    assert!(exits[1]["message"].as_str().unwrap().contains("the disk is on fire"), "{exits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_tells_more_than_was_asked_for_is_replaced() {
    let script = |submit: &Submit| {
        twice(submit, &begin("abcd", Step::Text("e")), &[Step::Admit(5), Step::Finish(FinishReason::Length)])
    };
    let server = Server::start(script).await;
    let request = json!({"prompt": "x", "max_tokens": 4});
    let answer = body(server.complete(request).await).await;
    assert_eq!(answer["choices"][0]["text"], "abcd", "{answer}");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_cannot_shorten_the_memory_that_it_was_given() {
    let script = |submit: &Submit| twice(submit, &[Step::Shrink, Step::Admit(0), Step::Die], &rest("b"));
    let server = Server::start(script).await;
    assert_eq!(body(server.complete(json!({"prompt": "x"})).await).await["choices"][0]["text"], "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_kills_the_engine_by_itself_fails_by_name_and_no_other_does() {
    let script = |submit: &Submit| match first(submit) {
        '!' => vec![Step::Admit(0), Step::Signal(ABORTED)],
        'a' => twice(submit, &[Step::Admit(0), Step::Text("a")], &rest("b")),
        _ => rest("x"),
    };
    let mut server = Server::start(script).await;
    let other = tokio::spawn(server.post("/v1/completions", &json!({"prompt": "a"})).send());
    server.control.wait_for("the other request", |messages| submits(messages).into_iter().next());
    let (status, code, message) = error(server.complete(json!({"prompt": "!"})).await).await;
    assert_eq!((status, code.as_str()), (500, "request_kills_engine"));
    assert!(message.contains("ended the engine 2 times by itself (signal 6)"), "{message}");
    assert_eq!(body(other.await.unwrap().unwrap()).await["choices"][0]["text"], "ab");
    let events = server.events_until(|event| matches!(event, Event::RequestQuarantined { .. })).await;
    assert!(events.contains(&Event::RequestSuspected { request: 1, deaths: 2 }), "{events:?}");
    assert!(events.contains(&Event::RequestQuarantined { request: 1, deaths: 2 }), "{events:?}");
    let exits: Vec<Value> = events.iter().filter_map(exit).collect();
    assert_eq!(exits.iter().filter(|exit| exit["signal"] == ABORTED).count(), 4, "{exits:?}");
    assert_eq!(exits.last().unwrap()["failed_requests"], 1);
    assert_lines(&metrics(&server).await, &["unfazed_requests_quarantined_total 1"]);
    assert_eq!(body(server.complete(json!({"prompt": "x"})).await).await["choices"][0]["text"], "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_are_told_apart() {
    let script = |submit: &Submit| match first(submit) {
        'c' => twice(submit, &begin("a", Step::Die), &rest("b")),
        's' => twice(submit, &begin("a", Step::Signal(11)), &rest("b")),
        'k' => twice(submit, &begin("a", Step::Signal(9)), &rest("b")),
        _ => twice(submit, &begin("a", Step::HangUp), &rest("b")),
    };
    let mut server = Server::start(script).await;
    let ends = [
        ("c", json!({"cause": "code", "code": 3, "signal": null})),
        ("s", json!({"cause": "signal", "code": null, "signal": 11})),
        ("k", json!({"cause": "signal", "code": null, "signal": 9})),
        ("h", json!({"cause": "link_ended", "code": null, "signal": 9})),
    ];
    for (prompt, expected) in ends {
        assert_eq!(body(server.complete(json!({"prompt": prompt})).await).await["choices"][0]["text"], "ab");
        let events = server.events_until(|event| exit(event).is_some()).await;
        let exit = exit(events.last().unwrap()).unwrap();
        for name in ["cause", "code", "signal"] {
            assert_eq!(exit[name], expected[name], "{name} of {exit}");
        }
        let health = body(server.get("/health").send().await.unwrap()).await;
        assert_eq!(health["last_exit"], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_are_not_given_up_while_a_request_waits() {
    let mut server = Server::launch(options(), Boot::StillbornFirst(5), |_| rest("x")).await;
    let answer = tokio::spawn(server.post("/v1/completions", &json!({"prompt": "x"})).send());
    until_queued(&server).await;
    server.control.let_load();
    assert_eq!(body(answer.await.unwrap().unwrap()).await["choices"][0]["text"], "x");
    let events = server.events_until(|event| matches!(event, Event::Ready(_))).await;
    assert_eq!(events.iter().filter(|event| exit(event).is_some()).count(), 5);
}
