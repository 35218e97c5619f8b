//! The journal on disk: streams outlive the front.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::resumable::{Client, ask_for};
use crate::support::{Server, output, signal, text, wait};

/// How often the front is killed.
const KILLS: usize = 20;
const TOKENS: usize = 120;
/// Where a segment's records begin, and the bytes of a record that are not its length (docs/journal.md).
const HEADER_BYTES: usize = 36;
const FRAME_BYTES: usize = 16;

fn start(journal: &Path) -> Server {
    start_with(journal, &[])
}

fn start_with(journal: &Path, more: &[&str]) -> Server {
    let journal = journal.to_str().unwrap();
    Server::start(&[&["--journal", journal, "-c", "1k", "--parallel", "4"], more].concat())
}

fn story(number: usize, tokens: usize) -> Value {
    json!({
        "prompt": format!("There were {number} dogs."),
        "seed": number,
        "temperature": 1,
        "ignore_eos": true,
        "max_tokens": tokens,
        "stop": ["never to be found"],
    })
}

/// The same story as nothing disturbs it.
fn undisturbed(server: &Server, body: &Value) -> Vec<Value> {
    let mut client = Client::ask(server, body, 60);
    client.finish();
    client.events
}

/// Numbers from 0 up to a bound that a seed decides.
fn seeded(seed: usize, below: usize) -> usize {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from((mixed ^ (mixed >> 29)) >> 20).unwrap() % below
}

fn kill(mut server: Server) {
    signal(&server.child, Signal::KILL);
    wait(&mut server.child);
}

#[test]
fn a_front_that_is_killed_in_mid_stream_loses_no_stream() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path());
    let expected: Vec<_> = (0..3).map(|n| undisturbed(&server, &story(n, TOKENS))).collect();
    let mut scored = story(7, TOKENS);
    scored["logprobs"] = json!(3);
    scored["stream_options"] = json!({"include_usage": true});
    let expected_scored = undisturbed(&server, &scored);
    for kill_number in 0..KILLS {
        let mut clients: Vec<_> = (0..3).map(|n| Client::ask(&server, &story(n, TOKENS), 60)).collect();
        clients.push(Client::ask(&server, &scored, 60));
        for (number, client) in clients.iter_mut().enumerate() {
            client.read(seeded(kill_number * 10 + number, TOKENS + 2));
        }
        kill(server);
        // Some of it may have been on its way already.
        clients.iter_mut().for_each(|client| while client.read(1) {});
        server = start(folder.path());
        for (number, client) in clients.iter_mut().enumerate() {
            if !client.done {
                client.come_back(&server);
                client.finish();
            }
            let expected = expected.get(number).unwrap_or(&expected_scored);
            assert_eq!(&client.events, expected, "stream {number}, kill {kill_number}");
        }
    }
}

#[test]
fn choices_that_were_mixed_by_chance_go_on_in_the_order_that_their_client_saw() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path());
    let mut body = story(1, 60);
    body["n"] = json!(3);
    let by_choice = |events: &[Value]| {
        let mut choices = vec![String::new(); 3];
        for choice in events.iter().filter_map(|event| event.pointer("/choices/0")) {
            choices[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
        }
        choices
    };
    let expected = by_choice(&undisturbed(&server, &body));
    for kill_number in 0..4 {
        let mut client = Client::ask(&server, &body, 60);
        client.read(10 + seeded(kill_number, 150));
        kill(server);
        while client.read(1) {}
        server = start(folder.path());
        if !client.done {
            client.come_back(&server);
            client.finish();
        }
        assert_eq!(by_choice(&client.events), expected, "kill {kill_number}");
    }
}

/// The one segment of a small journal.
fn segment(journal: &Path) -> PathBuf {
    let files = std::fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "journal")).collect();
    assert_eq!(segments.len(), 1, "{segments:?}");
    segments.remove(0)
}

