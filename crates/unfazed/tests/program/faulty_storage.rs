//! A model on a file system that is slow, fails and goes away while it is loaded, with a request that waits for it. Where no
//! FUSE file system can be mounted nothing is tested here.

use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use unfazed_testkit::fuse::FaultyMount;

use crate::support::{Server, chat};

/// Slow enough for something to happen while the demo model's 17 MB are loaded.
const SLOW: u64 = 6_000_000;
const QUESTION: &str = "Tell me a story about a cat.";
const TOKENS: usize = 24;
/// Input/output error.
const EIO: i32 = 5;

/// The demo model on a file system of its own, and a server that loads it from there. The mount goes last.
struct Setup {
    server: Server,
    mount: FaultyMount,
    _folder: tempfile::TempDir,
}

fn setup(bytes_per_second: u64) -> Option<Setup> {
    let folder = tempfile::tempdir().unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/stories-moe-29m-Q4_0.gguf");
    let Some(mount) = FaultyMount::new(folder.path(), &demo).unwrap() else {
        eprintln!("skipped: no FUSE file system can be mounted here");
        return None;
    };
    mount.behave(|behaviour| behaviour.bytes_per_second = Some(bytes_per_second));
    let server = Server::launch(&["-m", mount.file().to_str().unwrap()]);
    // It loads now.
    assert!(server.event("loading")["done_bytes"].as_u64().is_some());
    Some(Setup { server, mount, _folder: folder })
}

/// A request that comes while the model is loaded gets the answer that it always gets; something happens meanwhile.
fn is_answered_in_spite_of(bytes_per_second: u64, happens: impl FnOnce(&mut Setup)) {
    let Some(mut setup) = setup(bytes_per_second) else { return };
    let socket = setup.server.open("POST", "/v1/chat/completions", "", &chat(QUESTION, TOKENS));
    happens(&mut setup);
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut &socket, &mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 "), "{answer}");
    let body: Value = serde_json::from_str(body).unwrap();
    let expected = Server::start(&[]).ask(QUESTION, TOKENS);
    assert_eq!(body["choices"][0]["message"]["content"], expected.as_str());
    let events = setup.server.past_events();
    assert!(events.iter().all(|event| event["event"] != "engine_exit"), "{events:?}");
}

#[test]
fn a_load_at_20_mb_per_second_says_its_rate_and_the_time_left() {
    is_answered_in_spite_of(20_000_000, |setup| {
        let loading = setup.server.event("loading");
        let (rate, left) = (loading["mb_per_s"].as_f64().unwrap(), loading["eta_s"].as_f64().unwrap());
        let missing = loading["total_bytes"].as_f64().unwrap() - loading["done_bytes"].as_f64().unwrap();
        assert!((missing / (rate * 1e6) - left).abs() < 1.0, "{loading}");
        println!("{loading}");
    });
}

#[test]
fn a_stall_is_told_and_costs_no_request() {
    is_answered_in_spite_of(SLOW, |setup| {
        setup.mount.behave(|behaviour| behaviour.stalled = true);
        let waiting = setup.server.event("waiting");
        assert!(waiting["what"].as_str().unwrap().starts_with("reading "), "{waiting}");
        // Longer than an engine may be silent that does not say that it waits.
        thread::sleep(Duration::from_secs(6));
        setup.mount.behave(|behaviour| behaviour.stalled = false);
    });
}

#[test]
fn an_error_that_passes_costs_no_request() {
    is_answered_in_spite_of(SLOW, |setup| {
        setup.mount.behave(|behaviour| behaviour.failing = Some((EIO, 5)));
    });
}

#[test]
fn a_mount_that_goes_away_and_comes_back_costs_no_request() {
    is_answered_in_spite_of(SLOW, |setup| {
        setup.mount.vanish().unwrap();
        let waiting = setup.server.event("waiting");
        let what = waiting["what"].as_str().unwrap();
        assert!(what.contains("from stories-moe-29m-Q4_0.gguf, which fails: "), "{waiting}");
        thread::sleep(Duration::from_secs(6));
        setup.mount.mount().unwrap();
    });
}

#[test]
fn a_file_that_gets_shorter_while_it_is_loaded_is_refused_by_name() {
    let Some(setup) = setup(SLOW) else { return };
    setup.mount.behave(|behaviour| behaviour.truncated = Some(1_000_000));
    let exit = setup.server.event("engine_exit");
    let message = exit["message"].as_str().unwrap();
    assert!(message.contains("stories-moe-29m-Q4_0.gguf") && message.contains("1000000"), "{exit}");
}
