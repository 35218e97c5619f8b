//! One server at a time has the machine's GPU, for those who ask for it.

use std::path::Path;
use std::process::{Child, Command};

use rustix::process::{Signal, getpid, set_child_subreaper};
use serde_json::Value;

use crate::processes::{runs, signal_to, until_stopped};
use crate::support::{PATIENCE, Server, one_line_error, program, signal, until, wait};

/// A folder for locks.
struct Locks(tempfile::TempDir);

impl Locks {
    fn new() -> Locks {
        Locks(tempfile::tempdir().unwrap())
    }

    fn folder(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn serve(&self, args: &[&str]) -> Command {
        let mut command = program(&["serve", "--port", "0"]);
        command.args(args).env("XDG_RUNTIME_DIR", self.folder()).env_remove("MLX_LOCK_PATH");
        command
    }

    fn server(&self, args: &[&str]) -> Server {
        Server::start_in(&[("XDG_RUNTIME_DIR", self.folder())], args)
    }
}

/// Reads events of a program until one of that name.
fn event(lines: &mut impl Iterator<Item = std::io::Result<String>>, name: &str) -> Value {
    loop {
        let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if event["event"] == name {
            return event;
        }
    }
}

fn lines(child: &mut Child) -> impl Iterator<Item = std::io::Result<String>> + use<> {
    std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()))
}

#[test]
fn the_second_server_ends_with_who_has_the_gpu() {
    let locks = Locks::new();
    let first = locks.server(&["--gpu-lock", "fail", "--api-key", "key-of-nobody"]);
    let second = locks.serve(&["--gpu-lock", "fail"]).output().unwrap();
    let error = one_line_error(&second);
    for part in [
        &format!("pid {} ", first.child.id()),
        "--gpu-lock fail",
        " serve --port 0",
        " since 20",
        "--gpu-lock wait",
    ] {
        assert!(error.contains(part), "{part} is missing: {error}");
    }
    assert!(!error.contains("key-of-nobody"), "{error}");
    let file = std::fs::read_to_string(locks.0.path().join("unfazed/gpu-any.lock")).unwrap();
    assert!(!file.contains("key-of-nobody") && file.contains("***"), "{file}");
    // Those who do not ask for it are not asked.
    for when in ["auto", "off"] {
        drop(locks.server(&["--gpu-lock", when]));
    }
    drop(first);
    drop(locks.server(&["--gpu-lock", "fail"]));
}

#[test]
fn a_server_that_waits_says_for_whom_and_goes_on_when_that_is_killed() {
    let locks = Locks::new();
    let mut first = locks.server(&["--gpu-lock", "wait"]);
    let mut second = locks.serve(&["--gpu-lock", "wait"]).spawn().unwrap();
    let mut events = lines(&mut second);
    let waits = event(&mut events, "gpu_lock_wait");
    assert_eq!(waits["pid"], first.child.id());
    assert_eq!(waits["label"], "unfazed serve");
    assert!(waits["command"].as_str().unwrap().contains("serve --port 0"), "{waits}");
    assert!(
        waits["since"].is_string() && waits["message"].as_str().unwrap().contains("in use by pid"),
        "{waits}"
    );
    assert!(Path::new(waits["file"].as_str().unwrap()).starts_with(locks.0.path()));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    event(&mut events, "ready");
    signal(&second, Signal::TERM);
    assert!(wait(&mut second).success());
    let mut log = String::new();
    std::io::Read::read_to_string(&mut second.stderr.take().unwrap(), &mut log).unwrap();
    assert!(log.contains("waiting: the GPU is in use by pid"), "{log}");
}

#[test]
fn ctrl_c_ends_the_waiting() {
    let locks = Locks::new();
    let _first = locks.server(&["--gpu-lock", "fail"]);
    for end in [Signal::INT, Signal::TERM] {
        let mut second = locks.serve(&["--gpu-lock", "wait"]).spawn().unwrap();
        event(&mut lines(&mut second), "gpu_lock_wait");
        signal(&second, end);
        let status = wait(&mut second);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(end.as_raw()));
    }
}

/// An engine that hangs on a GPU keeps all others away from it, when its front is gone too.
#[test]
fn an_engine_that_hangs_keeps_the_lock_of_its_front() {
    let locks = Locks::new();
    // The engine gets a parent in this session: a stopped one that has none is ended by the kernel.
    set_child_subreaper(Some(getpid())).unwrap();
    let mut first = locks.server(&["--gpu-lock", "fail"]);
    let engine = first.engine();
    signal_to(engine, Signal::STOP);
    until_stopped(engine);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(runs(engine));
    let error = one_line_error(&locks.serve(&["--gpu-lock", "fail"]).output().unwrap());
    let both = format!("pid {engine}, which pid {} ", first.child.id());
    assert!(error.contains(&both) && error.contains("left behind"), "{error}");
    signal_to(engine, Signal::KILL);
    until("the engine is gone", || !runs(engine));
    drop(locks.server(&["--gpu-lock", "wait"]));
}

#[test]
fn a_program_that_honours_metal_guards_file_is_waited_for() {
    let locks = Locks::new();
    let file = locks.0.path().join("mlx_exclusive.lock");
    let variables = [("XDG_RUNTIME_DIR", locks.folder()), ("MLX_LOCK_PATH", file.to_str().unwrap())];
    let started = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut python = Command::new("sleep").arg(PATIENCE.as_secs().to_string()).spawn().unwrap();
    let info =
        serde_json::json!({"pid": python.id(), "label": "bench", "started_at": started, "cmdline": "sleep"});
    std::fs::write(&file, info.to_string()).unwrap();

    let mut server = locks.serve(&["--gpu-lock", "wait"]).envs(variables).spawn().unwrap();
    let mut events = lines(&mut server);
    let waits = event(&mut events, "gpu_lock_wait");
    assert_eq!((&waits["pid"], &waits["label"]), (&python.id().into(), &"bench".into()));
    python.kill().unwrap();
    python.wait().unwrap();
    event(&mut events, "ready");
    let info: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((&info["pid"], &info["label"]), (&server.id().into(), &"unfazed serve".into()));
    signal(&server, Signal::TERM);
    assert!(wait(&mut server).success());
    assert!(!file.exists(), "the file goes with the server");
}
