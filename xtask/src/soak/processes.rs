//! Processes as Linux shows them: who runs, what they hold, and signals to them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

/// Child processes, those that ended and were not waited for among them, but for renderers of templates, of which a server keeps
/// some for the next chat.
pub(super) fn children(parent: u32) -> Vec<u32> {
    all_children(parent).into_iter().filter(|pid| !renders_templates(*pid)).collect()
}

/// How many renderers of templates there are.
pub(super) fn renderers(parent: u32) -> usize {
    all_children(parent).into_iter().filter(|pid| renders_templates(*pid)).count()
}

fn all_children(parent: u32) -> Vec<u32> {
    let tasks = entries(&format!("/proc/{parent}/task")).into_iter();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.join("children")).ok());
    children
        .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn renders_templates(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"template")
}

/// Whether a process is there and has not ended, to its last thread.
pub(super) fn runs(pid: u32) -> bool {
    let state = |task: PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        // It follows the name, which is in parentheses.
        stat.rsplit(')').next()?.trim_start().chars().next()
    };
    entries(&format!("/proc/{pid}/task"))
        .into_iter()
        .filter_map(state)
        .any(|state| !matches!(state, 'Z' | 'X'))
}

/// Sends a signal to a process; whether it was there to get it.
pub(super) fn signal_to(pid: u32, signal: Signal) -> bool {
    i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// A process's descriptors by what they are of, each kind with its number. Sockets, pipes and the like are each a kind.
pub(super) fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for path in entries(&format!("/proc/{pid}/fd")) {
        if let Ok(target) = std::fs::read_link(path) {
            *kinds.entry(kind(&target.to_string_lossy())).or_default() += 1;
        }
    }
    kinds
}

/// Without the number that tells one socket or pipe from another.
fn kind(target: &str) -> String {
    match target.split_once(":[") {
        Some((kind, _)) => kind.to_owned(),
        None => target.to_owned(),
    }
}

/// Shared memory that a process has descriptors of, each by a number that no other has.
pub(super) fn shared_memory(pid: u32) -> BTreeSet<u64> {
    let descriptors = entries(&format!("/proc/{pid}/fd")).into_iter();
    let memory = descriptors.filter(|path| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:"))
    });
    memory.filter_map(|path| std::fs::metadata(path).ok()).map(|metadata| metadata.ino()).collect()
}

/// Processes that have a descriptor of some of this memory.
pub(super) fn holders(memory: &BTreeSet<u64>) -> Vec<u32> {
    let pids = entries("/proc").into_iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    pids.filter(|pid| !shared_memory(*pid).is_disjoint(memory)).collect()
}

/// What the server has in /dev/shm.
pub(super) fn shared_files() -> Vec<String> {
    let mut names: Vec<String> =
        entries("/dev/shm").into_iter().map(|path| path.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.contains("unfazed"));
    names.sort();
    names
}

/// A process's resident memory, in bytes: all of it, and what no file is behind.
pub(super) fn memory(pid: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some((field("VmRSS:")?, field("RssAnon:")?))
}

/// What is in a folder; nothing if it is gone or closed to us.
fn entries(folder: &str) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}
