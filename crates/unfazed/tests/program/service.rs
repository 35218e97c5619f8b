//! What a service manager sees of a server: a socket of ours stands in for systemd's.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::processes::{all_children, signal_to, until_stopped};
use crate::support::{PATIENCE, Server, program, signal, text, until, wait};

/// What the manager asks for between two signs of life, in microseconds.
const WATCHDOG: &str = "1000000";

/// A service manager that only listens.
struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Manager {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager { socket, folder }
    }

    fn address(&self) -> String {
        self.folder.path().join("notify").to_str().unwrap().to_owned()
    }

    /// A server that it started.
    fn start(&self, args: &[&str]) -> Server {
        Server::start_in(&[("NOTIFY_SOCKET", &self.address()), ("WATCHDOG_USEC", WATCHDOG)], args)
    }

    /// What it is told next, line by line.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let count = self.socket.recv(&mut bytes).expect("the manager is told something");
        text(&bytes[..count]).lines().map(str::to_owned).collect()
    }

    /// Waits for news with a line that begins like this.
    fn until(&self, begin: &str) -> Vec<String> {
        let start = Instant::now();
        loop {
            let news = self.next();
            if news.iter().any(|line| line.starts_with(begin)) {
                return news;
            }
            assert!(start.elapsed() < PATIENCE, "no news begin with {begin}");
        }
    }

    /// Whether it was told anything that it has not read.
    fn has_news(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let read = self.socket.recv(&mut [0; 4096]).is_ok();
        self.socket.set_nonblocking(false).unwrap();
        read
    }
}

fn has(news: &[String], begin: &str) -> bool {
    news.iter().any(|line| line.starts_with(begin))
}

#[test]
fn a_service_manager_is_told_when_the_server_answers_that_it_lives_and_that_it_ends() {
    let manager = Manager::new();
    let mut server = manager.start(&[]);
    let first = manager.next();
    assert_eq!(first, ["STATUS=Opening the model", "EXTEND_TIMEOUT_USEC=60000000"]);
    let ready = manager.until("READY=1");
    let address = format!("on http://127.0.0.1:{}", server.port);
    let status = ready.iter().find(|line| line.starts_with("STATUS=Serving ")).unwrap();
    assert!(status.ends_with(&address), "{status}");
    assert!(!server.ask("Tell me about rain.", 4).is_empty());
    for _ in 0..3 {
        let sign = manager.until("WATCHDOG=1");
        assert!(!has(&sign, "EXTEND_TIMEOUT_USEC"), "it has started: {sign:?}");
    }
    let mut stream = server.stream(200);
    crate::support::first_text(&mut stream);
    signal(&server.child, Signal::TERM);
    let stopping = manager.until("STOPPING=1");
    assert_eq!(stopping[1], "EXTEND_TIMEOUT_USEC=45000000", "30 s to drain and 15 to end");
    assert_eq!(stopping[2], "STATUS=Finishing 1 running requests");
    assert_eq!(wait(&mut server.child).code(), Some(0));
    manager.until("STATUS=Ended; 0 requests were left unfinished");
}

#[test]
fn a_front_that_is_stopped_gives_no_sign_of_life_until_it_goes_on() {
    let manager = Manager::new();
    let server = manager.start(&[]);
    manager.until("WATCHDOG=1");
    signal(&server.child, Signal::STOP);
    until_stopped(server.child.id());
    while manager.has_news() {}
    // Three times what lies between two signs. A process that is stopped cannot be late by chance.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!manager.has_news());
    signal(&server.child, Signal::CONT);
    manager.until("WATCHDOG=1");
}

#[test]
fn signs_of_life_go_on_while_one_engine_after_the_other_is_killed() {
    let manager = Manager::new();
    let server = manager.start(&[]);
    manager.until("READY=1");
    for _ in 0..4 {
        signal_to(server.engine(), Signal::KILL);
        let stopped = manager.until("STATUS=Serving Stories MoE 29M");
        assert!(stopped[0].contains("; another engine is started (signal 9"), "{stopped:?}");
        server.event("engine_ready");
        let back = manager.until("STATUS=Serving Stories MoE 29M");
        assert!(!back[0].contains("another engine"), "{back:?}");
        assert!(!has(&manager.until("WATCHDOG=1"), "READY"), "it was ready once");
    }
}

