//! Units, launch agent and container file: what they say fits the program.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{output, text};

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(packaging(file)).unwrap()
}

/// The flags of a command line.
fn flags(words: &[String]) -> Vec<String> {
    words.iter().filter(|word| word.starts_with("--")).cloned().collect()
}

/// Asserts that `unfazed serve` has these flags.
fn assert_flags_of_serve(flags: &[String], whose: &str) {
    assert!(!flags.is_empty(), "{whose}");
    let help = text(&output(&["serve", "--help"]).stdout);
    for flag in flags {
        assert!(
            help.contains(&format!("{flag} ")),
            "{whose} gives {flag}, which `unfazed serve` does not have"
        );
    }
}

#[test]
fn units_start_the_program_with_flags_that_it_has_and_let_it_end_in_good_order() {
    for file in ["systemd/unfazed.service", "systemd/user/unfazed.service"] {
        let unit = read(file);
        let setting = |name: &str| {
            let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
            line.unwrap_or_else(|| panic!("{file} has no {name}")).to_owned()
        };
        let start: Vec<String> = setting("ExecStart").split(' ').map(str::to_owned).collect();
        assert!(start[0].ends_with("/unfazed") && start[1] == "serve", "{start:?}");
        assert_flags_of_serve(&flags(&start), file);
        assert_eq!(setting("Type"), "notify");
        // The engine must not get the signal that tells the server to let running answers end.
        assert_eq!(setting("KillMode"), "mixed");
        // The engine's end is not the service's.
        assert_eq!(setting("OOMPolicy"), "continue");
        assert_eq!(setting("RestartPreventExitStatus"), "2", "usage errors");
        assert!(setting("WatchdogSec").parse::<u32>().unwrap() >= 10);
    }
}

#[test]
fn the_launch_agent_is_a_property_list_that_restarts_what_did_not_end_well() {
    let agent = plist::Value::from_file(packaging("launchd/unfazed.serve.plist")).unwrap();
    let agent = agent.as_dictionary().unwrap();
    let text = |key: &str| agent.get(key).and_then(plist::Value::as_string).unwrap().to_owned();
    assert_eq!(text("Label"), "unfazed.serve");
    let arguments = agent.get("ProgramArguments").and_then(plist::Value::as_array).unwrap();
    let arguments: Vec<String> = arguments.iter().map(|word| word.as_string().unwrap().to_owned()).collect();
    assert!(arguments[0].ends_with("/unfazed-serve"), "{arguments:?}");
    assert_flags_of_serve(&flags(&arguments), "the launch agent");
    let keep = agent.get("KeepAlive").and_then(plist::Value::as_dictionary).unwrap();
    assert_eq!(keep.get("SuccessfulExit").and_then(plist::Value::as_boolean), Some(false));
    let number = |key: &str| agent.get(key).and_then(plist::Value::as_signed_integer).unwrap();
    assert!(number("ThrottleInterval") >= 10);
    assert!(number("ExitTimeOut") > 30, "longer than running requests have");
    for key in ["StandardOutPath", "StandardErrorPath"] {
        assert!(text(key).starts_with('/'), "{key}");
    }
}

#[test]
fn the_container_file_starts_the_program_as_nobody_special_with_flags_that_it_has() {
    let file = read("container/Containerfile");
    let list = |name: &str| -> Vec<String> {
        let line = file.lines().rev().find_map(|line| line.strip_prefix(&format!("{name} ")));
        serde_json::from_str(line.unwrap_or_else(|| panic!("no {name}"))).unwrap()
    };
    assert_eq!(list("ENTRYPOINT"), ["unfazed"]);
    let command = list("CMD");
    assert_eq!(command[0], "serve");
    assert_flags_of_serve(&flags(&command), "the container file");
    assert!(file.contains("\nUSER unfazed\n"));
    let (_, check) = file.split_once("\nHEALTHCHECK ").unwrap();
    assert!(check.lines().next().unwrap().ends_with("CMD [\"unfazed\", \"health\"]"), "{check}");
}

/// Runs the launch agent's script with a program that answers its gate as `gate` says.
fn launched(gate: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("unfazed");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = serve ]; then echo \"started: $*\"; exit 0; fi\n\
         [ \"$*\" = \"guard panic-gate --json\" ] || exit 99\n\
         asked=$(cat {0}/asked 2>/dev/null || echo 0); asked=$((asked + 1)); echo $asked > {0}/asked\n{gate}\n",
        folder.path().display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut agent = Command::new("/bin/sh");
    agent.arg(packaging("launchd/unfazed-serve")).args(["--port", "0"]);
    agent.env("UNFAZED", &program).env("GATE_EVERY", "0").output().unwrap()
}

#[test]
fn the_launch_agent_waits_for_a_closed_gate_and_not_for_one_that_is_broken() {
    let started = "started: serve --port 0\n";
    let open = launched("exit 0");
    assert_eq!((text(&open.stdout).as_str(), text(&open.stderr).as_str()), (started, ""));
    // Closed twice: said once, and started at the third time.
    let closed = launched("[ $asked -gt 2 ] && exit 0; echo '{\"exit_code\": 2}'; exit 2");
    assert_eq!(text(&closed.stdout), started);
    assert_eq!(text(&closed.stderr).matches("the panic gate is closed").count(), 1);
    let without_gate = "echo \"error: unrecognized subcommand 'guard'\" >&2; exit 2";
    for broken in ["exit 3", "exit 64", "echo torn; exit 1", "kill -9 $$", without_gate] {
        let output = launched(broken);
        assert_eq!(text(&output.stdout), started, "{broken}");
        assert!(text(&output.stderr).contains("the panic gate does not work"), "{broken}");
        assert!(output.status.success());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_launch_agents_script_can_be_executed() {
    let mode = std::fs::metadata(packaging("launchd/unfazed-serve")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0o111);
}
