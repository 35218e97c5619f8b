//! A memory control group of our own, by version 1 or 2, that the server and those who squeeze it share.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Removed when dropped, once no process is left in it.
pub(super) struct MemoryGroup {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn limit(self) -> &'static str {
        match self {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        }
    }
}

impl MemoryGroup {
    /// A new group without a limit; `None` where none can be made.
    pub(super) fn new(name: &str) -> Option<MemoryGroup> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        parents(&mounts, &own).into_iter().find_map(|(version, parent)| {
            let group = MemoryGroup { folder: parent.join(name), version };
            fs::create_dir(&group.folder).ok()?;
            // In a group of version 2 memory may not be accounted for; then the folder goes again.
            (group.folder.join(version.limit()).exists() && group.limit_to(i64::MAX as u64).is_ok())
                .then_some(group)
        })
    }

    /// Where a process writes its number to be in the group.
    pub(super) fn processes_file(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Sets the most bytes that its processes may have together, swap included.
    pub(super) fn limit_to(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.folder.join(self.version.limit()), bytes.to_string())?;
        if self.version == Version::Two {
            // Not there on machines without swap.
            let _ = fs::write(self.folder.join("memory.swap.max"), "0");
        } else {
            let _ = fs::write(self.folder.join("memory.memsw.limit_in_bytes"), bytes.to_string());
        }
        Ok(())
    }

    /// Bytes that its processes have, and the page cache of what they read.
    pub(super) fn usage(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(self.version.usage())).ok()?.trim().parse().ok()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has just ended may be in it for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Groups below which one may be made, the likeliest first: our own, and those above it.
fn parents(mounts: &str, own: &str) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for mount in mounts.lines() {
        let fields: Vec<&str> = mount.split(' ').collect();
        let [_, at, kind, options, ..] = fields[..] else { continue };
        let version = match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::One,
            "cgroup2" => Version::Two,
            _ => continue,
        };
        // A line is NUMBER:CONTROLLERS:PATH.
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let ours = match version {
                Version::One => controllers.split(',').any(|controller| controller == "memory"),
                Version::Two => controllers.is_empty(),
            };
            ours.then_some(path)
        });
        let path = Path::new(path.unwrap_or("/").trim_start_matches('/'));
        found.extend(path.ancestors().map(|path| (version, Path::new(at).join(path))));
    }
    found.sort_by_key(|(version, _)| *version == Version::Two);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found_in_both_versions_of_control_groups() {
        let mounts = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let own = "8:memory:/user/one\n7:cpu:/\n0::/two\n";
        let expected = [
            (Version::One, "/sys/fs/cgroup/memory/user/one"),
            (Version::One, "/sys/fs/cgroup/memory/user"),
            (Version::One, "/sys/fs/cgroup/memory/"),
            (Version::Two, "/sys/fs/cgroup/unified/two"),
            (Version::Two, "/sys/fs/cgroup/unified/"),
        ];
        assert_eq!(parents(mounts, own), expected.map(|(version, path)| (version, PathBuf::from(path))));
        assert_eq!(parents("proc /proc proc rw 0 0\n", own), []);
    }
}