#[test]
fn signs_of_life_go_on_while_an_engine_hangs() {
    let manager = Manager::new();
    let server = manager.start(&["--stall-ms", "60000"]);
    manager.until("READY=1");
    let engine = server.engine();
    signal_to(engine, Signal::STOP);
    until_stopped(engine);
    let _stream = server.stream(200);
    while manager.has_news() {}
    for _ in 0..4 {
        manager.until("WATCHDOG=1");
    }
    signal_to(engine, Signal::CONT);
}

#[test]
fn after_a_restart_the_new_front_gives_the_signs_of_life_and_the_first_one_none() {
    let manager = Manager::new();
    let folder = tempfile::tempdir().unwrap();
    // As systemd does: the interval is for this process alone.
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", "WATCHDOG_PID=$$ exec \"$0\" serve --port 0", env!("CARGO_BIN_EXE_unfazed")]);
    shell.env("NOTIFY_SOCKET", manager.address()).env("WATCHDOG_USEC", WATCHDOG);
    let server = Server::start_command(&mut shell, &folder.path().join("log"));
    manager.until("READY=1");
    manager.until("WATCHDOG=1");
    signal(&server.child, Signal::USR2);
    manager.until("READY=1");
    let front = server.child.id();
    let fronts = || {
        let serves = |pid: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split('\0').nth(1) == Some("serve")
        };
        all_children(front).into_iter().filter(serves).collect::<Vec<_>>()
    };
    let [successor] = fronts()[..] else { panic!("one front has taken over: {:?}", fronts()) };
    signal_to(front, Signal::STOP);
    until_stopped(front);
    while manager.has_news() {}
    for _ in 0..3 {
        manager.until("WATCHDOG=1");
    }
    signal_to(front, Signal::CONT);
    signal_to(successor, Signal::STOP);
    until_stopped(successor);
    while manager.has_news() {}
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!manager.has_news(), "the first front hides that its successor is stopped");
    signal_to(successor, Signal::CONT);
    manager.until("WATCHDOG=1");
}

#[test]
fn what_the_server_starts_does_not_know_the_service_manager() {
    let manager = Manager::new();
    let server = manager.start(&[]);
    // Has a template rendered, in a process of its own.
    assert!(!server.ask("Tell me about rain.", 4).is_empty());
    let knows = |pid: u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        ["NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID="].iter().any(|name| environment.contains(name))
    };
    assert!(knows(server.child.id()));
    let mut children = Vec::new();
    until("engine and renderer run", || {
        children = all_children(server.child.id());
        children.len() >= 2
    });
    for child in children {
        assert!(!knows(child), "{child}");
    }
}

#[test]
fn a_server_that_cannot_start_tells_why() {
    let manager = Manager::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let output = program(&["serve", "--events", "off", "--port", &port])
        .env("NOTIFY_SOCKET", manager.address())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let failed = manager.until("STATUS=Failed: ");
    assert!(failed[0].contains(&format!("port {port} is in use")), "{failed:?}");
}

#[test]
fn a_service_manager_that_does_not_listen_is_a_warning_and_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let nobody = folder.path().join("nobody");
    let variables = [("NOTIFY_SOCKET", nobody.to_str().unwrap()), ("WATCHDOG_USEC", WATCHDOG)];
    let server = Server::start_with_log(&variables, &[], &log);
    assert!(!server.ask("Tell me about rain.", 4).is_empty());
    let warned = || std::fs::read_to_string(&log).unwrap().matches("cannot be told anything").count();
    until("it is warned", || warned() > 0);
    assert_eq!(warned(), 1);
}

#[test]
fn health_tells_by_its_exit_code_whether_a_server_answers() {
    let server = Server::start(&[]);
    let url = format!("http://127.0.0.1:{}", server.port);
    let good = program(&["health", "--url", &url]).output().unwrap();
    assert_eq!((good.status.code(), text(&good.stdout).as_str()), (Some(0), "ready\n"));
    let json = program(&["health", "--url", &url, "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["status"], &json["restarts"]), (&"ok".into(), &0.into()));
    drop(server);
    let gone = program(&["health", "--url", &url]).output().unwrap();
    assert!(crate::support::one_line_error(&gone).contains("is the server running?"));
    let wrong = program(&["health", "--timeout", "0"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn health_gives_up_on_a_server_that_is_silent() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let output = program(&["health", "--url", &url, "--timeout", "1"]).output().unwrap();
    assert!(crate::support::one_line_error(&output).contains("no answer within 1 s"));
}
