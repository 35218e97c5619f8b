//! The GPU's lock between processes.
//!
//! A test that needs another process starts this program again, with what it has to do in its environment.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use unfazed_guard::lock::{GpuLock, Held, LockError, LockFiles, Who, metal_guard, process};

const PATIENCE: Duration = Duration::from_secs(60);
/// What the other process has to do.
const TASK: &str = "UNFAZED_LOCK_TEST";

fn who() -> Who {
    Who { label: "a test".to_owned(), cmdline: "test --of lock".to_owned() }
}

/// A folder for locks, with and without metal-guard's file.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn alone(&self) -> LockFiles {
        LockFiles { locked: self.0.path().join("own/gpu-any.lock"), metal_guard: None }
    }

    fn both(&self) -> LockFiles {
        LockFiles { metal_guard: Some(self.metal_guard()), ..self.alone() }
    }

    fn metal_guard(&self) -> PathBuf {
        self.0.path().join("mg/locks/mlx_exclusive.lock")
    }

    /// What metal-guard would write.
    fn put(&self, pid: u32, started_at: &str, cmdline: &str) {
        let path = self.metal_guard();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let info = json!({"pid": pid, "label": "bench", "started_at": started_at, "cmdline": cmdline});
        fs::write(path, info.to_string()).unwrap();
    }
}

