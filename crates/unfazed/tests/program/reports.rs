//! What users of other servers report, acted out: each test bears the name of the report, as project and number.

use std::io::Read;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::processes::{signal_to, until_stopped};
use crate::streams::Stream;
use crate::support::{Server, chat, status_and_body, until};

const PATH: &str = "/v1/completions";

fn completion(max_tokens: usize) -> Value {
    json!({"prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": true, "temperature": 0})
}

/// The text of an answer that is not streamed.
fn text_of((status, body): (u16, String)) -> String {
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// The answer to a request during which the engine is ended so many times, each time while it is being computed.
fn while_killed(server: &Server, times: usize, signal: Signal, body: &Value) -> (u16, String) {
    let mut answer = server.open("POST", PATH, "", body);
    for _ in 0..times {
        until("the engine computes", || server.metric("unfazed_requests_running") > 0.0);
        thread::sleep(Duration::from_millis(30));
        let restarts = server.metric("unfazed_engine_restarts_total");
        signal_to(server.engine(), signal);
        until("another engine is started", || server.metric("unfazed_engine_restarts_total") > restarts);
    }
    let mut bytes = Vec::new();
    answer.read_to_end(&mut bytes).unwrap();
    status_and_body(&bytes)
}

/// "llama runner process no longer running", and the client gets 500.
#[test]
fn ollama_14983_a_runner_that_terminates_costs_its_client_nothing() {
    let server = Server::start(&[]);
    let expected = text_of(server.request("POST", PATH, "", &completion(400)));
    let body = completion(400);
    let answer = while_killed(&server, 3, Signal::KILL, &body);
    assert_eq!(text_of(answer), expected);
}

/// The runner's panic closes a channel, and the server that waits on it panics too.
#[test]
fn mistralrs_44_an_engine_that_aborts_takes_no_server_with_it() {
    let mut server = Server::start(&[]);
    let expected = text_of(server.request("POST", PATH, "", &completion(300)));
    let body = completion(300);
    let answer = while_killed(&server, 1, Signal::ABORT, &body);
    assert_eq!(text_of(answer), expected);
    assert!(server.child.try_wait().unwrap().is_none(), "the server lives");
}

/// A failed state needed a person; requests during a start got an empty 400.
#[test]
fn llama_swap_92_no_state_needs_a_person_and_requests_wait_while_an_engine_starts() {
    let server = Server::launch(&[]);
    // It listens and has loaded nothing yet.
    let first = text_of(server.request("POST", PATH, "", &completion(20)));
    assert!(!first.is_empty());
    for _ in 0..4 {
        let engine = server.engine();
        signal_to(engine, Signal::KILL);
        assert_eq!(text_of(server.request("POST", PATH, "", &completion(20))), first);
        until("it is another engine", || server.engine_if_started().is_some_and(|now| now != engine));
    }
    let (status, health) = server.request("GET", "/health", "", &Value::Null);
    let health: Value = serde_json::from_str(&health).unwrap();
    assert_eq!((status, &health["restarts"]), (200, &json!(4)), "{health}");
}

/// The first request after the engine's death was answered with 400, as if it were the client's fault, and all others with 503.
#[test]
fn strata_400_then_503_a_dead_engine_is_never_a_clients_fault_and_later_requests_are_served() {
    let server = Server::start(&[]);
    let long =
        json!({"prompt": "rain ".repeat(300), "max_tokens": 200, "ignore_eos": true, "temperature": 0});
    let expected = text_of(server.request("POST", PATH, "", &long));
    // In the prompt, where that engine died.
    let answer = while_killed(&server, 2, Signal::ABORT, &long);
    assert_eq!(text_of(answer), expected);
    for _ in 0..3 {
        let (status, body) =
            server.request("POST", "/v1/chat/completions", "", &chat("Tell me about rain.", 10));
        assert_eq!(status, 200, "{body}");
    }
}

/// `/health` answered 200 for hours while nothing was computed.
#[test]
fn vllm_54629_an_engine_that_is_alive_and_gets_nowhere_is_replaced() {
    let server = Server::start(&["--stall-ms", "700"]);
    let expected = text_of(server.request("POST", PATH, "", &completion(200)));
    let stream = Stream::open(&server, PATH, &completion(200));
    let engine = server.engine();
    signal_to(engine, Signal::STOP);
    until_stopped(engine);
    let exit = server.event("engine_exit");
    assert_eq!(exit["cause"], "stalled", "{exit}");
    let fault = server.event("fault");
    assert_eq!(
        (&fault["class"], &fault["action"]),
        (&json!("engine_stalled"), &json!("new_engine")),
        "{fault}"
    );
    assert_eq!(stream.finish().choices[&0].text, expected);
}

/// A memory guard's refusal looked like a crash: a request that does not fit says what would.
#[test]
fn omlx_2321_a_request_that_cannot_fit_is_refused_with_its_reason_and_the_server_goes_on() {
    let server = Server::start(&["--context", "256"]);
    let body = json!({"prompt": "rain ".repeat(2000), "max_tokens": 10});
    let (status, body) = server.request("POST", PATH, "", &body);
    let error: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 400, "{body}");
    assert!(error["error"]["message"].as_str().unwrap().contains("256"), "{body}");
    assert!(!text_of(server.request("POST", PATH, "", &completion(10))).is_empty());
}

/// Who asks why it was slow is told where the time went.
#[test]
fn where_a_requests_time_went_is_told_with_the_engines_that_it_lost() {
    let server = Server::start(&[]);
    text_of(while_killed(&server, 2, Signal::KILL, &completion(300)));
    let (status, body) = server.request("GET", "/v1/status", "", &Value::Null);
    let state: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200, "{body}");
    let ended = &state["ended"][0];
    assert_eq!((&ended["engines_lost"], &ended["generated_tokens"]), (&json!(2), &json!(300)), "{body}");
    let parts = ["queue_percent", "restart_percent", "storage_percent", "compute_percent"];
    let sum: f64 = parts.iter().map(|part| ended[part].as_f64().unwrap()).sum();
    assert!((99.0..101.0).contains(&sum) && ended["restart_percent"].as_f64().unwrap() > 0.0, "{ended}");
    assert_eq!(state["faults"][0]["evidence"], "signal 9", "{body}");
}
