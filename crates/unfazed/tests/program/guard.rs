//! `unfazed guard`, as metal-guard's callers use it: words, JSON, exit codes, files.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{output, program, signal, text, until, wait};

/// Reports of each signature that the gate counts, and how many they are.
const SIGNATURES: [(&str, &str); 6] = [
    ("prepare_count_underflow.panic", "prepare_count_underflow"),
    ("pending_memory_set.panic", "pending_memory_set"),
    ("remove_memory_object.panic", "remove_memory_object"),
    ("ctxstore_timeout.panic", "ctxstore_timeout"),
    ("metal_oom.panic", "metal_oom"),
    ("watchdogd_no_checkins.panic", "watchdogd_no_checkins"),
];
/// Nobody.
const NOBODY: u32 = 65534;

/// A user's home and a folder with reports.
struct Mac(tempfile::TempDir);

impl Mac {
    fn new() -> Mac {
        let mac = Mac(tempfile::tempdir().unwrap());
        for folder in [mac.home(), mac.reports().join("Retired")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        mac
    }

    fn home(&self) -> PathBuf {
        self.0.path().join("home")
    }

    fn reports(&self) -> PathBuf {
        self.0.path().join("reports")
    }

    /// Puts a made-up report of an event so many seconds ago, under a name.
    fn put(&self, report: &str, file: &str, ago: u64) -> PathBuf {
        let made_up =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../unfazed-guard/tests/reports").join(report);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - ago;
        let time = jiff::Timestamp::from_second(at.cast_signed()).unwrap();
        let time = time.strftime("%Y-%m-%d %H:%M:%S.00 +0000").to_string();
        let text = std::fs::read_to_string(made_up).unwrap();
        let path = self.reports().join(file);
        std::fs::write(&path, text.replace("@TIMESTAMP@", &time).replace("@CALENDAR@", &format!("{at:#x}")))
            .unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program(&["guard"]);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("METALGUARD_"))
        {
            command.env_remove(name);
        }
        command.args(args).env("HOME", self.home()).env("UNFAZED_GUARD_REPORTS", self.reports());
        command.env_remove("MLX_LOCK_PATH").env_remove("ZDOTDIR").current_dir(self.0.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What it ends with, and what it prints with `--json`.
    fn json(&self, args: &[&str]) -> (i32, Value) {
        let output = self.run(&[args, &["--json"]].concat());
        let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        (output.status.code().unwrap(), json)
    }

    fn gate(&self) -> (i32, Value) {
        self.json(&["panic-gate"])
    }
}

/// The keys of an object that a program which knows metal-guard asks for.
fn assert_keys(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(object.get(key).is_some(), "{key} is missing in {object:#}");
    }
}

#[test]
fn a_machine_on_which_nothing_happened_is_healthy() {
    let mac = Mac::new();
    for args in
        [&[][..], &["status"], &["panics"], &["breadcrumb"], &["mode"], &["panic-gate"], &["orphan-scan"]]
    {
        let quiet = mac.run(args);
        assert_eq!(quiet.status.code(), Some(0), "{args:?} {quiet:?}");
        assert!(quiet.stderr.is_empty(), "{quiet:?}");
    }
    assert!(text(&mac.run(&[]).stdout).contains("🟢 OK"));
    assert!(text(&mac.run(&["panics"]).stdout).starts_with("No panics in last 72h."));
    assert!(
        text(&mac.run(&["panic-gate"]).stdout)
            .starts_with("🟢 PROCEED  no recent IOGPU panics\n  24h=0 72h=0\n")
    );
}

#[test]
fn each_signature_closes_the_gate_and_is_told_by_its_name() {
    for (report, signature) in SIGNATURES {
        let mac = Mac::new();
        let file = mac.put(report, "panic-full-2026-04-16-233327.0002.panic", 600);
        let (code, gate) = mac.gate();
        assert_eq!((code, &gate["exit_code"]), (2, &2.into()), "{report}: {gate}");
        assert_keys(
            &gate,
            &["exit_code", "reason", "recent_panics_24h", "recent_panics_72h", "cooldown_until"],
        );
        assert_eq!((&gate["recent_panics_24h"], &gate["recent_panics_72h"]), (&1.into(), &1.into()));
        assert!(gate["cooldown_until"].is_string());
        let (code, panics) = mac.json(&["panics"]);
        assert_eq!((code, &panics["health"]), (1, &"warn".into()), "{report}");
        let panic = &panics["panics"][0];
        assert_keys(panic, &["ts", "signature", "explanation", "pid", "source_file"]);
        assert_eq!(panic["signature"], signature);
        assert_eq!(panic["source_file"], file.to_str().unwrap());
        assert_eq!(panic["time_from"], "calendar");
        let shown = text(&mac.run(&["panic-gate"]).stdout);
        assert!(shown.starts_with("🟡 COOLDOWN  cooldown 2.0h until "), "{shown}");
    }
}

#[test]
fn unrelated_panics_are_listed_and_leave_the_gate_open() {
    let mac = Mac::new();
    for (at, report) in
        ["unrelated_disk.panic", "unrelated_underflow.panic", "unrelated_userspace_watchdog.panic"]
            .iter()
            .enumerate()
    {
        mac.put(report, &format!("panic-full-{at}.panic"), 60 * (at as u64 + 1));
    }
    assert_eq!(mac.gate().0, 0);
    let (code, panics) = mac.json(&["panics"]);
    assert_eq!((code, &panics["panics_count"]), (1, &3.into()));
    assert!(panics["panics"].as_array().unwrap().iter().all(|panic| panic["signature"] == "unknown"));
}

#[test]
fn five_panics_are_critical_and_a_window_can_be_chosen() {
    let mac = Mac::new();
    for hours in [1, 2, 30, 40, 50] {
        mac.put("remove_memory_object.panic", &format!("panic-full-{hours}.panic"), hours * 3600);
    }
    let (code, status) = mac.json(&[]);
    assert_eq!((code, &status["health"], &status["exit_code"]), (2, &"critical".into(), &2.into()));
    let keys =
        ["version", "health", "exit_code", "panics_window_hours", "panics_count", "panics", "mlx_lock"];
    assert_keys(&status, &keys);
    assert_keys(&status, &["mode", "memory", "breadcrumb"]);
    assert_keys(&status["mode"], &["mode", "description", "env_var"]);
    assert_keys(&status["breadcrumb"], &["path", "lines"]);
    let (code, panics) = mac.json(&["panics", "--since-hours", "24.5"]);
    assert_eq!((code, &panics["panics_count"], &panics["panics_window_hours"]), (1, &2.into(), &24.5.into()));
    assert!(text(&mac.run(&["status"]).stdout).contains("🔴 CRITICAL"));
}

#[test]
fn a_lockout_lasts_until_somebody_has_looked() {
    let mac = Mac::new();
    mac.put("pending_memory_set.panic", "panic-full-a.panic", 3 * 3600);
    mac.put("ctxstore_timeout.panic", "panic-full-b.panic", 2 * 3600);
    let (code, gate) = mac.gate();
    assert!(code == 2 && gate["reason"].as_str().unwrap().starts_with("lockout: 24h=2 72h=2"), "{gate}");
    assert_eq!(gate["cooldown_until"], Value::Null);
    let (code, ack) = mac.json(&["ack"]);
    assert_eq!((code, &ack["status"]), (0, &"touched".into()));
    assert_eq!(ack["ack_path"], mac.home().join(".metal-guard-ack").to_str().unwrap());
    assert_eq!((mac.gate().0, &mac.gate().1["reason"]), (0, &"lockout cleared by ack".into()));
    // A panic later than that has to be looked at again.
    mac.put("remove_memory_object.panic", "panic-full-c.panic", 0);
    let old = SystemTime::now() - std::time::Duration::from_secs(60);
    let ack = std::fs::File::options().append(true).open(mac.home().join(".metal-guard-ack")).unwrap();
    ack.set_modified(old).unwrap();
    assert_eq!(mac.gate().0, 2);
}

#[test]
fn the_environment_sets_thresholds_and_the_kill_switch() {
    let mac = Mac::new();
    mac.put("remove_memory_object.panic", "panic-full-a.panic", 600);
    let gate = |name: &str, value: &str| {
        let output = mac.command(&["panic-gate"]).env(name, value).output().unwrap();
        (output.status.code().unwrap(), text(&output.stderr))
    };
    assert_eq!(gate("METALGUARD_PANIC_GATE_DISABLED", "1"), (0, String::new()));
    assert_eq!(gate("METALGUARD_PANIC_COOLDOWN_STAGE1_H", "0.1"), (0, String::new()));
    assert_eq!(gate("METALGUARD_PANIC_LOCKOUT_24H_N", "1").0, 2);
    let (code, said) = gate("METALGUARD_PANIC_COOLDOWN_STAGE1_H", "soon");
    assert!(code == 2 && said.contains("METALGUARD_PANIC_COOLDOWN_STAGE1_H=\"soon\""), "{said}");
}

/// As a script that launchd starts asks the gate.
const WRAPPER: &str = "\
\"$UNFAZED\" guard \"$@\" >/dev/null 2>&1; code=$?
case $code in
  0) echo proceed ;;
  1) echo found ;;
  2) echo skip ;;
  64) echo usage ;;
  *) echo broken $code ;;
