//! How guards and servers end, and that no server outlives its guard.

use rustix::process::Signal;
use serde_json::Value;

use crate::guard::{Guard, chat};
use crate::made_up::{Does, Life, Plan, chat_text};
use crate::processes::{runs, signal_to};
use crate::support::{output, signal, text, until, wait};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_guard_that_is_killed_takes_its_server_with_it() {
    let guard = Guard::of(&Plan::default(), &[]);
    let server = guard.process();
    signal(&guard.server.child, Signal::KILL);
    until("the server has ended", || !runs(server));
}

/// A server behind a script ends with it, as do processes that the script started.
#[test]
fn what_a_server_started_ends_with_the_guard() {
    for by in [Signal::KILL, Signal::TERM] {
        let guard = Guard::of_program(
            &["--probe-seconds", "0"],
            &[
                "sh",
                "-c",
                "sleep 600 & echo $! >&2; exec \"$0\" serve --port {port}",
                env!("CARGO_BIN_EXE_unfazed"),
            ],
        );
        let server = guard.process();
        let group = || {
            let all = std::fs::read_dir("/proc").unwrap().flatten();
            let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            pids.filter(|pid| group_of(*pid) == Some(server) && runs(*pid)).count()
        };
        assert!(group() >= 2, "the server and what it started");
        signal(&guard.server.child, by);
        until("all of them have ended", || group() == 0);
    }
}

fn group_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(2)?.parse().ok()
}

#[test]
fn ctrl_c_lets_streams_end_first_and_a_second_one_does_not() {
    let mut guard = Guard::of(&Plan::default(), &[]);
    let mut stream = guard.stream(CHAT, &chat("hello", 600));
    stream.until_text(10);
    signal(&guard.server.child, Signal::INT);
    assert_eq!(guard.server.event("draining")["requests"], 1);
    stream.finish().assert_whole(&chat_text("hello", 600));
    assert_eq!(guard.server.event("shutdown")["unfinished_requests"], 0);
    assert_eq!(wait(&mut guard.server.child).code(), Some(0));

    let mut guard = Guard::of(&Plan::default(), &[]);
    let server = guard.process();
    let mut stream = guard.stream(CHAT, &chat("hello", 100_000));
    stream.until_text(10);
    signal(&guard.server.child, Signal::INT);
    guard.server.event("draining");
    signal(&guard.server.child, Signal::INT);
    assert_eq!(wait(&mut guard.server.child).code(), Some(130));
    until("the server has ended", || !runs(server));
}

/// A server that dies while the last streams end is started once more for them.
#[test]
fn a_server_that_dies_while_the_guard_drains_is_started_again() {
    let guard = Guard::of(&Plan::default(), &[]);
    let mut stream = guard.stream(CHAT, &chat("hello", 600));
    stream.until_text(10);
    signal(&guard.server.child, Signal::TERM);
    guard.server.event("draining");
    let (status, _) = guard.server.request("POST", CHAT, "", &chat("late", 5));
    assert_eq!(status, 503);
    signal_to(guard.process(), Signal::KILL);
    stream.finish().assert_whole(&chat_text("hello", 600));
}

#[test]
fn a_server_that_never_gets_ready_ends_the_guard_with_its_last_words() {
    let mut guard = Guard::started(
        &Plan { lives: vec![Life::new(0, Does::Mute); 9], ..Plan::default() },
        &["--stall-ms", "300"],
    );
    assert_eq!(wait(&mut guard.server.child).code(), Some(1));
    let events = std::iter::from_fn(|| guard.server.next_event());
    assert_eq!(events.filter(|event| event["event"] == "engine_exit").count(), 3);
}

#[test]
fn what_cannot_be_guarded_is_refused_with_a_code_of_its_own() {
    for (command, code, word) in [
        (&["llama-server-that-is-not-there", "{port}"][..], 127, "no such program"),
        (&["/etc/passwd", "{port}"], 126, "cannot be executed"),
        (&["sh", "-c", "true"], 64, "{port}"),
        (&["llama-server", "--port", "http"], 64, "--port"),
        (&["llama-server", "--ssl-key-file", "key"], 64, "plain HTTP"),
        (&[], 64, "which server"),
    ] {
        let mut args = vec!["guard", "run", "--port", "0", "--"];
        args.extend(command);
        let output = output(&args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(word), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

/// A program that is no server with these arguments, as with `--help`.
#[test]
fn a_program_that_ends_well_by_itself_ends_the_guard_well() {
    let output =
        output(&["guard", "run", "--port", "0", "--events", "off", "--", "sh", "-c", "echo help for {port}"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("help for "), "{}", text(&output.stdout));
}

#[test]
fn help_teaches_with_an_example_for_each_known_server() {
    let output = output(&["guard", "run", "--help"]);
    let help = text(&output.stdout);
    for word in
        ["llama-server", "mlx_lm.server", "SwiftLM", "Strata", "vllm", "unfazed serve", "{port}", "127"]
    {
        assert!(help.contains(word), "{word}");
    }
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_servers_output_goes_to_stderr_as_it_is_and_stdout_has_events_alone() {
    let guard = Guard::of(&Plan::default(), &[]);
    guard.read(CHAT, &chat("hello", 5));
    // Each line on standard output is an event: `past_events` reads them as such.
    assert!(guard.server.past_events().iter().all(|event: &Value| event["event"].is_string()));
}
