//! What the server holds, counted before and after: nothing may be left over.

use std::collections::{BTreeMap, BTreeSet};

use super::processes;

/// Share by which memory may grow in a run's second half, and what is added to it: allocators keep a little.
const MEMORY_SHARE: f64 = 1.10;
const MEMORY_SLACK: u64 = 8 << 20;

/// What a front holds at a moment at which nothing runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Descriptors by kind.
    descriptors: BTreeMap<String, usize>,
    shared_files: Vec<String>,
    children: usize,
}

impl Census {
    pub(super) fn of(front: u32) -> Census {
        let mut descriptors = processes::descriptors(front);
        // A renderer of templates that is kept for the next chat has a socket.
        if let Some(sockets) = descriptors.get_mut("socket") {
            *sockets = sockets.saturating_sub(processes::renderers(front));
        }
        Census {
            descriptors,
            shared_files: processes::shared_files(),
            children: processes::children(front).len(),
        }
    }

    /// Descriptors of all kinds.
    pub(super) fn descriptors(&self) -> usize {
        self.descriptors.values().sum()
    }

    /// What there is more of than before.
    pub(super) fn leaks(&self, before: &Census) -> Vec<String> {
        let mut leaks = Vec::new();
        for (kind, count) in &self.descriptors {
            let had = before.descriptors.get(kind).copied().unwrap_or(0);
            if *count > had {
                leaks.push(format!("{count} descriptors of {kind} are open, {had} were at the start"));
            }
        }
        let files = self.shared_files.iter().filter(|file| !before.shared_files.contains(file));
        leaks.extend(files.map(|file| format!("{file} is left over")));
        if self.children > before.children {
            leaks.push(format!("{} child processes, {} at the start", self.children, before.children));
        }
        leaks
    }
}

/// What a server holds that may not outlast it: its engines, and its shared memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Belongings {
    engines: Vec<u32>,
    memory: BTreeSet<u64>,
}

impl Belongings {
    pub(super) fn of(front: u32) -> Belongings {
        Belongings { engines: processes::children(front), memory: processes::shared_memory(front) }
    }

    /// What of them is left, once the server has ended.
    pub(super) fn remains(&self) -> Vec<String> {
        let engines = self.engines.iter().filter(|pid| processes::runs(**pid));
        let mut remains: Vec<String> = engines.map(|pid| format!("engine {pid} still runs")).collect();
        let holders = processes::holders(&self.memory).into_iter();
        remains.extend(holders.map(|pid| format!("process {pid} holds shared memory of the server")));
        remains
    }
}

/// Memory of the front over time.
#[derive(Clone, Debug, Default)]
pub(super) struct MemorySeries(Vec<u64>);

impl MemorySeries {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, bytes: u64) {
        self.0.push(bytes);
    }

    /// Least, quarter, median, three quarters, most.
    pub(super) fn quartiles(&self) -> [u64; 5] {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        [0, 1, 2, 3, 4].map(|quarter| sorted.get(last * quarter / 4).copied().unwrap_or(0))
    }

    /// The most of each half.
    pub(super) fn halves(&self) -> [u64; 2] {
        let (first, second) = self.0.split_at(self.0.len() / 2);
        [first, second].map(|half| half.iter().copied().max().unwrap_or(0))
    }

    /// Says by how much the second half is above the first one, if it is more than a little.
    pub(super) fn growth(&self) -> Option<String> {
        let [first, second] = self.halves();
        let most = (first as f64 * MEMORY_SHARE) as u64 + MEMORY_SLACK;
        (second > most).then(|| format!("{second} bytes at most in the second half, {first} in the first"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_leaked_descriptor_is_found() {
        // Of a process of its own: tests beside this one open descriptors too.
        let holding = |script: &str| {
            let mut child = Command::new("/bin/sh")
                .args(["-c", &format!("{script}; echo; read end")])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
            std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
            let descriptors = processes::descriptors(child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            Census { descriptors, ..Census::default() }
        };
        let before = holding(":");
        assert!(before.descriptors() >= 3, "{before:?}");
        assert_eq!(holding(":").leaks(&before), Vec::<String>::new());
        let leaks = holding("exec 7</dev/zero").leaks(&before);
        assert_eq!(leaks, ["1 descriptors of /dev/zero are open, 0 were at the start"]);
        // A socket, a pipe: each is its own, and all of a kind are counted together.
        let leaks = holding("exec 8<&1").leaks(&before);
        assert!(leaks.len() == 1 && leaks[0].contains("descriptors of pipe are open"), "{leaks:?}");
    }

    #[test]
    fn a_leaked_file_and_a_process_too_many_are_found() {
        let before = Census { shared_files: vec!["/dev/shm/a".to_owned()], children: 1, ..Census::default() };
        let mut after = before.clone();
        after.shared_files.push("/dev/shm/b".to_owned());
        after.children = 2;
        assert_eq!(after.leaks(&before), ["/dev/shm/b is left over", "2 child processes, 1 at the start"]);
    }

    #[test]
    fn a_process_and_shared_memory_that_are_left_over_are_found() {
        let memory = rustix::fs::memfd_create("a test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let held = rustix::fs::fstat(&memory).unwrap().st_ino;
        let mut child = Command::new("sleep").arg("100").stdin(memory).spawn().unwrap();
        let pid = child.id();
        let belongings = Belongings { engines: vec![pid], memory: BTreeSet::from([held]) };
        // The command that gave it away had it too.
        let remains = belongings.remains();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(remains.contains(&format!("engine {pid} still runs")), "{remains:?}");
        assert!(remains.contains(&format!("process {pid} holds shared memory of the server")), "{remains:?}");
        assert_eq!(belongings.remains(), Vec::<String>::new());
    }

    #[test]
    fn memory_that_grows_is_found_and_memory_that_moves_a_little_is_not() {
        let series = |of: fn(u64) -> u64| MemorySeries((0..100).map(of).collect());
        let mib = 1 << 20;
        assert_eq!(series(|at| (100 + at % 7) << 20).growth(), None);
        assert!(series(|at| (100 + at) << 20).growth().is_some());
        assert_eq!(
            series(|at| (100 + at) << 20).quartiles().map(|bytes| bytes / mib),
            [100, 124, 149, 174, 199]
        );
    }
}
