//! Chat templates that do not end, or grow for ever: they are programs of whoever made the model file.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use unfazed_formats::gguf::Value as Metadata;
use unfazed_testkit::shape::Preset;
use unfazed_testkit::{Mix, SyntheticModel, vocabulary};

use crate::processes::{all_children, children, runs, signal_to};
use crate::support::{Server, chat, status_and_body, until};

/// What each does that no template should, by name. `fuel` and `time` end them, or the length of what they print.
const HOSTILE: [(&str, &str); 18] = [
    ("loops", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
    (
        "prints",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x' * 4000 }}{% endfor %}{% endfor %}",
    ),
    (
        "doubles",
        "{% set n = namespace(s='x') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    ),
    (
        "adds",
        "{% set n = namespace(s='x') %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
    ),
    ("multiplies", "{{ 'x' * 1000000000 }}"),
    ("multiplies lists", "{{ ([1] * 1000000000) | list | length }}"),
    ("ranges", "{{ range(1000000000) | list | length }}"),
    (
        "replaces",
        "{% set n = namespace(s='x') %}{% for a in range(60) %}{% set n.s = n.s | replace('x', 'xxxx') %}{% endfor %}",
    ),
    (
        "joins",
        "{% set n = namespace(s='x') %}{% for a in range(60) %}{% set n.s = [n.s, n.s, n.s] | join(n.s) %}{% endfor %}",
    ),
    ("indents", "{{ 'x' | indent(2000000000, true) }}"),
    (
        "writes",
        "{% set n = namespace(l=[1]) %}{% for a in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l | tojson }}",
    ),
    (
        "shows",
        "{% set n = namespace(l=[1]) %}{% for a in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
    ),
    (
        "gathers",
        "{% set n = namespace(l=[1]) %}{% for a in range(60) %}{% set n.l = (n.l + n.l) | list %}{% endfor %}",
    ),
    ("calls itself", "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}"),
    (
        "nests",
        "{% set n = namespace(l=[]) %}{% for a in range(90000) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l | tojson }}",
    ),
    // Work that nothing counts: only the time ends it.
    (
        "counts a chain",
        "{% set n = namespace(l=[1]) %}{% for a in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}{{ n.l | length }}",
    ),
    (
        "compares",
        "{% set n = namespace(a=[1], b=[1]) %}{% for a in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
    ),
    (
        "looks for",
        "{% set n = namespace(l=[1]) %}{% for a in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}{{ 2 in n.l }}",
    ),
];
/// Most memory that a process that renders may have had, and that a server may gain: the fuel's 64 MB several times over, and
/// far from what the templates ask for.
const MOST_KIB: u64 = 700 << 10;

/// A server of a tiny model with a template that does what the user's message names.
fn hostile_server(folder: &tempfile::TempDir) -> Server {
    let mut template = String::from("{% set what = messages[0].content %}");
    for (name, does) in HOSTILE {
        template.push_str(&format!("{{% if what == '{name}' %}}{does}{{% endif %}}"));
    }
    template.push_str("fine{{ messages[0].content }}");
    let mut tokenizer = vocabulary::tiny_metadata();
    tokenizer.retain(|(name, _)| name != "tokenizer.chat_template");
    tokenizer.push(("tokenizer.chat_template".to_owned(), Metadata::String(template)));
    let model = SyntheticModel {
        name: "hostile".to_owned(),
        config: Preset::Tiny.config(vocabulary::tiny_len()),
        mix: Mix::from_name("q4_0").unwrap(),
        tokenizer,
        seed: 1,
        router_skew: None,
    };
    let path = folder.path().join("hostile.gguf");
    model.write(&path, 2, &|_, _| ()).unwrap();
    Server::start(&["-m", path.to_str().unwrap(), "--context", "512"])
}

/// A line of a process's status that counts KiB; 0 once it has ended.
fn kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().map_or(0, |kib| kib.parse().unwrap())
}

/// The processes that render for a server.
fn renderers(front: u32) -> Vec<u32> {
    let engines = children(front);
    all_children(front).into_iter().filter(|pid| !engines.contains(pid)).collect()
}

/// The most memory that each process that renders ever had, looked at until told to end.
fn watch(front: u32, end: &AtomicBool) -> BTreeMap<u32, u64> {
    let mut most = BTreeMap::new();
    while !end.load(Ordering::Relaxed) {
        for pid in renderers(front) {
            let peak = most.entry(pid).or_insert(0);
            *peak = kib(pid, "VmHWM:").max(*peak);
        }
        thread::sleep(std::time::Duration::from_millis(5));
    }
    most
}

#[test]
fn a_template_without_an_end_or_a_size_is_ended_and_the_next_request_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let server = hostile_server(&folder);
    let front = server.child.id();
    assert!(!server.ask("hello", 3).is_empty());
    let before = kib(front, "VmRSS:");
    let end = Arc::new(AtomicBool::new(false));
    let watching = {
        let end = Arc::clone(&end);
        thread::spawn(move || watch(front, &end))
    };
    // All at once.
    let open = HOSTILE.map(|(name, _)| server.open("POST", "/v1/chat/completions", "", &chat(name, 3)));
    let answers = open.map(|mut socket| {
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        status_and_body(&answer)
    });
    end.store(true, Ordering::Relaxed);
    let peaks = watching.join().unwrap();
    for ((name, _), (status, body)) in HOSTILE.iter().zip(answers) {
        let error: Value = serde_json::from_str(&body).unwrap();
        println!("{name}: {status} {}", error["error"]["message"]);
        assert!(
            status >= 400 && error["error"]["message"].as_str().unwrap().contains("template"),
            "{name}: {body}"
        );
    }
    println!("KiB of processes that rendered: {peaks:?}");
    assert!(peaks.values().any(|peak| *peak > 0), "nobody rendered outside of the server");
    assert!(peaks.values().all(|peak| *peak < MOST_KIB), "{peaks:?}");
    let gained = kib(front, "VmHWM:").saturating_sub(before);
    assert!(gained < MOST_KIB, "the server took {gained} KiB");
    until("those that took too long have ended", || renderers(server.child.id()).len() <= 2);
    assert!(!server.ask("hello", 3).is_empty());
}

#[test]
fn a_process_that_renders_may_die_at_any_time_and_ends_with_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = hostile_server(&folder);
    for _ in 0..3 {
        assert!(!server.ask("hello", 3).is_empty());
        let renderers = renderers(server.child.id());
        assert_eq!(renderers.len(), 1, "one is kept for the next chat");
        signal_to(renderers[0], Signal::KILL);
    }
    assert!(!server.ask("hello", 3).is_empty());
    let renderer = renderers(server.child.id())[0];
    let open = server.open("POST", "/v1/chat/completions", "", &chat("counts a chain", 3));
    until("it renders", || kib(renderer, "Threads:") > 0 && threads(renderer) > 2);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    until("it has ended", || !runs(renderer));
    drop(open);
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

#[test]
fn a_rendering_is_the_same_text_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let server = hostile_server(&folder);
    let (status, body) = server.request(
        "POST",
        "/v1/chat/completions",
        "",
        &json!({"messages": [{"role": "user", "content": "<|im_end|> \u{e9}\u{1f600}"}], "max_tokens": 1}),
    );
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    // `fine`, and the user's text byte for byte: none of it is a special token.
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt >= 10, "{answer}");
}
