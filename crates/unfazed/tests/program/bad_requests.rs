//! Requests that are wrong, too large, too slow or left: each is refused by its name, and the next one is served.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::support::{Server, chat, first_text, until};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The next request is served.
fn serves(server: &Server) {
    let (status, body) = server.request("POST", COMPLETIONS, "", &json!({"prompt": "Once", "max_tokens": 1}));
    assert_eq!(status, 200, "{body}");
}

/// Asserts that an answer is an error in OpenAI's shape.
fn assert_error(answer: (u16, String), status: u16, code: &str, named: &str) {
    let (found, body) = answer;
    assert_eq!(found, status, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    let error = &body["error"];
    assert!(error["type"].is_string() && error.get("param").is_some(), "{body}");
    assert_eq!(error["code"], code, "{body}");
    assert!(error["message"].as_str().unwrap().contains(named), "{body}");
}

/// A request that closes its connection.
fn request(start: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{start} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    request(&format!("POST {path}"), "", body)
}

#[test]
fn bodies_that_are_wrong_are_400_by_field_and_value() {
    let server = Server::start(&["--context", "512", "--max-queue", "64"]);
    let hello = chat("Hi", 1);
    let with = |name: &str, value: Value| {
        let mut body = hello.clone();
        body[name] = value;
        body.to_string()
    };
    let prompt = |prompt: Value| json!({"prompt": prompt, "max_tokens": 1}).to_string();
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let wrong = "invalid_value";
    for (path, body, code, named) in [
        (CHAT, "{\"messages\": [".to_owned(), "invalid_json", "line 1"),
        (CHAT, String::new(), "invalid_json", "JSON"),
        (COMPLETIONS, "[1, 2]".to_owned(), "invalid_json", "JSON object"),
        (CHAT, with("messages", json!("Hi")), wrong, "messages is \"Hi\""),
        (CHAT, with("messages", json!([1])), wrong, "messages[0] is 1"),
        (CHAT, with("messages", json!([{"role": "user", "content": 7}])), wrong, "content is 7"),
        (CHAT, with("temperature", json!("hot")), wrong, "temperature is \"hot\""),
        (CHAT, with("max_tokens", json!(-2)), wrong, "max_tokens is -2"),
        (CHAT, with("stream", json!(1)), wrong, "stream is 1"),
        (CHAT, with("stop", json!([""])), wrong, "stop"),
        (CHAT, with("messages", json!([])), wrong, "messages is missing or empty"),
        (COMPLETIONS, prompt(json!([])), wrong, "prompt has no tokens"),
        (COMPLETIONS, prompt(Value::Null), wrong, "prompt is missing"),
        (COMPLETIONS, prompt(json!([1, 99_999_999])), wrong, "token id 99999999"),
        (COMPLETIONS, prompt(json!([1, -1])), wrong, "prompt is [1,-1]"),
        (COMPLETIONS, prompt(json!([1, 1.5])), wrong, "prompt is [1,1.5]"),
        (COMPLETIONS, prompt(json!("story ".repeat(600))), "context_length_exceeded", "512"),
        (COMPLETIONS, prompt(json!("story ".repeat(1 << 20))), "context_length_exceeded", "512"),
        (COMPLETIONS, prompt(json!(vec![1; 1 << 20])), "context_length_exceeded", "1048576 tokens"),
        (CHAT, chat(&"story ".repeat(1 << 20), 1).to_string(), "context_length_exceeded", "512"),
        (CHAT, with("n", json!(10_000)), wrong, "n is 10000"),
        (CHAT, with("n", json!(100)), wrong, "at most"),
        (CHAT, format!("{{\"messages\": {}}}", nested(100_000)), "invalid_json", "nested over 128 levels"),
        (
            COMPLETIONS,
            format!("{{\"unknown\": {}}}", nested(100_000)),
            "invalid_json",
            "nested over 128 levels",
        ),
        (COMPLETIONS, format!("{{\"prompt\": {}}}", nested(100)), wrong, "prompt is [[["),
        (CHAT, "[".repeat(100_000), "invalid_json", "nested over 128 levels"),
    ] {
        let answer = server.send(&post(path, body.as_bytes()));
        assert_error(answer, 400, code, named);
        serves(&server);
    }
}

#[test]
fn what_is_no_text_is_refused_in_a_body_in_a_path_and_in_a_header() {
    let server = Server::start(&[]);
    let headers =
        |headers: &[u8]| [b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n", headers, b"\r\n\r\n"].concat();
    assert_error(server.send(&post(COMPLETIONS, b"{\"prompt\": \"\xff\"}")), 400, "invalid_json", "JSON");
    serves(&server);
    assert_error(server.send(&request("GET /v1/models/%ff", "", b"")), 400, "invalid_value", "path");
    serves(&server);
    assert_error(server.send(&headers(b"Host: \xff")), 403, "host_not_allowed", "Host");
    serves(&server);
    assert_error(server.send(&headers(b"Host: evil.example")), 403, "host_not_allowed", "\"evil.example\"");
    serves(&server);
    let answer = server.send(&headers(b"Host: localhost\r\nOrigin: \xff"));
    assert_error(answer, 403, "origin_not_allowed", "Origin");
    serves(&server);
    let resumable = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nUnfazed-Resumable: \xff\r\n\
        Connection: close\r\nContent-Length: 2\r\n\r\n{}";
    assert_error(server.send(resumable), 400, "invalid_value", "Unfazed-Resumable is");
    serves(&server);
    // A header that nobody looks at may hold anything.
    assert_eq!(server.send(&headers(b"Host: localhost\r\nX: \xff")).0, 200);
}

/// hyper answers these itself, before there is a request that could be handed on, and leaves the body empty: it has no
/// way to give it one.
#[test]
fn what_is_no_http_or_has_too_large_a_head_is_refused_by_status() {
    let server = Server::start(&[]);
    let large = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for (bytes, status) in [
        (large.as_bytes(), 431),
        (many.as_bytes(), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS greeting\r\n\r\n".as_slice(), 400),
        (b"\0\0\0\0\r\n\r\n", 400),
        (b"GET /v1/models/\x01 HTTP/1.1\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    ] {
        assert_eq!(server.send(bytes), (status, String::new()));
        serves(&server);
    }
}

#[test]
fn a_body_of_50_mb_is_413_whether_or_not_its_length_is_announced_and_before_it_was_sent() {
    let server = Server::start(&[]);
    let body = vec![b' '; 50_000_000];
    let whole = post(CHAT, &body);
    let head = whole.len() - body.len();
    let mut chunked =
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for part in body.chunks(1_000_000) {
        chunked.extend(format!("{:x}\r\n", part.len()).bytes());
        chunked.extend(part.iter().chain(b"\r\n"));
    }
    chunked.extend(b"0\r\n\r\n");
    // The first one announces a body and sends none.
    for bytes in [&whole[..head], &whole, &chunked] {
        assert_error(server.send(bytes), 413, "request_too_large", "33554432 bytes");
        serves(&server);
    }
}

#[test]
fn a_thousand_slow_senders_keep_nobody_out() {
    const SENDERS: usize = 1000;
    let limit = getrlimit(Resource::Nofile);
    let wanted = SENDERS as u64 + 200;
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).unwrap();
    }
    // Room for fewer connections than there are senders.
    let server = Server::with_open_files(700);
    let mut stream = server.stream(400);
    first_text(&mut stream);
    let half_a_body =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{\"prompt\":";
    for half in ["POST /v1/completions HTTP/1.1\r\nHost: loc", half_a_body] {
        let senders: Vec<TcpStream> = (0..SENDERS)
            .map(|_| {
                let mut socket = server.connect();
                // An earlier one may have been closed already, this one just now.
                let _ = socket.write_all(half.as_bytes());
                socket
            })
            .collect();
        serves(&server);
        // Those that had waited longest made room, long before their time was over, and no others.
        assert!(is_closed(&senders[SENDERS / 2]) && !is_closed(&senders[SENDERS - 1]));
    }
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.trim_end().ends_with("data: [DONE]") && !rest.contains("\"error\""), "{rest}");
}

fn is_closed(socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    !matches!(socket.peek(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn a_client_that_leaves_gives_its_place_back_in_the_queue_in_prefill_and_in_mid_stream() {
    let server = Server::start(&["--parallel", "1", "--prefill-chunk", "1"]);
    let counts = || (server.metric("unfazed_requests_running"), server.metric("unfazed_requests_queued"));
    let running = || until("a request runs", || counts() == (1.0, 0.0));
    let idle = || until("its place is free", || counts() == (0.0, 0.0));
    let context = server.ready["settings"]["context"].as_u64().unwrap();
    let mut stream = server.stream(usize::try_from(context).unwrap());
    first_text(&mut stream);
    running();
    let queued = server.open("POST", CHAT, "", &chat("Hi", 1));
    until("a request waits", || counts() == (1.0, 1.0));
    drop(queued);
    running();
    drop(stream);
    idle();
    let generated = server.metric("unfazed_generated_tokens_total");
    let prompt = vec![1; usize::try_from(context).unwrap() - 1];
    for stream in [false, true] {
        let body = json!({"prompt": prompt, "max_tokens": 1, "ignore_eos": true, "stream": stream});
        let prefill = BufReader::new(server.open("POST", COMPLETIONS, "", &body));
        running();
        drop(prefill);
        idle();
    }
    assert_eq!(server.metric("unfazed_generated_tokens_total"), generated, "it left before its first token");
    serves(&server);
}
