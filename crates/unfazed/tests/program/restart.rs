//! One front after the other: clients see a pause at most.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::processes::{runs, signal_to};
use crate::resumable::Client;
use crate::streams::{Answer, Stream};
use crate::support::{Server, output, signal, status_and_body, text, until, wait};

/// Streams at a time.
const STREAMS: usize = 16;

/// A server, and the fronts that took over from it: all of them end with this.
struct Fronts {
    server: Server,
    pids: Vec<u32>,
}

impl Fronts {
    fn start(more: &[&str]) -> Fronts {
        Fronts::start_program(Path::new(env!("CARGO_BIN_EXE_unfazed")), more)
    }

    fn start_program(program: &Path, more: &[&str]) -> Fronts {
        let model = format!("{}/models/stories-moe-29m-Q4_0.gguf", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "-m", &model, "--parallel", "16", "-c", "2k"]).args(more);
        let server = Server::start_command(&mut command, Path::new("/dev/null"));
        let pids = vec![server.child.id()];
        Fronts { server, pids }
    }

    /// Wishes for a new front.
    fn restart(&self) {
        signal(&self.server.child, Signal::USR2);
    }

    /// Waits for the new front, and says whether memory came with the answers.
    fn wait_for_the_new_one(&mut self) -> bool {
        // Two processes tell of it, in any order.
        let (mut handed_over, mut took_over) = (None, None);
        while handed_over.is_none() || took_over.is_none() {
            let event = self.server.next_event().expect("a new front takes over");
            match event["event"].as_str() {
                Some("handed_over") => handed_over = Some(event),
                Some("took_over") => took_over = Some(event),
                Some("restart_failed") => panic!("{event}"),
                _ => {}
            }
        }
        let pid = handed_over.unwrap()["pid"].as_u64().unwrap();
        self.pids.push(u32::try_from(pid).unwrap());
        took_over.unwrap()["memory"] == true
    }

    /// Kills all of them.
    fn kill(&mut self) {
        for pid in self.pids.drain(..) {
            signal_to(pid, Signal::KILL);
            until("the front is gone", || !runs(pid));
        }
        wait(&mut self.server.child);
    }

    /// Ends it as a user would, by the process that was started first.
    fn end(mut self) {
        signal(&self.server.child, Signal::TERM);
        assert!(wait(&mut self.server.child).success());
        for pid in &self.pids {
            until("every front has ended", || !runs(*pid));
        }
    }
}

impl Drop for Fronts {
    fn drop(&mut self) {
        for pid in &self.pids {
            signal_to(*pid, Signal::KILL);
        }
    }
}

fn story(number: usize, tokens: usize) -> Value {
    json!({
        "prompt": format!("Once upon a time there were {number} cats."),
        "seed": number,
        "temperature": 1,
        "ignore_eos": true,
        "max_tokens": tokens,
        "logprobs": 2,
    })
}

fn streams(server: &Server, tokens: usize) -> Vec<Stream> {
    (0..STREAMS).map(|number| Stream::open(server, "/v1/completions", &story(number, tokens))).collect()
}

/// Reads all of them to their ends, side by side; the longest pause of any.
fn finish(streams: Vec<Stream>) -> (Vec<Answer>, Duration) {
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(move || stream.finish_timed())).collect();
        let read: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        let longest = read.iter().map(|(_, pause)| *pause).max().unwrap_or_default();
        (read.into_iter().map(|(answer, _)| answer).collect(), longest)
    })
}

fn assert_same(answers: &[Answer], undisturbed: &[Answer]) {
    for (number, (answer, other)) in answers.iter().zip(undisturbed).enumerate() {
        answer.assert_equals(other, &format!("stream {number}"));
    }
}

/// What a whole answer says, but for its id and its times.
fn read_whole(mut connection: TcpStream) -> Value {
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    let (status, body) = status_and_body(&answer);
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    json!([body["choices"], body["usage"]["completion_tokens"]])
}

#[test]
fn a_restart_under_sixteen_streams_loses_nothing_and_changes_nothing() {
    let mut fronts = Fronts::start(&[]);
    let (undisturbed, _) = finish(streams(&fronts.server, 300));
    let whole = || fronts.server.open("POST", "/v1/completions", "", &story(99, 250));
    let undisturbed_whole = read_whole(whole());
    let mut running = streams(&fronts.server, 300);
    let answered = whole();
    running.iter_mut().for_each(|stream| assert!(stream.next().is_some()));
    fronts.restart();
    let (answers, longest) = finish(running);
    let answered = read_whole(answered);
    println!("the longest pause: {} ms", longest.as_millis());
    assert_same(&answers, &undisturbed);
    assert_eq!(answered, undisturbed_whole);
    assert!(fronts.wait_for_the_new_one(), "the new engine goes on with the memory");
    assert!(!fronts.server.ask("Who are you?", 4).is_empty(), "the new front takes new connections");
    fronts.end();
}