esac";

#[test]
fn scripts_that_metal_guard_has_find_their_exit_codes() {
    let mac = Mac::new();
    let script = mac.0.path().join("wrapper.sh");
    std::fs::write(&script, WRAPPER).unwrap();
    let call = |variables: &[(&str, &str)], args: &[&str]| {
        let mut shell = Command::new("/bin/sh");
        shell.arg(&script).args(args).env("UNFAZED", env!("CARGO_BIN_EXE_unfazed"));
        shell.env("HOME", mac.home()).env("UNFAZED_GUARD_REPORTS", mac.reports()).current_dir(mac.0.path());
        shell.envs(variables.iter().copied());
        text(&shell.output().unwrap().stdout).trim_end().to_owned()
    };
    assert_eq!(call(&[], &["panic-gate"]), "proceed");
    assert_eq!(call(&[], &["panic-gat"]), "usage");
    assert_eq!(call(&[], &["panic-gate", "--hours", "3"]), "usage");
    assert_eq!(call(&[], &["panics", "--since-hours", "many"]), "usage");
    assert_eq!(call(&[], &["postmortem"]), "usage");
    assert_eq!(call(&[], &["--help"]), "proceed");

    // Nobody says where the state is.
    assert_eq!(call(&[("HOME", "here")], &["panic-gate"]), "broken 3");
    assert_eq!(call(&[("HOME", "here")], &["status"]), "broken 3");
    // The folder that was named is not there.
    assert_eq!(call(&[("UNFAZED_GUARD_REPORTS", "/nowhere")], &["panic-gate"]), "broken 3");
    // What somebody asked for cannot be read.
    let sentinel = mac.home().join(".cache/metal-guard/panic-sentinel.json");
    std::fs::create_dir_all(sentinel.parent().unwrap()).unwrap();
    std::fs::write(&sentinel, "{\"cooldown_until\": ").unwrap();
    assert_eq!(call(&[], &["panic-gate"]), "broken 3");
    let shown = mac.run(&["panic-gate"]);
    assert!(text(&shown.stdout).starts_with("🔴 GATE BROKEN  the gate cannot see everything: "), "{shown:?}");

    // What it does see closes it, also with all of that.
    mac.put("metal_oom.panic", "panic-full-a.panic", 60);
    assert_eq!(call(&[], &["panic-gate"]), "skip");
    assert_eq!(call(&[], &["panics"]), "found");
    // A verdict is one, read or not.
    let closed = "\"$UNFAZED\" guard panic-gate >&- 2>&-; echo $?";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", closed]).env("UNFAZED", env!("CARGO_BIN_EXE_unfazed")).env("HOME", mac.home());
    shell.env("UNFAZED_GUARD_REPORTS", mac.reports());
    assert_eq!(text(&shell.output().unwrap().stdout).trim(), "2");
}

