//! A request that kills every engine that computes it ends by name, and nobody else notices. Needs the feature
//! `fault-plan`.

#![cfg(target_os = "linux")]
// A test ends by panicking; clippy's exemption covers test functions only, not what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "program/processes.rs"]
mod processes;
#[path = "program/streams.rs"]
mod streams;
#[path = "program/support.rs"]
mod support;

use std::thread;

use serde_json::{Value, json};

use streams::{Answer, Stream, Tally};
use support::Server;

/// A token that no tokenizer makes of text and that no innocent request may draw.
const DEADLY: u32 = 7;
const INNOCENT: usize = 15;
const SERVER: [&str; 6] = ["--context", "512", "--parallel", "16", "--prefill-chunk", "32"];

/// A chat with log probabilities, each number another one.
fn innocent(number: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me a story of rain. ".repeat(1 + number * 3)}],
        "max_tokens": 150,
        "ignore_eos": true,
        "temperature": 0.8,
        "seed": number,
        "logit_bias": {DEADLY.to_string(): -100},
        "logprobs": true,
        "top_logprobs": 3,
    })
}

/// What the innocent requests get, with `beside` run once they all have tokens.
fn innocent_answers(server: &Server, beside: impl FnOnce()) -> Vec<Answer> {
    let tallies: Vec<Tally> = (0..INNOCENT).map(|_| Tally::default()).collect();
    thread::scope(|scope| {
        let follow = |(number, tally)| {
            let stream = Stream::open(server, "/v1/chat/completions", &innocent(number));
            scope.spawn(move || Tally::follow(tally, stream, number as u64))
        };
        let threads: Vec<_> = tallies.iter().enumerate().map(follow).collect();
        for tally in &tallies {
            tally.wait_for_tokens(1);
        }
        beside();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_request_that_kills_its_engine_is_failed_by_name_and_fifteen_others_equal_undisturbed_ones() {
    let undisturbed = innocent_answers(&Server::start(&SERVER), || ());
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    std::fs::write(&plan, json!({"abort_on_token": DEADLY}).to_string()).unwrap();
    let server = Server::start(&[&SERVER[..], &["--fault-plan", plan.to_str().unwrap()]].concat());
    // It gets somewhere before it kills for the first time.
    let mut prompt: Vec<u32> = (100..170).collect();
    prompt.push(DEADLY);
    let disturbed = innocent_answers(&server, || {
        let (status, body) = server.request("POST", "/v1/completions", "", &json!({"prompt": prompt}));
        assert_eq!(status, 500, "{body}");
        let error = &serde_json::from_str::<Value>(&body).unwrap()["error"];
        assert_eq!(error["code"], "request_kills_engine", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("by itself") && message.contains("signal 6"), "{message}");
        println!("{message}");
    });
    for (number, (answer, expected)) in disturbed.iter().zip(&undisturbed).enumerate() {
        assert_eq!(expected.error, Value::Null);
        answer.assert_equals(expected, &format!("innocent request {number}"));
    }
    assert_eq!(server.metric("unfazed_requests_quarantined_total"), 1.0);
    assert!(!server.ask("Tell me about rain.", 12).is_empty(), "the next request is served");
}