#[test]
fn a_restart_that_fails_changes_nothing_and_the_next_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("unfazed");
    std::fs::copy(env!("CARGO_BIN_EXE_unfazed"), &program).unwrap();
    let mut fronts = Fronts::start_program(&program, &[]);
    let undisturbed = Stream::open(&fronts.server, "/v1/completions", &story(1, 400)).finish();
    let mut running = Stream::open(&fronts.server, "/v1/completions", &story(1, 400));
    assert!(running.next().is_some());
    for broken in ["exit 7", "exec sleep 0", "echo nonsense >&0", "no such command"] {
        replace(&program, format!("#!/bin/sh\n{broken}\n").as_bytes());
        fronts.restart();
        let failed = fronts.server.event("restart_failed");
        assert!(failed["message"].as_str().unwrap().contains("unfazed"), "{failed}");
    }
    std::fs::remove_file(&program).unwrap();
    fronts.restart();
    assert!(fronts.server.event("restart_failed")["message"].as_str().unwrap().contains("cannot be started"));
    replace(&program, &std::fs::read(env!("CARGO_BIN_EXE_unfazed")).unwrap());
    fronts.restart();
    running.finish().assert_equals(&undisturbed, "the stream over six restarts");
    assert!(fronts.wait_for_the_new_one());
    fronts.end();
}

/// Another program in the place of one that may be running.
fn replace(program: &Path, content: &[u8]) {
    let new = program.with_extension("new");
    std::fs::write(&new, content).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&new, program).unwrap();
}

#[test]
fn streams_go_on_over_one_front_after_the_other_and_over_the_death_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().to_str().unwrap();
    let mut fronts = Fronts::start(&["--journal", journal]);
    let mut body = story(4, 1500);
    body["logprobs"] = Value::Null;
    let mut undisturbed = Client::ask(&fronts.server, &body, 60);
    undisturbed.finish();
    let ask = |server: &Server| Client::ask(server, &body, 60);
    let (mut stays, mut comes_back) = (ask(&fronts.server), ask(&fronts.server));
    assert!(stays.read(10) && comes_back.read(20));
    for _ in 0..2 {
        fronts.restart();
        assert!(fronts.wait_for_the_new_one());
        assert!(stays.read(30), "a connection to the first front goes on");
        comes_back.come_back(&fronts.server);
        assert!(comes_back.read(40));
    }
    fronts.kill();
    for client in [&mut stays, &mut comes_back] {
        while client.read(1) {}
        assert!(!client.done, "there was more to come");
    }
    let last = Fronts::start(&["--journal", journal]);
    for client in [&mut stays, &mut comes_back] {
        client.come_back(&last.server);
        client.finish();
        assert_eq!(client.events, undisturbed.events);
    }
    last.end();
}

#[test]
fn the_command_restarts_a_server_and_says_who_follows_whom() {
    let mut fronts = Fronts::start(&[]);
    let url = format!("http://127.0.0.1:{}", fronts.server.port);
    let restarted = output(&["restart", "--url", &url]);
    assert!(restarted.status.success(), "{}", text(&restarted.stderr));
    fronts.wait_for_the_new_one();
    let [old, new] = fronts.pids[..] else { panic!("two fronts") };
    assert!(text(&restarted.stdout).starts_with(&format!("process {new} took over from {old} after ")));
    let elsewhere = output(&["restart", "--url", "http://192.0.2.1:8080"]);
    assert_eq!(elsewhere.status.code(), Some(1));
    assert!(text(&elsewhere.stderr).contains("on the machine that it runs on"));
    fronts.end();
}

#[test]
fn fronts_in_the_middle_leave_and_the_first_one_stands_for_the_last() {
    let mut fronts = Fronts::start(&[]);
    for _ in 0..3 {
        fronts.restart();
        assert!(fronts.wait_for_the_new_one());
        assert!(!fronts.server.ask("Who are you?", 4).is_empty());
    }
    let [_, first, second, last] = fronts.pids[..] else { panic!("four fronts") };
    until("fronts in the middle leave", || !runs(first) && !runs(second));
    assert!(runs(last));
    // Whoever goes on with it by the first one's number reaches the last one.
    fronts.restart();
    assert!(fronts.wait_for_the_new_one());
    fronts.end();
}
