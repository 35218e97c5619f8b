//! Memory in all, free, and limited by control groups.

/// Memory of this machine as this process may use it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All memory, or the tightest control-group limit if that is less.
    pub total: u64,
    /// What can be had without swapping: free memory and page cache that can be dropped, or the room under the
    /// tightest control-group limit if that is less.
    pub available: u64,
}

/// Reads the machine's memory.
pub fn memory() -> std::io::Result<Memory> {
    #[cfg(target_os = "linux")]
    {
        linux::memory(std::path::Path::new("/"))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        Ok(Memory { total: system.total_memory(), available: system.available_memory() })
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::io;
    use std::path::Path;

    use super::Memory;
    use crate::cgroup;

    /// `root` is `/`, or a folder that looks like it (in tests).
    pub(super) fn memory(root: &Path) -> io::Result<Memory> {
        let text = fs::read_to_string(root.join("proc/meminfo"))?;
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            kib.map(|kib| kib.saturating_mul(1024)).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("/proc/meminfo has no {name}"))
            })
        };
        let mut memory = Memory { total: field("MemTotal:")?, available: field("MemAvailable:")? };
        for group in cgroup::groups(root) {
            let files = group.version.files();
            let Some(limit) = cgroup::number(&group.dir.join(files.limit)) else { continue };
            let used = cgroup::number(&group.dir.join(files.usage)).unwrap_or(0);
            // Page cache that is charged to the group is dropped before the limit kills.
            let cache = cgroup::field(&group.dir.join("memory.stat"), files.cache).unwrap_or(0);
            memory.total = memory.total.min(limit);
            memory.available = memory.available.min(limit.saturating_sub(used.saturating_sub(cache)));
        }
        Ok(memory)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::cgroup::machine;

        const MEMINFO: &str = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n";

        #[test]
        fn without_control_groups_the_machine_is_the_limit() {
            let root = machine(&[("proc/meminfo", MEMINFO)]);
            let memory = memory(root.path()).unwrap();
            assert_eq!(memory, Memory { total: 24_000_000 << 10, available: 20_000_000 << 10 });
        }

        #[test]
        fn the_tightest_limit_on_the_way_up_binds_and_droppable_cache_counts_as_free() {
            let root = machine(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/lab/job\n"),
                ("sys/fs/cgroup/lab/memory.max", "6000000000\n"),
                ("sys/fs/cgroup/lab/memory.current", "2000000000\n"),
                ("sys/fs/cgroup/lab/memory.stat", "anon 5\ninactive_file 1500000000\n"),
                ("sys/fs/cgroup/lab/job/memory.max", "max\n"),
            ]);
            let memory = memory(root.path()).unwrap();
            assert_eq!(memory, Memory { total: 6_000_000_000, available: 5_500_000_000 });
        }

        #[test]
        fn version_one_groups_bind_too_and_a_host_path_inside_a_container_falls_back_to_the_mount() {
            let root = machine(&[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "5:cpu,memory:/docker/abc\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000000\n"),
            ]);
            let memory = memory(root.path()).unwrap();
            assert_eq!(memory, Memory { total: 3_000_000_000, available: 2_000_000_000 });
        }

        #[test]
        fn a_meminfo_without_its_fields_is_an_error_by_name() {
            let root = machine(&[("proc/meminfo", "MemTotal: 1 kB\n")]);
            assert!(memory(root.path()).unwrap_err().to_string().contains("MemAvailable"));
        }
    }
}