/// Where records begin, and the end of the last one.
fn borders(bytes: &[u8]) -> Vec<usize> {
    let mut borders = vec![HEADER_BYTES];
    let mut at = HEADER_BYTES;
    while at + FRAME_BYTES <= bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
        at += FRAME_BYTES + length as usize;
        borders.push(at);
    }
    assert_eq!(at, bytes.len(), "the journal ends with a whole record");
    borders
}

#[test]
fn a_cut_of_power_at_any_record_loses_no_stream_that_was_admitted() {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("written");
    let mut server = start(&written);
    let mut client = Client::ask(&server, &story(5, 24), 3600);
    client.finish();
    signal(&server.child, Signal::TERM);
    wait(&mut server.child);
    let segment = segment(&written);
    let bytes = std::fs::read(&segment).unwrap();
    let borders = borders(&bytes);
    assert!(borders.len() > 24, "a record for each token: {borders:?}");
    // At each border, and within the record behind it.
    let cuts = borders.iter().flat_map(|border| [*border, border + 1, border + FRAME_BYTES + 3]);
    let cuts: Vec<_> = cuts.filter(|cut| *cut >= borders[1] && *cut <= bytes.len()).collect();
    for cut in cuts {
        let journal = folder.path().join(format!("cut-{cut}"));
        std::fs::create_dir(&journal).unwrap();
        std::fs::write(journal.join(segment.file_name().unwrap()), &bytes[..cut]).unwrap();
        let server = start(&journal);
        println!("cut at byte {cut}; records begin at {borders:?}; {:?}", server.past_events());
        let mut from_the_start = Client::resume(&server, &client.id, &[]);
        from_the_start.finish();
        assert_eq!(from_the_start.events, client.events, "cut at byte {cut}");
        // Its client may have got more than was safe.
        let got = &client.events[..seeded(cut, client.events.len() - 1)];
        let mut from_the_middle = Client::resume(&server, &client.id, got);
        from_the_middle.finish();
        assert_eq!(from_the_middle.events, client.events, "cut at byte {cut}, {} events got", got.len());
    }
    // Before the admission was on disk nobody had got an answer.
    let journal = folder.path().join("before");
    std::fs::create_dir(&journal).unwrap();
    std::fs::write(journal.join(segment.file_name().unwrap()), &bytes[..borders[1] - 1]).unwrap();
    assert_eq!(ask_for(&start(&journal), &client.id, None).0, 404);
}

#[test]
fn a_stream_that_the_server_ends_before_goes_on_in_the_next_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start_with(folder.path(), &["--drain-seconds", "0"]);
    let expected = undisturbed(&server, &story(3, 400));
    let mut client = Client::ask(&server, &story(3, 400), 60);
    assert!(client.read(5));
    signal(&server.child, Signal::TERM);
    while client.read(1) {}
    assert!(!client.done, "it is cut off, not ended");
    assert!(wait(&mut server.child).success());
    let server = start(folder.path());
    client.come_back(&server);
    client.finish();
    assert_eq!(client.events, expected);
}

#[test]
fn a_journal_is_one_servers_and_the_other_one_is_told_whose() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let refused = output(&["serve", "--port", "0", "--journal", folder.path().to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    let error = text(&refused.stderr);
    assert!(error.contains(&format!("in use by process {}", server.child.id())), "{error}");
}

#[test]
fn a_stream_of_another_model_ends_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let mut client = Client::ask(&server, &story(3, 800), 60);
    assert!(client.read(5));
    kill(server);
    // The same weights in a file of another time.
    let other = folder.path().join("other.gguf");
    std::fs::copy(format!("{}/models/stories-moe-29m-Q4_0.gguf", env!("CARGO_MANIFEST_DIR")), &other)
        .unwrap();
    let server = start_with(folder.path(), &["-m", other.to_str().unwrap()]);
    let (status, body) = ask_for(&server, &client.id, None);
    assert_eq!(status, 200);
    assert!(body.contains("model_changed") && body.contains("[DONE]"), "{body}");
}

#[test]
fn only_its_user_can_read_a_journal() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("a/b");
    let server = start(&journal);
    Client::ask(&server, &story(1, 5), 60).finish();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&journal), 0o700);
    for entry in std::fs::read_dir(&journal).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}
