//! The program started, watched and ended; a plain HTTP client.
//!
//! Nothing here is timed: a wait of [`PATIENCE`] ends a test that would hang.

#![allow(dead_code, reason = "several test programs share this, and each uses a part of it")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The program with arguments, away from the environment's own settings.
pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unfazed"));
    command.args(args).env_remove("UNFAZED_API_KEY").env_remove("UNFAZED_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
pub(crate) fn output(args: &[&str]) -> Output {
    program(args).output().unwrap()
}

/// Runs the program to its end with a text on standard input.
pub(crate) fn output_of_pipe(args: &[&str], input: &str) -> Output {
    let mut child = program(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Asserts that the program ended with an error in one line, and returns the line.
pub(crate) fn one_line_error(output: &Output) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr.trim_end().to_owned()
}

/// Sends a signal to a child.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for a child's end.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the program does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A server that runs; killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
    pub(crate) ready: Value,
    events: Mutex<Receiver<String>>,
}

impl Server {
    /// Starts `unfazed serve --port 0` with arguments and waits until it is ready.
    pub(crate) fn start(args: &[&str]) -> Server {
        Server::start_in(&[], args)
    }

    /// The same with variables in its environment.
    pub(crate) fn start_in(variables: &[(&str, &str)], args: &[&str]) -> Server {
        let mut command = program(&["serve", "--port", "0"]);
        let mut server = Server::spawn(command.args(args).envs(variables.iter().copied()));
        server.ready = server.event("ready");
        server
    }

    /// The same with what it logs in a file.
    pub(crate) fn start_with_log(variables: &[(&str, &str)], args: &[&str], log: &Path) -> Server {
        let mut command = program(&["serve", "--port", "0"]);
        Server::start_command(command.args(args).envs(variables.iter().copied()), log)
    }

    /// Starts a command that serves and waits until it is ready.
    pub(crate) fn start_command(command: &mut Command, log: &Path) -> Server {
        command.env_remove("UNFAZED_API_KEY").stdin(Stdio::null()).stdout(Stdio::piped());
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut server = Server::spawn_with(command, log.into());
        server.ready = server.event("ready");
        server
    }

    /// Starts it and waits until it listens.
    pub(crate) fn launch(args: &[&str]) -> Server {
        Server::spawn(program(&["serve", "--port", "0"]).args(args))
    }

    /// Starts it with at most so many open files, in each of its processes.
    pub(crate) fn with_open_files(files: u32) -> Server {
        let mut shell = Command::new("/bin/sh");
        let limited = format!("ulimit -n {files} && exec \"$0\" serve --port 0");
        shell.args(["-c", &limited, env!("CARGO_BIN_EXE_unfazed")]).env_remove("UNFAZED_API_KEY");
        let mut server = Server::spawn(shell.stdin(Stdio::null()).stdout(Stdio::piped()));
        server.ready = server.event("ready");
        server
    }

    /// Starts it on pipes that hold a page each and waits until it is ready. Nobody reads them from then on, but for
    /// those who get them.
    #[cfg(target_os = "linux")]
    pub(crate) fn unread(args: &[&str]) -> (Server, BufReader<ChildStdout>, std::process::ChildStderr) {
        let mut child = program(&["serve", "--port", "0"]).args(args).spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        rustix::pipe::fcntl_setpipe_size(&stdout, 1).unwrap();
        rustix::pipe::fcntl_setpipe_size(&stderr, 1).unwrap();
        let (_, nothing) = channel();
        let mut server = Server { child, port: 0, ready: Value::Null, events: Mutex::new(nothing) };
        let mut stdout = BufReader::new(stdout);
        while server.ready.is_null() {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == "ready" {
                server.port = u16::try_from(event["port"].as_u64().unwrap()).unwrap();
                server.ready = event;
            }
        }
        (server, stdout, stderr)
    }

    /// Starts a command and waits until it listens.
    pub(crate) fn spawn(command: &mut Command) -> Server {
        Server::spawn_with(command, Stdio::inherit())
    }

    fn spawn_with(command: &mut Command, log: Stdio) -> Server {
        let mut child = command.stderr(log).spawn().unwrap();
        let events = Mutex::new(lines(child.stdout.take().unwrap()));
        let mut server = Server { child, port: 0, ready: Value::Null, events };
        server.port = u16::try_from(server.event("listening")["port"].as_u64().unwrap()).unwrap();
        server
    }

    /// The next event of that name.
    pub(crate) fn event(&self, name: &str) -> Value {
        loop {
            let event = self.next_event().unwrap_or_else(|| panic!("no event {name}"));
            if event["event"] == name {
                return event;
            }
        }
    }

    /// The next event; everything on standard output must be an event.
    pub(crate) fn next_event(&self) -> Option<Value> {
        let line = self.events.lock().unwrap().recv_timeout(PATIENCE).ok()?;
        assert!(line.starts_with("{\"event\":\""), "{line}");
        Some(serde_json::from_str(&line).unwrap())
    }

    /// Events that have come and were not asked for yet.
    pub(crate) fn past_events(&self) -> Vec<Value> {
        self.events.lock().unwrap().try_iter().map(|line| serde_json::from_str(&line).unwrap()).collect()
    }

    /// The sum of a metric's values.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (status, text) = self.request("GET", "/metrics", "", &Value::Null);
        assert_eq!(status, 200, "{text}");
        let values = text.lines().filter_map(|line| {
            let (key, value) = line.rsplit_once(' ')?;
            (key.split('{').next() == Some(name)).then(|| value.parse::<f64>().unwrap())
        });
        values.sum()
    }

    /// A request and its whole answer: status and body.
    pub(crate) fn request(&self, method: &str, path: &str, key: &str, body: &Value) -> (u16, String) {
        let mut answer = Vec::new();
        self.open(method, path, key, body).read_to_end(&mut answer).unwrap();
        status_and_body(&answer)
    }

    /// Sends bytes as they are, as far as the server takes them, and returns status and body of what it answers before
    /// it closes the connection.
    pub(crate) fn send(&self, bytes: &[u8]) -> (u16, String) {
        let mut socket = self.connect();
        let mut writer = socket.try_clone().unwrap();
        let mut answer = Vec::new();
        std::thread::scope(|scope| {
            // An early answer is read while the rest is still being sent.
            scope.spawn(move || drop(writer.write_all(bytes)));
            // A connection may be reset behind its answer.
            let _ = socket.read_to_end(&mut answer);
            let _ = socket.shutdown(std::net::Shutdown::Both);
        });
        status_and_body(&answer)
    }

    /// A connection.
    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// A chat request that is being answered in a stream.
    pub(crate) fn stream(&self, max_tokens: usize) -> BufReader<TcpStream> {
        let mut body = chat("Tell me a long story.", max_tokens);
        body["stream"] = json!(true);
        body["ignore_eos"] = json!(true);
        BufReader::new(self.open("POST", "/v1/chat/completions", "", &body))
    }

    /// HTTP 1.0 keeps this client plain: no chunks, and the answer ends with the connection.
    pub(crate) fn open(&self, method: &str, path: &str, key: &str, body: &Value) -> TcpStream {
        let mut socket = self.connect();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let port = self.port;
        write!(
            socket,
            "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
             Authorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        socket
    }

    /// The text of an answer to a chat request.
    pub(crate) fn ask(&self, question: &str, max_tokens: usize) -> String {
        let (status, body) = self.request("POST", "/v1/chat/completions", "", &chat(question, max_tokens));
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    /// The engine's process id.
    #[cfg(target_os = "linux")]
    pub(crate) fn engine(&self) -> u32 {
        self.engine_if_started().expect("the server has an engine")
    }

    /// The same, `None` before it was started.
    #[cfg(target_os = "linux")]
    pub(crate) fn engine_if_started(&self) -> Option<u32> {
        let engines = crate::processes::children(self.child.id());
        assert!(engines.len() <= 1, "the server has one engine");
        engines.first().copied()
    }
}

/// Of a whole answer; its body is not chunked.
pub(crate) fn status_and_body(answer: &[u8]) -> (u16, String) {
    let answer = text(answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer but {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A chat request.
pub(crate) fn chat(question: &str, max_tokens: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    })
}

/// Reads until the stream has sent some text.
pub(crate) fn first_text(stream: &mut BufReader<TcpStream>) {
    let mut line = String::new();
    while !line.contains("\"content\":\"") {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended before any text");
    }
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}
