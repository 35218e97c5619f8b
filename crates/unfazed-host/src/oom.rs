//! How often the kernel killed for lack of memory.

/// What an engine says of itself in `oom_score_adj`, so that the kernel takes it, which can be started again, and not the server.
pub const ENGINE_SCORE: i32 = 800;

/// How many processes of this process's memory control group (of either version, with the groups below it in version
/// two) the kernel has killed so far since memory ran out, under a limit or on the whole machine. Without a memory
/// controller it counts the whole machine's. `None` where the kernel does not tell.
///
/// A process that ended by SIGKILL while this number rose was most likely killed for its memory.
pub fn oom_kills() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        linux::oom_kills(std::path::Path::new("/"))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(target_os = "linux")]
mod linux {
    use std::path::Path;

    use crate::cgroup::{self, KILLS};

    /// `root` is `/`, or a folder that looks like it (in tests).
    pub(super) fn oom_kills(root: &Path) -> Option<u64> {
        // The own group may be without the controller; its memory then counts as that of the next group up which has it.
        cgroup::groups(root)
            .iter()
            .find_map(|group| group.read(group.version.files().kills, Some(KILLS)))
            .or_else(|| cgroup::field(&std::fs::read_to_string(root.join("proc/vmstat")).ok()?, KILLS))
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::cgroup::machine;

        const VMSTAT: (&str, &str) = ("proc/vmstat", "nr_free_pages 7\noom_kill 9\n");

        #[test]
        fn the_own_group_counts_and_not_those_above_it() {
            let root = machine(&[
                VMSTAT,
                ("proc/self/cgroup", "0::/lab/job\n"),
                ("sys/fs/cgroup/lab/memory.events", "oom 8\noom_kill 5\noom_group_kill 6\n"),
                ("sys/fs/cgroup/lab/job/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 2\n"),
            ]);
            assert_eq!(oom_kills(root.path()), Some(3));
        }

        #[test]
        fn a_group_without_the_controller_is_counted_by_the_next_one_up() {
            let root = machine(&[
                VMSTAT,
                ("proc/self/cgroup", "0::/lab/job\n"),
                ("sys/fs/cgroup/lab/memory.events", "oom_kill 5\n"),
                ("sys/fs/cgroup/lab/job/cgroup.procs", "1\n"),
            ]);
            assert_eq!(oom_kills(root.path()), Some(5));
        }

        #[test]
        fn version_one_counts_in_another_file() {
            let root = machine(&[
                VMSTAT,
                ("proc/self/cgroup", "5:cpu,memory:/job\n0::/\n"),
                (
                    "sys/fs/cgroup/memory/job/memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
                ),
            ]);
            assert_eq!(oom_kills(root.path()), Some(4));
        }

        #[test]
        fn without_control_groups_the_whole_machine_counts() {
            assert_eq!(oom_kills(machine(&[VMSTAT]).path()), Some(9));
        }

        #[test]
        fn a_kernel_that_does_not_tell_is_no_zero() {
            let root = machine(&[("proc/self/cgroup", "0::/\n"), ("proc/vmstat", "nr_free_pages 7\n")]);
            assert_eq!(oom_kills(root.path()), None);
        }
    }
}
