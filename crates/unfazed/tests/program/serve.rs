//! Events, answers, signals, the engine's end.

use std::io::{BufReader, Read};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Server, chat, first_text, program, signal, text, wait};
#[cfg(target_os = "linux")]
use crate::{
    processes::{runs, signal_to},
    support::until,
};

#[test]
fn the_ready_event_on_a_pipe_says_port_model_and_effective_settings() {
    let server = Server::start(&["--alias", "demo", "--context", "512", "-np", "2", "--api-key", "k"]);
    let ready = &server.ready;
    assert_ne!(server.port, 0);
    assert_eq!(ready["model"], "demo");
    assert_eq!(ready["vision"], false);
    let partition = &ready["partition"];
    assert_eq!(partition["gpu_layers"], 0);
    assert_eq!(partition["cpu_layers"], partition["total_layers"]);
    assert!(partition["total_layers"].as_u64().unwrap() > 0);
    let settings = &ready["settings"];
    assert_eq!(settings["context"], 512);
    assert_eq!(settings["parallel"], 2);
    assert_eq!(settings["api_key"], true);
    assert!(settings["threads"].as_u64().unwrap() > 0);
}

#[test]
fn the_demo_model_answers_in_words() {
    let server = Server::start(&[]);
    let answer = server.ask("Tell me a story about a cat.", 40);
    let words = answer.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count();
    assert!(words >= 15, "{answer}");
}

#[test]
fn a_key_opens_everything_and_without_it_only_health_answers() {
    let server = Server::start(&["--api-key", "secret"]);
    let question = chat("Hi", 1);
    assert_eq!(server.request("POST", "/v1/chat/completions", "secret", &question).0, 200);
    assert_eq!(server.request("POST", "/v1/chat/completions", "other", &question).0, 401);
    assert_eq!(server.request("GET", "/v1/models", "", &Value::Null).0, 401);
    assert_eq!(server.request("GET", "/health", "", &Value::Null).0, 200);
}

#[test]
fn ctrl_c_lets_a_running_stream_end_and_then_ends_with_0() {
    let mut server = Server::start(&[]);
    let mut stream = server.stream(60);
    first_text(&mut stream);
    signal(&server.child, Signal::INT);
    let draining = server.event("draining");
    assert_eq!(draining["requests"], 1);
    let (status, _) = server.request("GET", "/health", "", &Value::Null);
    assert_eq!(status, 503, "a draining server is not healthy");
    ends_with(&mut stream, "\"finish_reason\":\"length\"");
    has_ended(&mut server, 0);
}

#[test]
fn sigterm_ends_an_idle_server_with_0() {
    let mut server = Server::start(&[]);
    signal(&server.child, Signal::TERM);
    server.event("shutdown");
    assert_eq!(wait(&mut server.child).code(), Some(0));
}

#[test]
fn a_server_told_to_end_refuses_new_requests_and_lets_running_and_queued_ones_end() {
    let mut server = Server::start(&["--parallel", "1"]);
    let mut running = server.stream(200);
    first_text(&mut running);
    let mut queued = server.stream(20);
    until_queued(&server);
    signal(&server.child, Signal::TERM);
    assert_eq!(server.event("draining")["requests"], 2);
    let (status, body) = server.request("POST", "/v1/chat/completions", "", &chat("Hi", 1));
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("\"shutting_down\""), "{body}");
    for stream in [&mut running, &mut queued] {
        ends_with(stream, "\"finish_reason\":\"length\"");
    }
    has_ended(&mut server, 0);
}

/// The rest of a stream has this and a proper end.
fn ends_with(stream: &mut BufReader<TcpStream>, word: &str) {
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(word), "{rest}");
    assert!(rest.trim_end().ends_with("data: [DONE]"), "{rest}");
}

/// The server says how many requests it left, and ends well.
fn has_ended(server: &mut Server, unfinished: usize) {
    assert_eq!(server.event("shutdown")["unfinished_requests"], unfinished);
    assert_eq!(wait(&mut server.child).code(), Some(0));
}

fn until_queued(server: &Server) {
    crate::support::until("a request waits", || server.metric("unfazed_requests_queued") == 1.0);
}

