//! What clients say and which keys they have is in no log, event, metric or file.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::processes::signal_to;
use crate::streams::Stream;
use crate::support::{Server, signal, wait};

/// A word that nothing else has, also not in another case.
const MARKER: &str = "Quaxolotl";
const KEY: &str = "key-of-Quaxolotl";
/// A prompt as token ids: in this order they are nowhere else.
const IDS: [u32; 5] = [1733, 1931, 1567, 1889, 1601];

/// All text below a folder that has the marker or the ids, with the names of its files.
fn found(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(self::found(&path));
        } else if !path.ends_with("keys") {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
            found.extend(betrays(&text).map(|line| format!("{}: {line}", path.display())));
        }
        found.extend(betrays(&path.display().to_string()));
    }
    found
}

/// The first line that says what it must not.
fn betrays(text: &str) -> Option<String> {
    let ids = IDS.map(|id| id.to_string());
    let says = |line: &&str| {
        line.to_lowercase().contains(&MARKER.to_lowercase())
            || line.contains(&ids.join(", "))
            || line.contains(&ids.join(","))
    };
    text.lines().find(says).map(str::to_owned)
}

/// Requests with the marker wherever text can be, good ones and bad ones.
fn requests() -> Vec<(&'static str, Value)> {
    let (chat, text) = ("/v1/chat/completions", "/v1/completions");
    let message =
        json!([{"role": "user", "content": format!("Tell me of {MARKER}, the sage."), "name": MARKER}]);
    let tool = json!([{"type": "function", "function": {"name": MARKER, "parameters": {"type": "object"}}}]);
    vec![
        (chat, json!({"messages": message, "max_tokens": 12, "logprobs": true})),
        (
            chat,
            json!({"messages": message, "max_tokens": 12, "stream": true, "stop": [MARKER], "tools": tool}),
        ),
        (chat, json!({"messages": message, "max_tokens": -5})),
        (chat, json!({"messages": MARKER})),
        (chat, json!({"messages": [{"role": MARKER, "content": MARKER}], MARKER: MARKER, "max_tokens": 3})),
        (chat, json!({"messages": message, "chat_template_kwargs": {MARKER: MARKER}, "max_tokens": 3})),
        (
            text,
            json!({"prompt": format!("Once {MARKER} went"), "max_tokens": 12, "echo": true, "user": MARKER}),
        ),
        (text, json!({"prompt": IDS, "max_tokens": 12, "logprobs": 2})),
        (text, json!({"prompt": MARKER.repeat(4000), "max_tokens": 12})),
        (text, json!({"prompt": MARKER, "model": MARKER, "max_tokens": 3})),
    ]
}

#[test]
fn prompts_and_keys_are_in_no_log_event_metric_or_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("keys"), KEY).unwrap();
    let (log, keys, trace) = (path("log"), path("keys"), path("experts.trace"));
    let variables = [("XDG_CACHE_HOME", &*path("cache")), ("TMPDIR", folder.path().to_str().unwrap())];
    let args = ["--log", "trace", "--context", "1024", "--api-key-file", &keys, "--expert-trace", &trace];
    let streamed = ["--stream-experts", "on", "--expert-cache", "16"];
    let args: Vec<&str> = args.into_iter().chain(streamed).collect();
    let mut server = Server::start_with_log(&variables, &args, Path::new(&log));
    let mut statuses = Vec::new();
    for (path, body) in requests() {
        let (status, _) = server.request("POST", &format!("{path}?of={MARKER}"), KEY, &body);
        statuses.push(status);
    }
    statuses.push(server.request("POST", "/v1/completions", MARKER, &json!({"prompt": MARKER})).0);
    statuses.push(server.send(format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 9\r\n\r\n{MARKER}").as_bytes()).0);
    println!("{statuses:?}");
    assert!(statuses.contains(&200) && statuses.contains(&400) && statuses.contains(&401), "{statuses:?}");
    resumed(&server);

    let (_, metrics) = server.request("GET", "/metrics", KEY, &Value::Null);
    assert!(metrics.contains("unfazed_"), "{metrics}");
    assert_eq!(betrays(&metrics), None, "a metric");
    signal(&server.child, Signal::TERM);
    assert!(wait(&mut server.child).success());
    let events: Vec<String> =
        std::iter::from_fn(|| server.next_event()).map(|event| event.to_string()).collect();
    assert!(events.iter().any(|event| event.contains("request_resumed")), "{events:?}");
    assert_eq!(events.iter().find_map(|event| betrays(event)), None, "an event");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("TRACE") && text.contains("DEBUG"), "the log is not the most verbose one");
    assert!(Path::new(&path("cache")).join("unfazed").is_dir(), "nothing was kept");
    assert_eq!(found(folder.path()), Vec::<String>::new());
}

/// A stream that goes on in another engine: what is told of deaths must not tell of the request.
fn resumed(server: &Server) {
    let body =
        json!({"prompt": format!("{MARKER} said"), "max_tokens": 200, "ignore_eos": true, "logprobs": 0});
    let mut stream = Stream::open_with_key(server, "/v1/completions", KEY, &body);
    while stream.next() == Some(0) {}
    signal_to(server.engine(), Signal::KILL);
    let answer = stream.finish();
    assert_eq!(answer.error, Value::Null);
}
