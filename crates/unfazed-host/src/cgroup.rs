//! The control groups with a memory controller that this process is in.

use std::fs;
use std::path::{Path, PathBuf};

/// One control group, of either version.
pub(crate) struct Group {
    pub dir: PathBuf,
    /// Its path in its hierarchy, `/` for the root.
    pub name: String,
    pub version: Version,
}

/// The versions of control groups; a machine may have both.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Version {
    One,
    Two,
}

impl Group {
    /// The tightest limit of this group in bytes, and of those above it if this version tells.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.version.limit(|file, name| self.read(file, name))
    }

    /// Bytes in use that cannot be dropped: anonymous and shared memory, and the kernel's own.
    pub(crate) fn held(&self) -> u64 {
        self.version.held(|file, name| self.read(file, name))
    }

    /// The number in a file of the group, or that of one of its fields.
    pub(crate) fn read(&self, file: &str, name: Option<&str>) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join(file)).ok()?;
        match name {
            Some(name) => field(&text, name),
            None => number(&text),
        }
    }
}

/// The names of what the memory controller tells.
pub(crate) struct Files {
    /// The files with limits in bytes: at the first a process is killed, at others it is slowed down until it is useless.
    pub limits: &'static [&'static str],
    /// The field of `memory.stat` with the tightest limit on the way up, where parents cannot be seen.
    pub inherited_limit: Option<&'static str>,
    /// The file with the bytes in use.
    pub usage: &'static str,
    /// The fields of `memory.stat` with the bytes of page cache of files, which can be dropped: read once, and read again.
    /// Shared memory is not among them.
    pub cache: [&'static str; 2],
    /// The file whose field `oom_kill` counts processes killed for lack of memory.
    pub kills: &'static str,
    /// Files that count how often the group's own limits were hit, and their fields: the first file that is there counts. (What
    /// groups below it hit would count in `memory.events`.)
    pub hits: &'static [(&'static str, &'static [Option<&'static str>])],
}

/// Fields of version two that count hits.
const LIMITS_HIT: &[Option<&str>] = &[Some("high"), Some("max")];
/// The file with the kinds of memory that a group has.
pub(crate) const STAT: &str = "memory.stat";
/// The field of [`Files::kills`].
pub(crate) const KILLS: &str = "oom_kill";

impl Version {
    /// The tightest limit of a group in bytes, and of those above it if this version tells. `read` gives the number in a file of
    /// the group, or that of one of its fields.
    pub(crate) fn limit(
        self,
        mut read: impl FnMut(&'static str, Option<&'static str>) -> Option<u64>,
    ) -> Option<u64> {
        let files = self.files();
        let own = files.limits.iter().filter_map(|file| read(file, None)).min();
        let inherited = files.inherited_limit.and_then(|name| read(STAT, Some(name)));
        own.into_iter().chain(inherited).min()
    }

    /// Bytes in use that cannot be dropped.
    pub(crate) fn held(self, mut read: impl FnMut(&'static str, Option<&'static str>) -> Option<u64>) -> u64 {
        let files = self.files();
        let used = read(files.usage, None).unwrap_or(0);
        let cache = files.cache.iter().filter_map(|name| read(STAT, Some(name)));
        used.saturating_sub(cache.fold(0, u64::saturating_add))
    }

    /// How often the group's limits were hit.
    pub(crate) fn hits(self, mut read: impl FnMut(&'static str, Option<&'static str>) -> Option<u64>) -> u64 {
        let mut sum = |(file, names): &(&'static str, &'static [Option<&'static str>])| {
            let counts = names.iter().filter_map(|name| read(file, *name));
            counts.reduce(u64::saturating_add)
        };
        self.files().hits.iter().find_map(&mut sum).unwrap_or(0)
    }

    pub(crate) fn files(self) -> Files {
        match self {
            Version::One => Files {
                limits: &["memory.limit_in_bytes"],
                inherited_limit: Some("hierarchical_memory_limit"),
                usage: "memory.usage_in_bytes",
                cache: ["total_inactive_file", "total_active_file"],
                kills: "memory.oom_control",
                hits: &[("memory.failcnt", &[None])],
            },
            Version::Two => Files {
                limits: &["memory.max", "memory.high"],
                inherited_limit: None,
                usage: "memory.current",
                cache: ["inactive_file", "active_file"],
                kills: "memory.events",
                hits: &[("memory.events.local", LIMITS_HIT), ("memory.events", LIMITS_HIT)],
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
            let inside = dir.strip_prefix(&mount).unwrap_or(Path::new(""));
            let name = format!("/{}", inside.display());
            groups.push(Group { dir: dir.to_path_buf(), name, version });
        }
    }
    groups
}

/// The one number in a file; `None` for `max`.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number behind `name` in a text with a name and a number per line; `None` if there is none.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
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
