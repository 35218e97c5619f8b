//! Processes as Linux shows them: who runs, and what they hold.

#![allow(dead_code, reason = "several test programs share this, and each uses a part of it")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::until;

/// Child processes that are engines, those that ended and were not waited for among them. A server has others, which render
/// chat templates.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    // The part of the program that a process is; empty for one that has ended.
    let part = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').nth(1).unwrap_or_default().to_owned()
    };
    all_children(parent).into_iter().filter(|pid| matches!(part(pid).as_str(), "engine" | "")).collect()
}

/// All child processes.
pub(crate) fn all_children(parent: u32) -> Vec<u32> {
    let tasks = entries(&format!("/proc/{parent}/task"));
    let children: String =
        tasks.iter().filter_map(|task| std::fs::read_to_string(task.join("children")).ok()).collect();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Whether a process is there and has not ended, to its last thread.
pub(crate) fn runs(pid: u32) -> bool {
    states(pid).iter().any(|state| !matches!(state, 'Z' | 'X'))
}

/// Waits until a process that got SIGSTOP does nothing more.
pub(crate) fn until_stopped(pid: u32) {
    until("all threads are stopped", || states(pid).iter().all(|state| *state == 'T'));
}

/// The state of each thread of a process, one letter.
fn states(pid: u32) -> Vec<char> {
    let state = |task: PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        // It follows the name, which is in parentheses.
        stat.rsplit(')').next()?.trim_start().chars().next()
    };
    entries(&format!("/proc/{pid}/task")).into_iter().filter_map(state).collect()
}

/// Sends a signal to a process; nothing happens if it has ended.
pub(crate) fn signal_to(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => panic!("{error}"),
    }
}

/// A process's descriptors: where each can be opened, and what it is of.
pub(crate) fn links(pid: u32) -> Vec<(PathBuf, String)> {
    let descriptors = entries(&format!("/proc/{pid}/fd")).into_iter();
    descriptors
        .filter_map(|path| Some((path.clone(), std::fs::read_link(path).ok()?.display().to_string())))
        .collect()
}

/// The sockets and the shared memory that a process holds, each by a name that no other has.
pub(crate) fn holdings(pid: u32) -> BTreeSet<String> {
    let mut holdings = BTreeSet::new();
    for (path, target) in links(pid) {
        if target.starts_with("socket:") {
            holdings.insert(target);
        } else if target.starts_with("/memfd:")
            && let Ok(metadata) = std::fs::metadata(path)
        {
            holdings.insert(memory_name(std::os::unix::fs::MetadataExt::ino(&metadata)));
        }
    }
    // Address, permissions, offset, device, inode, name.
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    for line in maps.lines().filter(|line| line.contains(" /memfd:")) {
        let inode = line.split_whitespace().nth(4).unwrap().parse().unwrap();
        holdings.insert(memory_name(inode));
    }
    holdings
}

fn memory_name(inode: u64) -> String {
    format!("shared memory {inode}")
}

/// Processes that hold one of these.
pub(crate) fn holders(holdings_of_others: &BTreeSet<String>) -> Vec<u32> {
    let pids = entries("/proc").into_iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    pids.filter(|pid| !holdings(*pid).is_disjoint(holdings_of_others)).collect()
}

/// What is in a folder; nothing if it is gone or closed to us.
fn entries(folder: &str) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}
