//! Whether a process runs, since when, and as what.

use jiff::Timestamp;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A process that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Since when, to about a second; `None` if that cannot be had.
    pub started: Option<Timestamp>,
    /// Its command line, parted by spaces; `None` if that cannot be had.
    pub command: Option<String>,
}

/// The process of a number; `None` if none runs. One that has ended and was not waited for (a zombie) runs no more: its memory
/// is free, that on a GPU too.
pub fn look(pid: u32) -> Option<Process> {
    let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
    // Other users' processes may not be signalled: they run.
    if test_kill_process(number) == Err(Errno::SRCH) {
        return None;
    }
    system::look(pid)
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::path::Path;

    use jiff::{SignedDuration, Timestamp};
    use rustix::param::clock_ticks_per_second;

    use super::Process;

    pub(super) fn look(pid: u32) -> Option<Process> {
        let folder = format!("/proc/{pid}");
        let folder = Path::new(&folder);
        let states = states(folder);
        if !states.is_empty() && states.iter().all(|state| matches!(state, 'Z' | 'X' | 'x')) {
            return None;
        }
        let command = fs::read(folder.join("cmdline")).ok().filter(|bytes| !bytes.is_empty());
        let command =
            command.map(|bytes| String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " "));
        Some(Process { started: started(folder), command })
    }

    /// The state of each of its threads: a process whose first thread has ended may go on.
    fn states(folder: &Path) -> Vec<char> {
        let Ok(tasks) = fs::read_dir(folder.join("task")) else { return Vec::new() };
        let state = |task: fs::DirEntry| fields(&task.path())?.first()?.chars().next();
        tasks.flatten().filter_map(state).collect()
    }

    /// What stands behind the name, which is in parentheses and may hold anything.
    fn fields(folder: &Path) -> Option<Vec<String>> {
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        Some(fields.split_whitespace().map(str::to_owned).collect())
    }

    fn started(folder: &Path) -> Option<Timestamp> {
        // Field 22 of all, in clock ticks since the system started.
        let ticks: u64 = fields(folder)?.get(19)?.parse().ok()?;
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let boot: i64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        let seconds = i64::try_from(ticks / clock_ticks_per_second().max(1)).ok()?;
        Timestamp::from_second(boot).ok()?.checked_add(SignedDuration::from_secs(seconds)).ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use jiff::Timestamp;
    use sysinfo::{Pid, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System, UpdateKind};

    use super::Process;

    pub(super) fn look(pid: u32) -> Option<Process> {
        let pid = Pid::from_u32(pid);
        let Ok(mut system) = System::new() else { return Some(Process::default()) };
        let what = ProcessRefreshKind::nothing().with_cmd(UpdateKind::Always);
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
        // It can be signalled, so it is there, and more is not told.
        let Some(process) = system.process(pid) else { return Some(Process::default()) };
        if matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead) {
            return None;
        }
        let words: Vec<_> = process.cmd().iter().map(|word| word.to_string_lossy()).collect();
        let started = i64::try_from(process.start_time()).ok().filter(|seconds| *seconds > 0);
        Some(Process {
            started: started.and_then(|seconds| Timestamp::from_second(seconds).ok()),
            command: (!words.is_empty()).then(|| words.join(" ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_is_told_with_its_start_and_its_command() {
        let before = Timestamp::now();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let limit = Instant::now();
        let process = loop {
            let process = look(child.id()).unwrap();
            // Before it is the other program it is a copy of this one.
            if process.command.as_ref().is_some_and(|command| command.starts_with("sleep")) {
                break process;
            }
            assert!(limit.elapsed().as_secs() < 30, "{process:?}");
        };
        assert_eq!(process.command.as_deref(), Some("sleep 600"));
        let apart = process.started.unwrap().duration_since(before).as_secs();
        assert!((-3..30).contains(&apart), "{apart} s apart");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(look(child.id()), None);
    }

    #[test]
    fn a_zombie_runs_no_more() {
        let mut child = Command::new("true").stdout(Stdio::null()).spawn().unwrap();
        let limit = Instant::now();
        while look(child.id()).is_some() {
            assert!(limit.elapsed().as_secs() < 30, "it is still taken as running");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(child.wait().unwrap().success(), "it had not been waited for");
    }

    #[test]
    fn numbers_that_no_process_has_are_nobody() {
        for pid in [0, u32::MAX, i32::MAX as u32] {
            assert_eq!(look(pid), None, "{pid}");
        }
        assert!(look(1).is_some(), "the first process always runs");
    }
}
