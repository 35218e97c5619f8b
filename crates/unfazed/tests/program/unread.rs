//! A server whose output nobody reads.

use std::io::BufRead;

use rustix::process::Signal;
use serde_json::Value;

use crate::processes::signal_to;
use crate::support::{Server, signal, until, wait};

/// Kills the server's engine so many times, each time one that is ready. Some 20 fill a pipe of one page.
fn kill_engines(server: &Server, times: usize) {
    for kills in 0..times {
        until("an engine is ready", || {
            let (status, health) = server.request("GET", "/health", "", &Value::Null);
            assert_eq!(status, 200, "{health}");
            let health: Value = serde_json::from_str(&health).unwrap();
            health["state"] != "restarting" && health["restarts"] == kills
        });
        signal_to(server.engine(), Signal::KILL);
    }
}

#[test]
fn a_server_whose_output_nobody_reads_goes_on_and_has_every_event_for_one_who_reads_at_last() {
    let (mut server, events, _stderr) = Server::unread(&["--events", "on"]);
    kill_engines(&server, 400);
    assert!(!server.ask("Tell me about rain.", 12).is_empty());
    signal(&server.child, Signal::TERM);
    let events: Vec<Value> =
        events.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(events.iter().filter(|event| event["event"] == "engine_exit").count(), 400);
    assert_eq!(events.last().unwrap()["event"], "shutdown");
    assert_eq!(wait(&mut server.child).code(), Some(0));
}

#[test]
fn a_server_ends_though_nobody_reads_its_output() {
    let (mut server, _events, _stderr) = Server::unread(&["--events", "on"]);
    kill_engines(&server, 60);
    signal(&server.child, Signal::TERM);
    assert_eq!(wait(&mut server.child).code(), Some(0));
}