/// A server whose engine is stopped while it loads, and the engine. An engine that was faster is left to itself.
#[cfg(target_os = "linux")]
fn loading(args: &[&str]) -> (Server, rustix::process::Pid) {
    loop {
        let server = Server::launch(args);
        // Before it is a program of its own its parent waits for it and could not end.
        let is_engine = |pid: &u32| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).nth(1) == Some(b"engine")
        };
        let engine = loop {
            if let Some(engine) = server.engine_if_started().filter(is_engine) {
                break rustix::process::Pid::from_raw(i32::try_from(engine).unwrap()).unwrap();
            }
        };
        rustix::process::kill_process(engine, Signal::STOP).unwrap();
        if server.request("GET", "/health", "", &Value::Null).0 == 503 {
            return (server, engine);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_that_loads_ends_with_a_word_to_those_who_wait_for_it() {
    let (mut server, _) = loading(&["--drain-seconds", "0"]);
    let mut stream = server.stream(10);
    until_queued(&server);
    signal(&server.child, Signal::TERM);
    ends_with(&mut stream, "\"shutting_down\"");
    has_ended(&mut server, 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_ctrl_c_ends_a_server_that_loads_at_once() {
    let (mut server, engine) = loading(&[]);
    let _stream = server.stream(10);
    until_queued(&server);
    signal(&server.child, Signal::INT);
    assert_eq!(server.event("draining")["requests"], 1);
    signal(&server.child, Signal::INT);
    assert_eq!(wait(&mut server.child).code(), Some(130));
    rustix::process::kill_process(engine, Signal::CONT).unwrap();
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let mut server = Server::start(&[]);
    let mut stream = server.stream(2000);
    first_text(&mut stream);
    signal(&server.child, Signal::INT);
    server.event("draining");
    signal(&server.child, Signal::INT);
    assert_eq!(wait(&mut server.child).code(), Some(130));
}

#[test]
fn the_drain_time_bounds_how_long_a_stream_may_go_on() {
    let mut server = Server::start(&["--drain-seconds", "0"]);
    let mut stream = server.stream(2000);
    first_text(&mut stream);
    signal(&server.child, Signal::TERM);
    ends_with(&mut stream, "\"error\"");
    has_ended(&mut server, 1);
}

#[test]
fn a_server_outlives_the_reader_of_its_events() {
    let mut command = program(&["serve", "--port", "0", "--log-format", "json"]);
    let mut child = command.spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    drop(child.stdout.take());
    // The first event cannot be written; the warning about it says that the server goes on.
    let mut log = Vec::new();
    let mut part = [0; 4096];
    while !text(&log).contains("\"url\":") {
        let read = stderr.read(&mut part).unwrap();
        assert_ne!(read, 0, "the server ended: {}", text(&log));
        log.extend_from_slice(&part[..read]);
    }
    assert!(text(&log).contains("events can no longer be written"), "{}", text(&log));
    signal(&child, Signal::TERM);
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn events_can_be_turned_off() {
    let mut child =
        program(&["serve", "--port", "0", "--events", "off", "--log-format", "json"]).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let mut log = Vec::new();
    let mut part = [0; 4096];
    while !text(&log).contains("\"url\":") {
        let read = stderr.read(&mut part).unwrap();
        assert_ne!(read, 0, "the server ended: {}", text(&log));
        log.extend_from_slice(&part[..read]);
    }
    for line in text(&log).lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    signal(&child, Signal::TERM);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(text(&ended.stdout), "");
    assert_eq!(ended.status.code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn the_engine_ends_when_its_server_is_killed() {
    let mut server = Server::start(&[]);
    let engine = server.engine();
    assert!(runs(engine));
    let mut stream = server.stream(2000);
    first_text(&mut stream);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    until("the engine has ended", || !runs(engine));
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_in_a_terminal_does_not_reach_the_engine() {
    let server = Server::start(&[]);
    let group = |pid: u32| {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::getpgid(Some(pid)).unwrap()
    };
    assert_ne!(group(server.engine()), group(server.child.id()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_engine_is_replaced_and_the_server_answers_the_same_again() {
    let server = Server::start(&[]);
    let before = server.ask("Tell me about rain.", 12);
    signal_to(server.engine(), Signal::KILL);
    assert_eq!(server.event("engine_exit")["signal"], 9);
    server.event("engine_ready");
    assert_eq!(server.ask("Tell me about rain.", 12), before);
}

#[cfg(target_os = "linux")]
#[test]
fn the_engine_is_the_first_to_go_when_memory_runs_out() {
    let server = Server::start(&[]);
    let score = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    let parse = |text: String| text.trim().parse::<i32>().unwrap();
    assert!(parse(score(server.engine())) > parse(score(server.child.id())));
}

#[test]
fn completions_take_token_ids_and_give_as_many_tokens_as_asked() {
    let server = Server::start(&[]);
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": true});
    let (status, answer) = server.request("POST", "/v1/completions", "", &body);
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["usage"]["completion_tokens"], 5);
}