/// Another process that takes a lock and keeps it until its input ends. It says so in a line.
struct Other {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Other {
    fn start(task: &str, files: &LockFiles) -> Other {
        let task = json!({"task": task, "locked": files.locked, "metal_guard": files.metal_guard});
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--ignored", "--nocapture"])
            .env(TASK, task.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Other { child, said }
    }

    /// The next line that it says.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it ended");
            if let Some((_, said)) = line.split_once("SAYS ") {
                return said.trim_end().to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(line: &str) {
    println!("SAYS {line}");
    std::io::stdout().flush().unwrap();
}

/// Not a test by itself: what [`Other`] runs.
#[test]
#[ignore = "it is started by the other tests"]
fn the_other_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Value = serde_json::from_str(&task).unwrap();
    let path = |key: &str| task[key].as_str().map(PathBuf::from);
    let files = LockFiles { locked: path("locked").unwrap(), metal_guard: path("metal_guard") };
    match task["task"].as_str().unwrap() {
        "hold" => {
            let _lock = GpuLock::take(&files, &who()).unwrap();
            say("held");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "wait" => {
            let _lock =
                GpuLock::wait(&files, &who(), |held| say(&format!("waits for {}", held.pid.unwrap())))
                    .unwrap();
            say("held");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        // Leaves a child that has the lock.
        "share" => {
            let lock = GpuLock::take(&files, &who()).unwrap();
            lock.share_with_children().unwrap();
            let child =
                Command::new("sleep").arg("600").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
            say(&child.id().to_string());
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            std::mem::forget(child);
        }
        // As many turns as it gets until its input ends, each of them alone.
        "turns" => {
            let inside = files.locked.with_file_name("inside");
            for _ in 0..5 {
                let lock = GpuLock::wait(&files, &who(), |_| {}).unwrap();
                fs::File::options()
                    .write(true)
                    .create_new(true)
                    .open(&inside)
                    .expect("somebody else is inside");
                std::thread::sleep(Duration::from_millis(10));
                fs::remove_file(&inside).unwrap();
                drop(lock);
            }
            say("done");
        }
        other => panic!("{other}"),
    }
}

fn held(files: &LockFiles) -> Held {
    match GpuLock::take(files, &who()) {
        Err(LockError::Held(held)) => *held,
        other => panic!("{other:?}"),
    }
}

/// Waits until the lock can be taken.
fn taken(files: &LockFiles) -> GpuLock {
    let start = Instant::now();
    loop {
        match GpuLock::take(files, &who()) {
            Err(LockError::Held(held)) => assert!(start.elapsed() < PATIENCE, "{held}"),
            taken => return taken.unwrap(),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_second_one_hears_who_is_first_and_gets_it_when_that_is_killed() {
    let place = Place::new();
    for files in [place.alone(), place.both()] {
        let mut other = Other::start("hold", &files);
        assert_eq!(other.line(), "held");
        let held = held(&files);
        assert_eq!(held.pid, Some(other.child.id()));
        assert_eq!((held.cmdline.as_str(), held.label.as_str()), ("test --of lock", "a test"));
        assert!(held.since.is_some() && held.left_behind.is_empty());
        let said = held.to_string();
        assert!(said.contains(&format!("pid {} (test --of lock) since 20", other.child.id())), "{said}");
        other.kill();
        drop(taken(&files));
        assert!(!place.metal_guard().exists(), "metal-guard's file goes with the lock");
    }
}

#[test]
fn who_waits_is_told_for_whom_and_goes_on() {
    let place = Place::new();
    let files = place.both();
    let mut first = Other::start("hold", &files);
    assert_eq!(first.line(), "held");
    let mut second = Other::start("wait", &files);
    assert_eq!(second.line(), format!("waits for {}", first.child.id()));
    first.kill();
    assert_eq!(second.line(), "held");
    assert_eq!(held(&files).pid, Some(second.child.id()));
    drop(second.child.stdin.take());
    drop(taken(&files));
}

#[test]
fn a_child_that_has_the_descriptor_keeps_the_lock() {
    let place = Place::new();
    let files = place.alone();
    let mut front = Other::start("share", &files);
    let engine: i32 = front.line().parse().unwrap();
    front.kill();
    let held = held(&files);
    assert_eq!(held.pid, Some(front.child.id()));
    if cfg!(target_os = "linux") {
        assert_eq!(held.left_behind, [u32::try_from(engine).unwrap()]);
        assert!(
            held.to_string().contains(&format!("pid {engine}, which pid {}", front.child.id())),
            "{held}"
        );
    }
    kill_process(Pid::from_raw(engine).unwrap(), Signal::KILL).unwrap();
    drop(taken(&files));
}

#[test]
fn many_processes_take_turns_and_never_two_at_once() {
    let place = Place::new();
    let files = place.both();
    // A stale file that all of them want to remove.
    place.put(gone(), "2026-01-01T00:00:00Z", "python old.py");
    let mut others: Vec<Other> = (0..6).map(|_| Other::start("turns", &files)).collect();
    others.iter_mut().for_each(|other| assert_eq!(other.line(), "done"));
    for mut other in others {
        assert!(other.child.wait().unwrap().success());
    }
    let left = fs::read_dir(place.metal_guard().parent().unwrap()).unwrap().count();
    assert_eq!(left, 0, "nothing is left beside the lock");
}

/// The number of a process that has ended.
fn gone() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[test]
fn a_file_of_metal_guard_holds_while_its_process_runs() {
    let place = Place::new();
    let files = place.both();
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let started = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    place.put(sleeper.id(), &started, "sleep 600");
    let held = held(&files);
    assert_eq!(
        (held.pid, held.label.as_str(), held.since.as_deref()),
        (Some(sleeper.id()), "bench", Some(started.as_str()))
    );
    assert_eq!(held.path, place.metal_guard());
    // Its own lock is free again meanwhile.
    drop(GpuLock::take(&place.alone(), &who()).unwrap());
    sleeper.kill().unwrap();
    // Not waited for yet: a zombie holds nothing.
    drop(taken(&files));
    sleeper.wait().unwrap();
}

#[test]
fn a_number_that_was_given_to_another_process_holds_nothing() {
    let place = Place::new();
    let files = place.both();
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    // While it becomes the other program nobody knows what it is.
    let start = Instant::now();
    while process::look(sleeper.id()).and_then(|process| process.command).as_deref() != Some("sleep 600") {
        assert!(start.elapsed() < PATIENCE, "it does not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    for (started, cmdline, is_held) in [
        // Long before that process began, and as something else.
        ("2026-01-01T00:00:00Z", "python bench.py", false),
        // The clock was set meanwhile: it is the same program.
        ("2026-01-01T00:00:00Z", "sleep 600", true),
        // It began before the lock was taken.
        ("2199-01-01T00:00:00Z", "python bench.py", true),
        // Nothing is known: better to wait.
        ("", "python bench.py", true),
    ] {
        place.put(sleeper.id(), started, cmdline);
        let holder = metal_guard::read(&place.metal_guard(), jiff::Timestamp::now()).unwrap().unwrap();
        assert_eq!(holder.stale, !is_held, "{started} {cmdline}");
        let taken = GpuLock::take(&files, &who());
        assert_eq!(matches!(taken, Err(LockError::Held(_))), is_held, "{taken:?}");
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn a_file_that_says_nothing_holds_until_nobody_can_be_writing_it() {
    let place = Place::new();
    let files = place.both();
    let path = place.metal_guard();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    for text in ["", "{\"pid\": 12", "[]", "{\"pid\": -7}", "{\"pid\": 99999999999}"] {
        fs::write(&path, text).unwrap();
        assert_eq!(held(&files).pid, None, "{text}");
        let old = std::time::SystemTime::now() - Duration::from_secs(60);
        fs::File::options().append(true).open(&path).unwrap().set_modified(old).unwrap();
        drop(GpuLock::take(&files, &who()).unwrap());
    }
}

#[test]
fn who_became_another_program_keeps_its_lock() {
    let place = Place::new();
    place.put(std::process::id(), "2026-01-01T00:00:00Z", "python wrapper.py");
    let lock = GpuLock::take(&place.both(), &who()).unwrap();
    assert!(fs::read_to_string(place.metal_guard()).unwrap().contains("a test"));
    drop(lock);
}

#[test]
fn another_ones_file_is_not_removed() {
    let place = Place::new();
    let lock = GpuLock::take(&place.both(), &who()).unwrap();
    // metal-guard writes over it when it has looked before.
    let new = place.metal_guard().with_extension("tmp");
    fs::write(&new, json!({"pid": std::process::id(), "label": "late"}).to_string()).unwrap();
    fs::rename(&new, place.metal_guard()).unwrap();
    drop(lock);
    assert!(fs::read_to_string(place.metal_guard()).unwrap().contains("late"));
}

#[test]
fn a_lock_file_that_was_removed_is_not_the_lock() {
    let place = Place::new();
    let files = place.alone();
    let first = GpuLock::take(&files, &who()).unwrap();
    drop(first);
    fs::remove_file(&files.locked).unwrap();
    let second = GpuLock::take(&files, &who()).unwrap();
    assert!(matches!(GpuLock::take(&files, &who()), Err(LockError::Held(_))));
    drop(second);
}

#[test]
fn files_are_their_owners_alone_and_links_are_not_followed() {
    let place = Place::new();
    let files = place.both();
    let lock = GpuLock::take(&files, &who()).unwrap();
    let rights = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(rights(&files.locked), 0o600);
    assert_eq!(rights(files.locked.parent().unwrap()), 0o700);
    assert_eq!(rights(&place.metal_guard()), 0o600);
    drop(lock);

    let elsewhere = place.0.path().join("elsewhere");
    fs::write(&elsewhere, "precious").unwrap();
    fs::remove_file(&files.locked).unwrap();
    symlink(&elsewhere, &files.locked).unwrap();
    assert!(GpuLock::take(&files, &who()).is_err());
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");

    // A folder that others may write is no place for a lock, and neither is a link to one.
    let open = place.0.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let link = place.0.path().join("link");
    symlink(files.locked.parent().unwrap(), &link).unwrap();
    for folder in [open, link] {
        let files = LockFiles { locked: folder.join("gpu-any.lock"), metal_guard: None };
        assert!(matches!(GpuLock::take(&files, &who()), Err(LockError::Foreign { .. })), "{folder:?}");
    }
}

#[test]
fn only_those_who_share_it_have_the_descriptor_in_their_children() {
    let place = Place::new();
    let lock = GpuLock::take(&place.alone(), &who()).unwrap();
    let number = std::os::fd::AsFd::as_fd(&lock).as_raw_fd();
    let inherited = || {
        let shell = format!("test -e /dev/fd/{number}");
        Command::new("/bin/sh").args(["-c", &shell]).status().unwrap().success()
    };
    assert!(!inherited());
    lock.share_with_children().unwrap();
    assert!(inherited());
}

#[test]
fn places_are_the_users_and_the_adapters_own() {
    let none = |_: &str| None;
    let here = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/mine".into());
    let home = Some(Path::new("/h"));
    if cfg!(target_os = "linux") {
        let files = LockFiles::of_machine("0000:01:00.0", home, here).unwrap();
        assert_eq!(files.locked, Path::new("/run/mine/unfazed/gpu-0000-01-00-0.lock"));
        assert_eq!(files.metal_guard, None, "nobody honours it there unless it is named");
        let usual = LockFiles::of_machine("any", home, none).unwrap().locked;
        assert!(usual.starts_with("/run/user") || usual.starts_with("/tmp"), "{usual:?}");
    }
    let said = |name: &str| (name == "MLX_LOCK_PATH").then(|| "/tmp/mlx.lock".into());
    assert_eq!(LockFiles::of_machine("any", home, said).unwrap().metal_guard, Some("/tmp/mlx.lock".into()));
    // Its parent has the lock.
    let worker =
        |name: &str| said(name).or_else(|| (name == "METALGUARD_SUBPROCESS_WORKER").then(|| "1".into()));
    assert_eq!(LockFiles::of_machine("any", home, worker).unwrap().metal_guard, None);
    assert_eq!(LockFiles::metal_guards(home, none), Some("/h/.metal-guard/locks/mlx_exclusive.lock".into()));
}
