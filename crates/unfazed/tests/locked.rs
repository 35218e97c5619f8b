//! What an engine cannot do once it is locked in, tried from inside, and that it answers all the same. Needs the feature
//! `fault-plan`.

#![cfg(target_os = "linux")]
// A test ends by panicking; clippy's exemption covers test functions only, not what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "program/processes.rs"]
mod processes;
#[path = "program/support.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::Path;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use serde_json::Value;

use processes::all_children;
use support::{Server, until};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/stories-moe-29m-Q4_0.gguf");
/// Few enough slots that experts are read all the time.
const STREAMED: [&str; 4] = ["--stream-experts", "on", "--expert-cache", "16"];
/// What Landlock forbids, and what seccomp does; both forbid signals to others.
const FILES: [&str; 6] = [
    "read a file of the system's",
    "list a folder",
    "make a file",
    "write a file",
    "read a file on another thread",
    "another process's state",
];
const CALLS: [&str; 7] =
    ["socket", "socket pair", "change a file's rights", "signal", "process", "program", "ring"];

/// A server of the demo model in a folder of its own whose engine tries to get out, and what came of each attempt.
struct Prison {
    _folder: tempfile::TempDir,
    server: Server,
    came: BTreeMap<String, String>,
    log: String,
}

impl Prison {
    fn new(more: &[&str]) -> Prison {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::copy(DEMO, path("model.gguf")).unwrap();
        std::fs::write(path("precious"), "precious").unwrap();
        let (model, log) = (path("model.gguf"), path("log"));
        let variables =
            [("UNFAZED_ESCAPE_TO", folder.path().to_str().unwrap()), ("XDG_CACHE_HOME", &path("cache"))];
        let args = ["-m", &model, "--context", "512", "--log", "debug", "--log-format", "json"];
        let args: Vec<&str> = args.iter().chain(more).copied().collect();
        let server = Server::start_with_log(&variables, &args, Path::new(&log));
        let attempts = || attempts(&std::fs::read_to_string(&log).unwrap());
        // What is logged may come behind the event.
        until("the engine has tried everything", || attempts().contains_key("thread"));
        let text = std::fs::read_to_string(&log).unwrap();
        Prison { _folder: folder, server, came: attempts(), log: text }
    }

    fn sandbox(&self) -> &Value {
        &self.server.ready["settings"]["sandbox"]
    }

    fn came(&self, attempt: &str) -> &str {
        self.came.get(attempt).unwrap_or_else(|| panic!("{attempt} was not tried: {:?}", self.came))
    }

    /// Two answers: the same as those of an engine that nothing holds.
    fn answers(&self) -> [String; 2] {
        ["Tell me a story.", "Tell me about the sea."].map(|question| self.server.ask(question, 60))
    }
}

fn attempts(log: &str) -> BTreeMap<String, String> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let fields = lines.map(|line| line["fields"].clone()).filter(|fields| fields["message"] == "escape");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    fields.map(|fields| (text(&fields["attempt"]), text(&fields["came"]))).collect()
}

/// Asserts that each part that is in force holds, and that what is not is said.
fn assert_locked(prison: &Prison) {
    let sandbox = prison.sandbox();
    println!("{sandbox}");
    let refused = |attempt: &str, error: &str| {
        let came = prison.came(attempt);
        assert!(came.contains(error), "{attempt}: {came}");
    };
    if sandbox["landlock"].is_null() {
        assert!(sandbox["missing"].to_string().contains("landlock: "), "{sandbox}");
    } else {
        FILES.iter().for_each(|attempt| refused(attempt, "ermission denied"));
    }
    if sandbox["seccomp"] == true {
        CALLS.iter().for_each(|attempt| refused(attempt, "not permitted"));
    } else {
        assert!(sandbox["missing"].to_string().contains("seccomp: "), "{sandbox}");
    }
    assert_eq!(prison.came("thread"), "done");
}

