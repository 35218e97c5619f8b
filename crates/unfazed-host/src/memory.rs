//! Memory in all, free, and limited by control groups and by jetsam.

/// Memory of this machine as this process may use it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All memory, or the tightest control-group limit if that is less.
    pub total: u64,
    /// What can be had without swapping: free memory and page cache that can be dropped, or the room under the
    /// tightest limit if that is less.
    pub available: u64,
    /// The limit that `available` is the room under, for people: `the control group /job`. `None`: the machine's memory.
    pub bound: Option<String>,
    /// CPU and GPU draw on the same memory.
    pub unified: bool,
}

/// Reads the machine's memory.
pub fn memory() -> std::io::Result<Memory> {
    #[cfg(target_os = "linux")]
    {
        linux::memory(std::path::Path::new("/"))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let mut system = sysinfo::System::new().map_err(std::io::Error::other)?;
        system.refresh_memory();
        let memory = Memory {
            total: system.total_memory(),
            available: system.available_memory(),
            bound: None,
            unified: cfg!(target_arch = "aarch64"),
        };
        Ok(jetsam::bounded(memory, &jetsam::read("kern.memorystatus_level")))
    }
}

/// macOS ends processes (jetsam) by its own measure of free memory, which may be tighter than the sum of free pages.
#[cfg(any(test, not(target_os = "linux")))]
pub(crate) mod jetsam {
    use super::Memory;

    /// What the kernel tells under a name, as text; empty if it does not.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn read(name: &str) -> String {
        let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", name]).output();
        output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `level` is a percentage of all memory that jetsam takes as available.
    pub(super) fn bounded(memory: Memory, level: &str) -> Memory {
        let Some(percent) = level.trim().parse::<u64>().ok().filter(|percent| *percent <= 100) else {
            return memory;
        };
        let room = memory.total / 100 * percent;
        if room >= memory.available {
            return memory;
        }
        Memory { available: room, bound: Some("macOS's memory pressure level".to_owned()), ..memory }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn jetsams_level_binds_where_it_is_tighter_and_nonsense_does_not() {
            let memory = Memory { total: 64_000, available: 32_000, bound: None, unified: true };
            let tight = bounded(memory.clone(), "25\n");
            assert_eq!((tight.available, tight.bound.is_some()), (16_000, true));
            for level in ["90\n", "", "-1", "101", "many"] {
                assert_eq!(bounded(memory.clone(), level), memory, "{level:?}");
            }
        }
    }
}

#[cfg(target_os = "linux")]
pub(crate) mod linux {
    use std::fs;
    use std::io;
    use std::path::Path;

    use super::Memory;
    use crate::cgroup;

    /// The field of `/proc/meminfo` with what can be had without swapping.
    pub(crate) const AVAILABLE: &str = "MemAvailable:";

    /// The bytes behind a name of `/proc/meminfo`.
    pub(crate) fn meminfo(text: &str, name: &str) -> Option<u64> {
        cgroup::field(text, name).map(|kib| kib.saturating_mul(1024))
    }