/// As a user to whom files can be closed, which they are not to root.
fn as_nobody(command: &mut Command) -> &mut Command {
    if rustix::process::getuid().is_root() { command.uid(NOBODY).gid(NOBODY) } else { command }
}

#[test]
fn a_report_that_belongs_to_root_is_told_and_closes_the_gate() {
    let mac = Mac::new();
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    // Anybody may come this far, the program included.
    let own = mac.0.path().join("unfazed");
    std::fs::copy(env!("CARGO_BIN_EXE_unfazed"), &own).unwrap();
    for folder in [mac.0.path(), &own, &mac.home(), &mac.reports(), &mac.reports().join("Retired")] {
        mode(folder, 0o755);
    }
    let report = mac.put("remove_memory_object.panic", "panic-full-a.panic", 600);
    mode(&report, 0o000);
    let run = |args: &[&str]| {
        let mut command = Command::new(&own);
        command.arg("guard").args(args).env("HOME", mac.home()).env("UNFAZED_GUARD_REPORTS", mac.reports());
        as_nobody(&mut command).current_dir("/").stdin(Stdio::null()).output().unwrap()
    };
    let gate = run(&["panic-gate", "--json"]);
    assert_eq!(gate.status.code(), Some(2), "{gate:?}");
    let verdict: Value = serde_json::from_slice(&gate.stdout).unwrap();
    assert_eq!((&verdict["recent_panics_72h"], &verdict["unreadable_72h"]), (&0.into(), &1.into()));
    assert!(text(&gate.stderr).contains("ermission denied"), "{gate:?}");
    let status = run(&["status", "--json"]);
    assert_eq!(status.status.code(), Some(1));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["unreadable"][0]["source_file"], report.to_str().unwrap());
    assert_eq!(status["unreadable"][0]["kind"], "panic");
    // The whole folder: the gate sees nothing at all.
    mode(&mac.reports(), 0o000);
    let gate = run(&["panic-gate"]);
    mode(&mac.reports(), 0o755);
    assert_eq!(gate.status.code(), Some(3), "{gate:?}");
}