/// Which mode of seccomp each thread of a process is in.
fn modes(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let mode = |status: String| {
        let line = status.lines().find(|line| line.starts_with("Seccomp:")).unwrap_or_default().to_owned();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    status.map(mode).collect()
}

#[test]
fn an_engine_that_tries_to_get_out_is_refused_everything_and_answers_as_ever() {
    let open = Prison::new(&["--sandbox", "off"]);
    for attempt in FILES.iter().chain(&CALLS).filter(|attempt| **attempt != "ring") {
        assert_eq!(open.came(attempt), "done", "{attempt}, with nothing locked");
    }
    // Containers may forbid rings to everybody.
    let rings = open.sandbox()["rings"] == "restricted";
    assert_eq!(open.came("ring") == "done", rings, "{}", open.came("ring"));
    assert_eq!(open.sandbox()["missing"], serde_json::json!(["--sandbox off"]));
    assert_eq!(open.sandbox()["seccomp"], false);
    let expected = open.answers();

    for (what, flags) in [("in memory", &[][..]), ("streamed", &STREAMED[..])] {
        let locked = Prison::new(flags);
        assert_locked(&locked);
        assert_eq!(locked.answers(), expected, "experts {what}");
        assert_eq!(locked.sandbox()["rings"] == "restricted", rings);
        if locked.sandbox()["seccomp"] == true {
            for pid in all_children(locked.server.child.id()) {
                let modes = modes(pid);
                assert!(modes.len() > 1 && modes.iter().all(|mode| mode == "2"), "{pid}: {modes:?}");
            }
        }
        if what == "streamed" {
            let slots = locked.server.ready["settings"]["expert_slots"].as_u64().unwrap();
            assert!(slots < locked.server.ready["settings"]["experts"].as_u64().unwrap());
        }
        assert!(locked.log.contains("rights given up"), "{}", locked.log);
    }
}

#[test]
fn an_engine_keeps_its_profile_from_run_to_run_while_it_is_locked_in() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache").to_str().unwrap().to_owned();
    let log = folder.path().join("log");
    for _ in 0..2 {
        let args: Vec<&str> = ["-m", DEMO, "--context", "512"].into_iter().chain(STREAMED).collect();
        let mut server = Server::start_with_log(&[("XDG_CACHE_HOME", &cache)], &args, &log);
        assert!(!server.ask("Tell me a story.", 30).is_empty());
        support::signal(&server.child, rustix::process::Signal::TERM);
        assert!(support::wait(&mut server.child).success());
    }
    let kept = std::fs::read_dir(Path::new(&cache).join("unfazed")).unwrap().flatten();
    let names: Vec<_> = kept.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.ends_with(".usage")), "{names:?}");
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("cannot be saved") && !log.contains("is left out"), "{log}");
}

/// Starts something on a thread whose system calls fail with an error, as in a container that forbids them.
fn in_a_container<T: Send + 'static>(
    forbidden: &'static [(i64, i32)],
    start: impl FnOnce() -> T + Send + 'static,
) -> T {
    let thread = std::thread::spawn(move || {
        for (call, error) in forbidden {
            let rules = BTreeMap::from([(*call, Vec::new())]);
            let action = SeccompAction::Errno(error.unsigned_abs());
            let architecture = std::env::consts::ARCH.try_into().unwrap();
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, architecture).unwrap();
            apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        }
        start()
    });
    thread.join().unwrap()
}

/// A system call, and the error that it gets.
type Forbidden = (i64, i32);

#[test]
fn what_a_system_forbids_is_named_and_answers_come_all_the_same() {
    const LANDLOCK: Forbidden = (libc::SYS_landlock_create_ruleset, libc::ENOSYS);
    const RINGS: Forbidden = (libc::SYS_io_uring_setup, libc::EPERM);
    // The last one: nothing can be forbidden behind it.
    const SECCOMP: Forbidden = (libc::SYS_seccomp, libc::EPERM);
    let expected = Prison::new(&["--sandbox", "off"]).answers();
    let cases: [(&[Forbidden], &[&str]); 4] = [
        (&[LANDLOCK], &["landlock: this kernel has no Landlock"]),
        (&[SECCOMP], &["seccomp: this kernel has no seccomp filters"]),
        (&[RINGS], &[]),
        (&[LANDLOCK, RINGS, SECCOMP], &["landlock: ", "seccomp: "]),
    ];
    for (forbidden, missing) in cases {
        for flags in [&[][..], &STREAMED[..]] {
            let prison = in_a_container(forbidden, move || Prison::new(flags));
            assert_locked(&prison);
            let said = prison.sandbox()["missing"].to_string();
            assert!(missing.iter().all(|what| said.contains(what)), "{said}");
            let without = |call| forbidden.contains(&call);
            assert!(!without(LANDLOCK) || prison.sandbox()["landlock"].is_null(), "{}", prison.sandbox());
            assert!(!without(SECCOMP) || prison.sandbox()["seccomp"] == false, "{}", prison.sandbox());
            assert!(!without(RINGS) || prison.sandbox()["rings"] == "none", "{}", prison.sandbox());
            assert_eq!(prison.answers(), expected, "{forbidden:?}");
        }
    }
}
