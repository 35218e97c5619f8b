//! The control groups with a memory controller that this process is in.

use std::fs;
use std::path::{Path, PathBuf};

/// One control group, of either version.
pub(crate) struct Group {
    pub dir: PathBuf,
    pub version: Version,
}

/// The versions of control groups; a machine may have both.
#[derive(Clone, Copy)]
pub(crate) enum Version {
    One,
    Two,
}

/// The names of what the memory controller tells.
pub(crate) struct Files {
    /// The file with the limit in bytes.
    pub limit: &'static str,
    /// The file with the bytes in use.
    pub usage: &'static str,
    /// The field of `memory.stat` with the bytes of page cache that can be dropped.
    pub cache: &'static str,
    /// The file whose field `oom_kill` counts processes killed for lack of memory.
    pub kills: &'static str,
}

impl Version {
    pub(crate) fn files(self) -> Files {
        match self {
            Version::One => Files {
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                cache: "total_inactive_file",
                kills: "memory.oom_control",
            },
            Version::Two => Files {
                limit: "memory.max",
                usage: "memory.current",
                cache: "inactive_file",
                kills: "memory.events",
            },
        }
    }
}

/// The control groups of this process with a memory controller, from its own up to the root, of either version. `root`
/// is `/`, or a folder that looks like it (in tests).
pub(crate) fn groups(root: &Path) -> Vec<Group> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, version) = if controllers.is_empty() {
            ("sys/fs/cgroup", Version::Two)
        } else if controllers.split(',').any(|c| c == "memory") {
            ("sys/fs/cgroup/memory", Version::One)
        } else {
            continue;
        };
        let mount = root.join(mount);
        let inside = mount.join(path.trim_start_matches('/'));
        // A container may see its group as the mount's root while /proc shows the host's path.
        let start = if inside.is_dir() { inside } else { mount.clone() };
        for dir in start.ancestors().take_while(|dir| dir.starts_with(&mount)) {
            groups.push(Group { dir: dir.to_path_buf(), version });
        }
    }
    groups
}

/// A file with one number; `None` for `max` and for what is not there.
pub(crate) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number behind `name` in a file with a name and a number per line; `None` if there is none.
pub(crate) fn field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// A folder that looks like a machine's root, with these files.
#[cfg(test)]
pub(crate) fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}