#[test]
fn gpu_events_are_counted_with_reason_and_signature() {
    let mac = Mac::new();
    mac.put("gpuEvent-restart.ips", "gpuEvent-python3.12-2026-04-16-100000.ips", 600);
    mac.put("gpuEvent-restart.ips", "gpuEvent-python3.12-2026-04-16-090000.ips", 4200);
    mac.put("abort_metal.ips", "python3.12-2026-04-16-100000.ips", 600);
    let (code, status) = mac.json(&["status"]);
    assert_eq!((code, &status["gpu_events"]["count"]), (0, &2.into()));
    let groups = &status["gpu_events"]["groups"];
    assert_eq!(groups, &serde_json::json!([{"restart_reason": 4, "signature": 579, "count": 2}]));
    assert_eq!(status["aborts"][0]["class"], "gpu_interactivity");
    let (code, gate) = mac.gate();
    assert_eq!((code, &gate["gpu_events_24h"], &gate["abort_count_24h"]), (0, &2.into(), &1.into()));
    let shown = text(&mac.run(&["panics"]).stdout);
    assert!(
        shown.contains("restart_reason=4 (firmware-detected lockup) signature=579, python3.12"),
        "{shown}"
    );
}

#[test]
fn a_postmortem_has_all_in_one_folder_and_closes_the_gate() {
    let mac = Mac::new();
    let logs = mac.0.path().join("logs");
    std::fs::create_dir_all(&logs).unwrap();
    let line = "[2026-04-16 23:33:27] SUBPROC_PRE: a/model\n";
    std::fs::write(logs.join("metal_breadcrumb.log"), line.repeat(700)).unwrap();
    for hours in 1..=7 {
        mac.put("remove_memory_object.panic", &format!("panic-full-{hours}.panic"), hours * 3600);
    }
    mac.put("torn.panic", "panic-full-torn.panic", 60);
    let folder = mac.0.path().join("new/bundle");
    let (code, bundle) = mac.json(&["postmortem", folder.to_str().unwrap()]);
    assert_eq!((code, &bundle["status"], &bundle["panic_count"]), (0, &"collected".into(), &5.into()));
    assert_keys(&bundle, &["output_dir", "index", "sentinel"]);
    let index = std::fs::read_to_string(folder.join("index.md")).unwrap();
    for part in
        ["# Postmortem ", "`panic-full-1.panic`: remove_memory_object", "panic-full-torn.panic`: unreadable"]
    {
        assert!(index.contains(part), "{index}");
    }
    assert!(!folder.join("panic-full-6.panic").exists(), "the latest five are enough");
    let crumbs = std::fs::read_to_string(folder.join("breadcrumb_tail.log")).unwrap();
    assert_eq!(crumbs.lines().count(), 500);
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let sentinel: Value =
        serde_json::from_slice(&std::fs::read(bundle["sentinel"].as_str().unwrap()).unwrap()).unwrap();
    assert_keys(&sentinel, &["cooldown_until", "created_at"]);
    // Whoever acknowledges hears that the sentinel still holds.
    assert!(text(&mac.run(&["ack"]).stdout).contains("the gate stays closed until"));
    let (code, gate) = mac.gate();
    assert!(code == 2 && gate["reason"].as_str().unwrap().starts_with("sentinel cooldown until"), "{gate}");

    let off = mac
        .command(&["postmortem", "x", "--json"])
        .env("METALGUARD_POSTMORTEM_DISABLED", "1")
        .output()
        .unwrap();
    let off: Value = serde_json::from_slice(&off.stdout).unwrap();
    assert!(off["status"] == "disabled" && !mac.0.path().join("x").exists());
    let nowhere = mac.run(&["postmortem", "/proc/nowhere"]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
}

#[test]
fn a_status_file_is_written_once_or_until_it_is_ended() {
    let mac = Mac::new();
    mac.put("prepare_count_underflow.panic", "panic-full-a.panic", 600);
    let file = mac.home().join(".cache/metal-guard/status.json");
    let (code, once) = mac.json(&["status-write", "--once"]);
    assert_eq!((code, &once["mode"], &once["out"]), (0, &"once".into(), &file.to_str().unwrap().into()));
    let read = || serde_json::from_slice::<Value>(&std::fs::read(&file).ok()?).ok();
    let status = read().unwrap();
    assert_eq!((&status["schema_version"], &status["lock"]["held"]), (&"1.0".into(), &false.into()));
    let keys =
        ["captured_at", "memory", "kv_monitor", "recent_panics", "breadcrumb_tail", "mode", "panic_cooldown"];
    assert_keys(&status, &keys);
    assert_eq!(
        (&status["mode"]["current"], &status["memory"]["available"]),
        (&"defensive".into(), &false.into())
    );
    assert_eq!(status["panic_cooldown"]["exit_code"], 2);
    assert_eq!(status["recent_panics"][0]["signature"], "prepare_count_underflow");
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    let failed = mac.run(&["status-write", "--once", "--out", "/proc/nowhere/status.json"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");

    let first = status["captured_at"].clone();
    let mut writer = mac.command(&["status-write", "--interval", "0.1"]).spawn().unwrap();
    until("it is written again", || read().is_some_and(|status| status["captured_at"] != first));
    signal(&writer, Signal::TERM);
    assert_eq!(wait(&mut writer).code(), Some(0));
}

#[test]
fn work_that_never_ended_is_found() {
    let mac = Mac::new();
    let log = mac.0.path().join("crumbs");
    let now = jiff::Timestamp::now();
    let crumb = |ago: i64, tag: &str, payload: &str| {
        let at = now.checked_sub(jiff::SignedDuration::from_secs(ago)).unwrap();
        unfazed_guard::breadcrumb::append(&log, at, tag, payload, &[("ctx", "7")]).unwrap();
    };
    crumb(300, "SUBPROCESS_WORKER", "a/model ready, pid=4711");
    crumb(200, "SUBPROC_PRE", "a/model");
    crumb(190, "SUBPROC_PRE", "b/model");
    crumb(180, "SUBPROC_POST", "b/model");
    let log = log.to_str().unwrap();
    let (code, found) = mac.json(&["orphan-scan", "--breadcrumbs", log]);
    assert_eq!((code, &found["threshold_sec"]), (1, &90.0.into()));
    let [orphan] = found["orphans"].as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!((&orphan["model_id"], &orphan["pid"]), (&"a/model".into(), &4711.into()));
    assert!(orphan["age_sec"].as_f64().unwrap() >= 200.0 && orphan["pre_ts"].is_string());
    assert_eq!(mac.json(&["orphan-scan", "--breadcrumbs", log, "--threshold-sec", "900"]).0, 0);
    let shown = text(&mac.run(&["breadcrumb", "--breadcrumbs", log, "-n", "2"]).stdout);
    assert!(shown.contains("SUBPROC_POST: b/model") && !shown.contains("SUBPROCESS_WORKER"), "{shown}");
    // An error is no orphan: whoever finds one ends a process.
    assert_eq!(mac.run(&["orphan-scan", "--breadcrumbs", "/"]).status.code(), Some(3));
}

#[test]
fn a_lock_of_a_process_that_has_ended_is_a_warning() {
    let mac = Mac::new();
    let lock = mac.home().join(".metal-guard/locks/mlx_exclusive.lock");
    std::fs::create_dir_all(lock.parent().unwrap()).unwrap();
    let put = |pid: u32| {
        let info = serde_json::json!({"pid": pid, "label": "bench", "started_at": "2026-04-16T10:00:00Z", "cmdline": ""});
        std::fs::write(&lock, info.to_string()).unwrap();
    };
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    put(child.id());
    let (code, status) = mac.json(&[]);
    assert_eq!(
        (code, &status["mlx_lock"]["label"], &status["mlx_lock"]["stale"]),
        (1, &"bench".into(), &true.into())
    );
    assert!(lock.exists(), "who looks changes nothing");
    assert!(text(&mac.run(&[]).stdout).contains("held by bench"));
}

#[test]
fn the_block_of_a_shell_asks_the_gate_before_python() {
    let mac = Mac::new();
    let tools = mac.0.path().join("tools");
    std::fs::create_dir_all(&tools).unwrap();
    let python = tools.join("python3");
    std::fs::write(&python, "#!/bin/sh\necho \"ran $*\"\n").unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let profile = mac.home().join(".bashrc");
    std::fs::write(&profile, "PATH=\"$TOOLS:$PATH\"\n").unwrap();

    let printed = mac.run(&["install", "--print", "--shell", "bash"]);
    assert_eq!(printed.status.code(), Some(0));
    assert!(text(&printed.stdout).contains("METALGUARD_SHELL_GUARD_DISABLED"));
    assert_eq!(std::fs::read_to_string(&profile).unwrap().lines().count(), 1, "printing changes nothing");
    for word in ["installed", "was there already"] {
        let (code, done) = mac.json(&["install", "--shell", "bash"]);
        assert_eq!((code, &done["block"]), (0, &word.into()));
    }
    let shell = |line: &str, variables: &[(&str, &str)]| {
        let mut shell = Command::new("bash");
        shell.args(["--noprofile", "--norc", "-c", &format!(". \"$PROFILE\"; {line}; echo code $?")]);
        shell.env("PROFILE", &profile).env("TOOLS", &tools).env("HOME", mac.home());
        shell.env("UNFAZED_GUARD_REPORTS", mac.reports()).envs(variables.iter().copied());
        text(&shell.output().unwrap().stdout)
    };
    assert_eq!(shell("python3 -c 'import mlx' x", &[]), "ran -c import mlx x\ncode 0\n");
    mac.put("remove_memory_object.panic", "panic-full-a.panic", 600);
    assert_eq!(shell("python3 -c x", &[]), "code 10\n");
    assert_eq!(shell("python3 -m pip install x", &[]), "ran -m pip install x\ncode 0\n");
    assert_eq!(shell("python3 -c x", &[("MLX_SAFE_PYTHON_FORCE", "1")]), "ran -c x\ncode 0\n");
    assert_eq!(shell("python3 -c x", &[("METALGUARD_SHELL_GUARD_DISABLED", "1")]), "ran -c x\ncode 0\n");
    // A gate that is broken lets everything begin.
    assert_eq!(shell("python3 -c x", &[("UNFAZED_GUARD_REPORTS", "/nowhere")]), "ran -c x\ncode 0\n");
    let (code, done) = mac.json(&["install", "--uninstall", "--shell", "bash"]);
    assert_eq!((code, &done["block"]), (0, &"removed".into()));
    assert_eq!(std::fs::read_to_string(&profile).unwrap(), "PATH=\"$TOOLS:$PATH\"\n");
    let unknown = mac.command(&["install"]).env("SHELL", "/usr/bin/fish").output().unwrap();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("--shell zsh"), "{unknown:?}");
}

#[test]
fn help_teaches_by_example_and_other_commands_keep_their_exit_codes() {
    let help = text(&output(&["guard", "--help"]).stdout);
    for part in [
        "Examples:",
        "panic-gate",
        "postmortem",
        "status-write",
        "orphan-scan",
        "ack",
        "install",
        "case $code",
    ] {
        assert!(help.contains(part), "{part} is missing in\n{help}");
    }
    assert_eq!(output(&["guard", "--no-such-flag"]).status.code(), Some(64));
    assert_eq!(output(&["serve", "--no-such-flag"]).status.code(), Some(2));
}
