//! `unfazed doctor`: the audit of this machine.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::{program, text};

/// Runs the program with a cache folder of its own.
fn doctor(cache: &tempfile::TempDir, args: &[&str]) -> Output {
    program(&["doctor"]).args(args).env("XDG_CACHE_HOME", cache.path()).output().unwrap()
}

/// The same below limits of a shell's, as JSON.
fn limited(limits: &str) -> (Option<i32>, Value) {
    let cache = tempfile::tempdir().unwrap();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("{limits} && exec \"$0\" doctor --json"), env!("CARGO_BIN_EXE_unfazed")]);
    let output = shell.env("XDG_CACHE_HOME", cache.path()).stdin(Stdio::null()).output().unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    (output.status.code(), json)
}

fn line<'j>(json: &'j Value, check: &str) -> &'j Value {
    let lines = json["lines"].as_array().unwrap();
    lines.iter().find(|line| line["check"] == check).unwrap_or_else(|| panic!("no line {check} in {json}"))
}

#[test]
fn doctor_says_the_same_to_people_and_programs_and_its_exit_code_whether_to_act() {
    let cache = tempfile::tempdir().unwrap();
    let output = doctor(&cache, &["--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines = json["lines"].as_array().unwrap();
    let acts = lines.iter().any(|line| line["verdict"] == "warn" || line["verdict"] == "problem");
    assert_eq!(output.status.code(), Some(i32::from(acts)));
    assert_eq!(json["ok"], !acts);
    assert_eq!(json["storage"], Value::Null);
    for line in lines {
        let check = line["check"].as_str().unwrap();
        assert!(unfazed_host::audit::CHECKS.contains(&check), "{check}");
        for field in ["found", "reason"] {
            assert!(!line[field].as_str().unwrap().is_empty(), "{line}");
        }
        if line["verdict"] == "warn" || line["verdict"] == "problem" {
            assert!(
                line["command"].is_string() || line["check"] == "processor" || line["check"] == "seccomp",
                "{line}"
            );
        }
    }
    let people = doctor(&cache, &[]);
    assert_eq!(people.status.code(), output.status.code());
    let people = text(&people.stdout);
    assert!(!people.contains('\u{1b}'), "no colour in a pipe:\n{people}");
    for shown in people.lines().filter(|line| !line.starts_with("         do: ")) {
        // A name without a space, such as a folder's, is not broken.
        assert!(shown.chars().count() <= 80 || shown.trim().split(' ').count() < 3, "{shown}");
    }
    let marks = people.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    assert_eq!(marks.count(), lines.len(), "{people}");
    let verdict = if acts { "should be done: " } else { "Nothing has to be done: " };
    assert!(people.contains(verdict), "{people}");
}

#[test]
fn doctor_finds_limits_that_a_server_would_suffer_from() {
    let (code, json) = limited("ulimit -f 2000000");
    let sizes = line(&json, "size_limits");
    assert_eq!((code, &sizes["verdict"]), (Some(1), &"warn".into()), "{sizes}");
    assert_eq!(sizes["command"], "ulimit -f unlimited");
    let (code, json) = limited("ulimit -n 40");
    let files = line(&json, "open_files");
    assert_eq!((code, &files["verdict"]), (Some(1), &"problem".into()), "{files}");
    let (_, json) = limited("ulimit -n 1000");
    assert!(line(&json, "open_files")["reason"].as_str().unwrap().starts_with("room for 744 connections"));
    let (_, json) = limited("ulimit -c 0");
    assert_eq!(line(&json, "core_dumps")["verdict"], "ok");
}

/// What it says of a limit is what happens.
#[test]
fn a_server_below_a_limit_that_doctor_calls_a_problem_does_not_start() {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -n 40 && exec \"$0\" serve --port 0", env!("CARGO_BIN_EXE_unfazed")]);
    let output = shell.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("ulimit -n 64"), "{}", text(&output.stderr));
}

#[cfg(target_os = "linux")]
#[test]
fn doctor_agrees_with_what_an_engine_says_of_this_machine() {
    let server = crate::support::Server::start(&[]);
    let sandbox = &server.ready["settings"]["sandbox"];
    let (_, json) = limited("true");
    let fine = |check: &str| line(&json, check)["verdict"] == "ok";
    assert_eq!(fine("seccomp"), sandbox["seccomp"] == true, "{sandbox}");
    assert_eq!(fine("landlock"), !sandbox["landlock"].is_null(), "{sandbox}");
    assert_eq!(fine("io_uring"), sandbox["rings"] == "restricted", "{sandbox}");
    let isa = server.ready["settings"]["isa"].as_str().unwrap();
    let processor = line(&json, "processor")["found"].as_str().unwrap();
    assert!(processor.ends_with(&format!("kernels for {isa}")), "{processor}");
}

#[test]
fn doctor_refuses_what_it_does_not_understand_with_2_and_a_closed_pipe_is_a_clean_end() {
    let cache = tempfile::tempdir().unwrap();
    for args in [&["--seconds", "0"][..], &["--deep"], &["somewhere"]] {
        assert_eq!(doctor(&cache, args).status.code(), Some(2), "{args:?}");
    }
    let mut child = program(&["doctor"]).env("XDG_CACHE_HOME", cache.path()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), text(&ended.stderr).as_str()), (Some(0), ""));
}
