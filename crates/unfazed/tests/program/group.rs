//! A memory control group of our own, and processes that take its memory.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A group with a limit below the one that this process is in; removed when dropped.
pub(crate) struct Group(PathBuf);

impl Group {
    /// `None` where none can be made: without the rights, or inside most containers.
    pub(crate) fn limited(bytes: u64) -> Option<Group> {
        // Several tests of one process have a group each.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let group = own.lines().find_map(|line| {
            let [_, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { return None };
            let (mount, limit) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                list if list.split(',').any(|name| name == "memory") => {
                    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
                }
                _ => return None,
            };
            let parent = Path::new(mount).join(path.trim_start_matches('/'));
            let group = Group(parent.join(format!("unfazed-test-{}-{number}", std::process::id())));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        });
        if group.is_none() {
            eprintln!("skipped: no control group can be made here");
        }
        group
    }

    /// A program that will run inside; arguments are to be added.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\"", self.0.join("cgroup.procs").to_str().unwrap()]);
        shell.arg(program);
        shell
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may be in it for a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Processes that hold what they are given: many small ones, so that the kernel, when it has to choose, takes none of them.
pub(crate) struct Ballast<'g> {
    group: &'g Group,
    held: Vec<Child>,
}

impl<'g> Ballast<'g> {
    pub(crate) fn new(group: &'g Group) -> Ballast<'g> {
        Ballast { group, held: Vec::new() }
    }

    /// Takes so many bytes more.
    pub(crate) fn take(&mut self, bytes: usize) {
        // It keeps a line that does not end.
        let mut child = self
            .group
            .command("tail")
            .args(["-n", "1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // One that the kernel ended takes no more.
        let _ = child.stdin.as_mut().unwrap().write_all(&vec![b'x'; bytes]);
        self.held.push(child);
    }

    /// Gives back what it took last.
    pub(crate) fn give_back(&mut self, times: usize) {
        for mut child in self.held.drain(self.held.len().saturating_sub(times)..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Ballast<'_> {
    fn drop(&mut self) {
        self.give_back(usize::MAX);
    }
}
