//! Who may come in, health, queues, errors.

use std::io::{Read, Write};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::guard::{Guard, chat};
use crate::made_up::{Does, Life, Plan, chat_text};
use crate::support::{status_and_body, until};

const CHAT: &str = "/v1/chat/completions";

fn raw(guard: &Guard, head: &str) -> (u16, String, String) {
    let mut socket = guard.server.connect();
    socket.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let (status, body) = status_and_body(&answer);
    let head = String::from_utf8(answer).unwrap().split("\r\n\r\n").next().unwrap().to_lowercase();
    (status, head, body)
}

#[test]
fn pages_from_elsewhere_and_names_that_were_made_to_point_here_are_kept_out() {
    let guard = Guard::of(&Plan::default(), &["--allowed-host", "box.example"]);
    let get =
        |host: &str, more: &str| raw(&guard, &format!("GET /v1/models HTTP/1.1\r\nHost: {host}{more}")).0;
    assert_eq!(get("127.0.0.1", ""), 200);
    assert_eq!(get("box.example", ""), 200);
    assert_eq!(get("evil.example", ""), 403);
    assert_eq!(get("127.0.0.1", "\r\nOrigin: https://evil.example"), 403);
    // Its own page may.
    assert_eq!(get("127.0.0.1:1", "\r\nOrigin: http://127.0.0.1:1"), 200);
}

#[test]
fn keys_of_the_guard_are_asked_for_and_health_is_open() {
    let guard = Guard::of(&Plan::default(), &["--api-key", "secret"]);
    let (status, body) = guard.server.request("POST", CHAT, "", &chat("hello", 5));
    assert_eq!(status, 401, "{body}");
    assert_eq!(guard.server.request("POST", CHAT, "secret", &chat("hello", 5)).0, 200);
    assert_eq!(guard.server.request("GET", "/guard/status", "", &Value::Null).0, 401);
    let (status, body) = guard.server.request("GET", "/health", "", &Value::Null);
    assert_eq!((status, body.contains("evidence")), (200, false), "{body}");
}

#[test]
fn health_is_the_servers_own_and_stays_well_while_it_is_started_again() {
    let lives = vec![Life::default(), Life::new(0, Does::NeverUp), Life::new(0, Does::NeverUp)];
    let guard = Guard::started(&Plan { lives, ..Plan::default() }, &[]);
    let health = || {
        let (status, body) = guard.server.request("GET", "/health", "", &Value::Null);
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let (status, body) = health();
    assert!(status == 503 && body["guard"]["state"] == "starting" || status == 200, "{body}");
    guard.server.event("guard_ready");
    let (status, body) = health();
    assert_eq!((status, &body["own"], &body["guard"]["state"]), (200, &json!("words"), &json!("ready")));
    guard.kill(Signal::KILL);
    until("the guard knows", || health().1["guard"]["state"] == "restarting");
    let (status, body) = health();
    assert_eq!((status, &body["status"]), (200, &json!("ok")));
    assert_eq!(body["guard"]["last_exit"], json!({"cause": "signal", "code": null, "signal": 9}));
}

#[test]
fn a_request_waits_for_so_long_and_in_so_many_places_and_is_told_when_to_come_again() {
    let lives = vec![Life::new(0, Does::NeverUp); 3];
    let guard =
        Guard::started(&Plan { lives, ..Plan::default() }, &["--queue-seconds", "1", "--max-queue", "1"]);
    let body = chat("hello", 5).to_string();
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}", body.len());
    let ask = || {
        let mut socket = guard.server.connect();
        socket.write_all(format!("{head}\r\nConnection: close\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    };
    std::thread::scope(|scope| {
        let answers: Vec<_> =
            [(); 4].map(|()| scope.spawn(ask)).into_iter().map(|a| a.join().unwrap()).collect();
        let with = |code: &str| answers.iter().filter(|answer| answer.contains(code)).count();
        assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 503")), "{answers:?}");
        assert!(answers.iter().all(|answer| answer.to_lowercase().contains("retry-after: ")), "{answers:?}");
        assert!(with("engine_unavailable") >= 1 && with("queue_full") >= 1, "{answers:?}");
    });
}

#[test]
fn errors_of_requests_are_the_servers_own() {
    let guard = Guard::of(&Plan::default(), &[]);
    let (status, body) = guard.server.request("GET", "/no/such/path", "", &Value::Null);
    assert_eq!((status, body.contains("there is no such path")), (404, true), "{body}");
    let (status, body) = guard.server.request("GET", "/props", "", &Value::Null);
    assert_eq!(status, 404, "{body}");
}

/// What a client that left was waiting for is not computed to its end.
#[test]
fn a_client_that_leaves_ends_its_request() {
    let guard = Guard::of(&Plan::default(), &[]);
    let mut stream = guard.stream(CHAT, &chat("hello", 1_000_000));
    stream.until_text(10);
    assert_eq!(guard.status()["requests"], 1);
    drop(stream);
    until("the request has ended", || guard.status()["requests"] == 0);
    guard.read(CHAT, &chat("hello", 20)).assert_whole(&chat_text("hello", 20));
}
