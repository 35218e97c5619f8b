//! The chat in pipes. (The chat in a terminal is tested with a pseudo-terminal in `tests/e2e`.)

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;

use crate::support::{PATIENCE, Server, one_line_error, output, output_of_pipe, program, signal, text, wait};

const GREEDY: [&str; 4] = ["--temperature", "0", "--max-tokens", "16"];

fn with_greedy<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().copied().chain(GREEDY).collect()
}

#[test]
fn a_question_in_a_pipe_gives_the_answer_and_nothing_else() {
    let answered = output_of_pipe(&with_greedy(&["run"]), "Tell me about the sea.\n");
    assert_eq!(answered.status.code(), Some(0), "{}", text(&answered.stderr));
    assert_eq!(text(&answered.stderr), "");
    let answer = text(&answered.stdout);
    assert!(answer.split_whitespace().count() > 5, "{answer}");
    assert!(answer.ends_with('\n') && !answer.ends_with("\n\n"), "{answer:?}");
}

#[test]
fn a_prompt_as_an_argument_gives_the_same_answer_as_in_a_pipe() {
    let argument = output(&with_greedy(&["run", "Tell me about the sea."]));
    let words = output(&with_greedy(&["run", "Tell", "me", "about", "the", "sea."]));
    let pipe = output_of_pipe(&with_greedy(&["run"]), "Tell me about the sea.\n");
    assert_eq!(text(&argument.stdout), text(&pipe.stdout));
    assert_eq!(text(&argument.stdout), text(&words.stdout));
}

#[test]
fn a_file_on_standard_input_stands_behind_the_prompt() {
    let server = Server::start(&[]);
    let url = format!("http://127.0.0.1:{}", server.port);
    let answered = output_of_pipe(&with_greedy(&["run", "--url", &url, "Go on:"]), "Once upon a time\n");
    assert_eq!(text(&answered.stdout).trim_end(), server.ask("Go on:\n\nOnce upon a time", 16).trim_end());
}

#[test]
fn nothing_to_ask_is_an_error() {
    let line = one_line_error(&output(&["run"]));
    assert!(line.contains("no question"), "{line}");
}

#[test]
fn a_running_server_is_asked_with_its_key() {
    let server = Server::start(&["--api-key", "secret"]);
    let url = format!("127.0.0.1:{}", server.port);
    let answered = output(&with_greedy(&["run", "--url", &url, "--api-key", "secret", "Hello"]));
    assert_eq!(answered.status.code(), Some(0), "{}", text(&answered.stderr));
    assert!(!text(&answered.stdout).trim().is_empty());
    let line = one_line_error(&output(&["run", "--url", &url, "Hello"]));
    assert!(line.to_lowercase().contains("key"), "{line}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let line = one_line_error(&output(&["run", "--url", &format!("http://{free}"), "Hello"]));
    assert!(line.contains(&free.to_string()) && line.contains("is the server running?"), "{line}");
}

#[test]
fn the_system_prompt_and_the_seed_decide_the_answer() {
    let ask = |system: &str, seed: &str| {
        let args = ["run", "Tell me a story.", "-n", "24", "--system", system, "--seed", seed];
        text(&output(&args).stdout)
    };
    let first = ask("You are a pirate.", "1");
    assert_eq!(ask("You are a pirate.", "1"), first);
    assert_ne!(ask("You are a pirate.", "2"), first);
    assert_ne!(ask("You are a cook who writes poems.", "1"), first);
}

#[test]
fn ctrl_c_stops_an_answer_closes_its_connection_and_ends_with_130() {
    let (port, gone) = server_that_never_finishes();
    let url = format!("http://127.0.0.1:{port}");
    let mut child = program(&["run", "--url", &url, "Hello"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 2];
    stdout.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"Hi");
    signal(&child, Signal::INT);
    assert_eq!(wait(&mut child).code(), Some(130));
    gone.recv_timeout(PATIENCE).expect("the server sees that its client left");
}

/// Lists a model, begins an answer with `Hi` and then says nothing more. Tells when the client has left.
fn server_that_never_finishes() -> (u16, Receiver<()>) {
    const MODELS: &str = r#"{"data":[{"id":"m"}]}"#;
    const CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut head = vec![0; 4096];
            let read = socket.read(&mut head).unwrap();
            let models = head[..read].starts_with(b"GET ");
            let body = if models { MODELS } else { CHUNK };
            write!(socket, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}").unwrap();
            if !models {
                while matches!(socket.read(&mut head), Ok(1..)) {}
                send.send(()).unwrap();
            }
        }
    });
    (port, receive)
}

#[test]
fn a_reader_that_leaves_is_a_clean_end() {
    let mut child =
        program(&["run", "Tell me a story.", "--seed", "1"]).stdin(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(text(&ended.stderr), "");
}