    /// `root` is `/`, or a folder that looks like it (in tests).
    pub(super) fn memory(root: &Path) -> io::Result<Memory> {
        let text = fs::read_to_string(root.join("proc/meminfo"))?;
        let field = |name: &str| {
            meminfo(&text, name).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("/proc/meminfo has no {name}"))
            })
        };
        let (total, available) = (field("MemTotal:")?, field(AVAILABLE)?);
        let mut memory = Memory { total, available, bound: None, unified: false };
        for group in cgroup::groups(root) {
            let Some(limit) = group.limit() else { continue };
            memory.total = memory.total.min(limit);
            // Page cache that is charged to the group is dropped before the limit kills.
            let room = limit.saturating_sub(group.held());
            if room < memory.available {
                memory.available = room;
                memory.bound = Some(format!("the control group {}", group.name));
            }
        }
        Ok(memory)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::cgroup::machine;

        const MEMINFO: &str = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n";

        fn bounded(total: u64, available: u64, by: &str) -> Memory {
            let bound = (!by.is_empty()).then(|| format!("the control group {by}"));
            Memory { total, available, bound, unified: false }
        }

        #[test]
        fn without_control_groups_the_machine_is_the_limit() {
            let root = machine(&[("proc/meminfo", MEMINFO)]);
            assert_eq!(memory(root.path()).unwrap(), bounded(24_000_000 << 10, 20_000_000 << 10, ""));
        }

        #[test]
        fn the_tightest_limit_on_the_way_up_binds_and_droppable_cache_counts_as_free() {
            let root = machine(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/lab/job\n"),
                ("sys/fs/cgroup/lab/memory.max", "6000000000\n"),
                ("sys/fs/cgroup/lab/memory.current", "2000000000\n"),
                (
                    "sys/fs/cgroup/lab/memory.stat",
                    "anon 5\nactive_file 100000000\ninactive_file 1400000000\n",
                ),
                ("sys/fs/cgroup/lab/job/memory.max", "max\n"),
            ]);
            assert_eq!(memory(root.path()).unwrap(), bounded(6_000_000_000, 5_500_000_000, "/lab"));
        }

        #[test]
        fn shared_memory_is_no_cache_that_can_be_dropped() {
            let stat = "anon 1000\nfile 3000000000\nshmem 2900000000\ninactive_anon 2900000000\ninactive_file 100000000\n";
            let root = machine(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/job\n"),
                ("sys/fs/cgroup/job/memory.max", "8000000000\n"),
                ("sys/fs/cgroup/job/memory.current", "3000000000\n"),
                ("sys/fs/cgroup/job/memory.stat", stat),
            ]);
            assert_eq!(memory(root.path()).unwrap(), bounded(8_000_000_000, 5_100_000_000, "/job"));
        }

        #[test]
        fn a_group_that_would_be_slowed_down_is_limited_there() {
            let root = machine(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/job\n"),
                ("sys/fs/cgroup/job/memory.max", "8000000000\n"),
                ("sys/fs/cgroup/job/memory.high", "7000000000\n"),
            ]);
            assert_eq!(memory(root.path()).unwrap(), bounded(7_000_000_000, 7_000_000_000, "/job"));
        }

        #[test]
        fn version_one_groups_bind_too_and_a_host_path_inside_a_container_falls_back_to_the_mount() {
            let root = machine(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "5:cpu,memory:/docker/abc\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000000\n"),
            ]);
            assert_eq!(memory(root.path()).unwrap(), bounded(3_000_000_000, 2_000_000_000, "/"));
        }

        #[test]
        fn version_one_tells_of_limits_above_what_a_container_sees() {
            const NONE: &str = "9223372036854771712\n";
            let stat = "cache 5\nhierarchical_memory_limit 6442450944\ntotal_inactive_file 300000000\n\
                        total_active_file 100000000\ntotal_shmem 7\n";
            let root = machine(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "4:memory:/job\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", NONE),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", NONE),
                ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1000000000\n"),
                ("sys/fs/cgroup/memory/job/memory.stat", stat),
            ]);
            assert_eq!(memory(root.path()).unwrap(), bounded(6_442_450_944, 5_842_450_944, "/job"));
        }

        #[test]
        fn groups_of_both_versions_bind_at_once() {
            let root = machine(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "4:memory:/old\n0::/new\n"),
                ("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "9000000000\n"),
                ("sys/fs/cgroup/new/memory.max", "8000000000\n"),
                ("sys/fs/cgroup/new/memory.current", "9000000000\n"),
            ]);
            assert_eq!(memory(root.path()).unwrap(), bounded(8_000_000_000, 0, "/new"));
        }

        #[test]
        fn a_meminfo_without_its_fields_is_an_error_by_name() {
            let root = machine(&[("proc/meminfo", "MemTotal: 1 kB\n")]);
            assert!(memory(root.path()).unwrap_err().to_string().contains("MemAvailable"));
        }
    }
}
