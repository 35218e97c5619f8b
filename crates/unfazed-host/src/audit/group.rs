//! The control groups that this process is in: their limits of memory and threads.

use std::path::Path;

use super::finding::{Finding, size};
use crate::cgroup::{self, Group, Version};

/// What the control groups allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Groups {
    /// The version with a memory controller, if any: 1 or 2.
    pub(super) version: Option<u8>,
    /// The tightest limit of memory.
    pub(super) memory: Option<MemoryLimit>,
    /// How many more threads there may be, by the tightest limit.
    pub(super) threads: Option<u64>,
    /// Folders of the groups of version two, from this process's own up.
    pub(super) folders: Vec<String>,
}

/// A group's limit of memory, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    pub(super) name: String,
    pub(super) limit: u64,
    /// In use, and cannot be dropped.
    pub(super) held: u64,
    /// Processes are slowed down there and not ended (`memory.high`).
    pub(super) slows: bool,
}

impl Groups {
    /// `total` is the machine's memory: a limit at or above it is none.
    pub(super) fn read(root: &Path, total: u64) -> Groups {
        let groups = cgroup::groups(root);
        let has_memory = |group: &Group| group.dir.join(group.version.files().usage).exists();
        // The root of version two has no files of its own.
        let with_memory = groups.iter().find(|group| has_memory(group));
        let version = with_memory.map(|group| match group.version {
            Version::One => 1,
            Version::Two => 2,
        });
        let limits = groups.iter().filter_map(|group| Some((group.limit()?, group)));
        let tightest = limits.filter(|(limit, _)| *limit < total).min_by_key(|(limit, _)| *limit);
        let memory = tightest.map(|(limit, group)| MemoryLimit {
            name: group.name.clone(),
            limit,
            held: group.held(),
            slows: group.read("memory.high", None) == Some(limit)
                && group.read("memory.max", None).is_none_or(|most| most > limit),
        });
        let room = |dir: &Path| {
            let number = |file| cgroup::number(&std::fs::read_to_string(dir.join(file)).ok()?);
            Some(number("pids.max")?.saturating_sub(number("pids.current")?))
        };
        let inside = |dir: &Path| dir.strip_prefix(root).ok().map(|dir| dir.display().to_string());
        let unified = groups.iter().filter(|group| matches!(group.version, Version::Two));
        Groups {
            version,
            memory,
            threads: groups.iter().filter_map(|group| room(&group.dir)).min(),
            folders: unified.filter_map(|group| inside(&group.dir)).collect(),
        }
    }
}

pub(super) fn judge(groups: &Groups) -> Finding {
    const CHECK: &str = "control_group";
    let Some(version) = groups.version else {
        return Finding::ok(CHECK, "none counts memory", "only the machine limits it");
    };
    let Some(MemoryLimit { name, limit, held, slows }) = &groups.memory else {
        return Finding::ok(
            CHECK,
            format!("version {version}, no limit of memory"),
            "only the machine limits it",
        );
    };
    let found = format!("version {version}, {} of {} held ({name})", size(*held), size(*limit));
    let reason = if *slows {
        "above that (memory.high) the kernel slows everything in the group down; a server plans to stay below"
    } else {
        "above that the kernel ends a process of the group; a server plans to stay below"
    };
    Finding::ok(CHECK, found, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::machine;

    const TOTAL: u64 = 64 << 30;

    #[test]
    fn the_tightest_limit_of_memory_is_told_with_who_has_it_and_what_is_held() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/lab/job\n"),
            ("sys/fs/cgroup/lab/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/lab/memory.high", "4294967296\n"),
            ("sys/fs/cgroup/lab/memory.current", "1073741824\n"),
            ("sys/fs/cgroup/lab/pids.max", "100\n"),
            ("sys/fs/cgroup/lab/pids.current", "40\n"),
            ("sys/fs/cgroup/lab/job/memory.max", "max\n"),
            ("sys/fs/cgroup/lab/job/memory.current", "7\n"),
            ("sys/fs/cgroup/lab/job/pids.max", "max\n"),
        ]);
        let groups = Groups::read(root.path(), TOTAL);
        let memory = MemoryLimit { name: "/lab".to_owned(), limit: 4 << 30, held: 1 << 30, slows: true };
        let folders = ["sys/fs/cgroup/lab/job", "sys/fs/cgroup/lab", "sys/fs/cgroup"].map(str::to_owned);
        let expected =
            Groups { version: Some(2), memory: Some(memory), threads: Some(60), folders: folders.to_vec() };
        assert_eq!(groups, expected);
        let finding = judge(&groups);
        assert_eq!(finding.found, "version 2, 1.0 GiB of 4.0 GiB held (/lab)");
        assert!(finding.reason.contains("memory.high"), "{}", finding.reason);
    }

    #[test]
    fn a_limit_above_the_machine_is_none_and_neither_is_a_group_that_counts_nothing() {
        let root = machine(&[
            ("proc/self/cgroup", "4:memory:/job\n0::/\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "7\n"),
        ]);
        let groups = Groups::read(root.path(), TOTAL);
        assert_eq!((groups.version, &groups.memory), (Some(1), &None));
        assert_eq!(judge(&groups).found, "version 1, no limit of memory");
        let none = Groups::read(machine(&[]).path(), TOTAL);
        assert_eq!(none, Groups::default());
        assert_eq!(judge(&none).found, "none counts memory");
    }
}
