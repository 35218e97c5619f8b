//! Cores that this process may use, and which of them are worth a compute thread.

use crate::processors::Processors;

/// Where compute threads may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Processors (hardware threads) in this process's affinity mask.
    pub usable: Processors,
    /// Of those, one of each physical core that is not an efficiency core: a second thread on a core shares its
    /// arithmetic, and a step waits for its slowest thread.
    pub performance: Processors,
    /// Whole processors' worth of time that the control group's quota (either version) leaves, if that is less than
    /// there are usable ones.
    pub quota: Option<usize>,
}

impl Cores {
    /// Compute threads if nobody asks for a number, at least 1.
    pub fn threads(&self) -> usize {
        self.within_quota(&self.performance)
    }

    /// The most compute threads that do not wait for each other, at least 1.
    pub fn most_threads(&self) -> usize {
        self.within_quota(&self.usable)
    }

    /// The same where a user chose processors: all of those count, efficiency cores too, but siblings once.
    ///
    /// # Errors
    ///
    /// The chosen processors that this process may not use, if there are any.
    pub fn among(self, chosen: &Processors) -> Result<Cores, Processors> {
        let refused = chosen.without(&self.usable);
        if !refused.is_empty() {
            return Err(refused);
        }
        let performance = system::one_of_each_core(chosen);
        Ok(Cores { usable: chosen.clone(), performance, quota: self.quota })
    }

    fn within_quota(&self, processors: &Processors) -> usize {
        processors.len().min(self.quota.unwrap_or(usize::MAX)).max(1)
    }
}

/// Looks at the machine.
pub fn cores() -> Cores {
    // The standard library reads affinity mask and quota.
    let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
    let usable = system::usable(parallelism);
    let performance = system::performance(&usable);
    let quota = (parallelism < usable.len()).then_some(parallelism);
    Cores { usable, performance, quota }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::path::Path;

    use super::Processors;

    pub(super) fn usable(parallelism: usize) -> Processors {
        use rustix::thread::{CpuSet, sched_getaffinity};

        match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect(),
            // More processors than a mask of fixed size holds.
            Err(_) => (0..parallelism).collect(),
        }
    }

    pub(super) fn performance(usable: &Processors) -> Processors {
        performance_below(Path::new("/"), usable)
    }

    pub(super) fn one_of_each_core(usable: &Processors) -> Processors {
        one_of_each_core_below(Path::new("/"), usable)
    }

    /// `root` is `/`, or a folder that looks like it (in tests).
    ///
    /// Intel's hybrid processors have a performance monitoring unit for each type of core, which lists its processors.
    /// Elsewhere (Arm) the kernel gives each processor a capacity: efficiency cores have less than half of the largest,
    /// while cores between the two classes, and cores of one design at several clocks (AMD), have more. Clocks alone tell
    /// nothing: they differ between equal cores.
    fn performance_below(root: &Path, usable: &Processors) -> Processors {
        let [fast, slow] =
            ["cpu_core", "cpu_atom"].map(|unit| list(root, &format!("sys/devices/{unit}/cpus")));
        let fast: Processors = match (fast, slow) {
            (Some(fast), Some(_)) => usable.iter().filter(|&processor| fast.contains(processor)).collect(),
            _ => {
                let capacity = |processor| {
                    let path = format!("sys/devices/system/cpu/cpu{processor}/cpu_capacity");
                    fs::read_to_string(root.join(path)).ok()?.trim().parse::<u64>().ok()
                };
                // Without a number it counts as fast.
                let most = usable.iter().filter_map(capacity).max().unwrap_or(0);
                usable
                    .iter()
                    .filter(|&p| capacity(p).is_none_or(|own| own.saturating_mul(2) >= most))
                    .collect()
            }
        };
        // A process that is bound to efficiency cores uses those.
        one_of_each_core_below(root, if fast.is_empty() { usable } else { &fast })
    }

    fn one_of_each_core_below(root: &Path, usable: &Processors) -> Processors {
        let first_of_core = |processor: &usize| {
            let siblings =
                list(root, &format!("sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"));
            let first =
                siblings.and_then(|siblings| siblings.iter().find(|&sibling| usable.contains(sibling)));
            first.is_none_or(|first| first == *processor)
        };
        usable.iter().filter(first_of_core).collect()
    }

    fn list(root: &Path, path: &str) -> Option<Processors> {
        Processors::parse_list(&fs::read_to_string(root.join(path)).ok()?).ok()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::cgroup::machine;

        /// A machine of so many processors with these files for each.
        fn with(processors: usize, files: impl Fn(usize) -> Vec<(String, String)>) -> tempfile::TempDir {
            let all: Vec<(String, String)> = (0..processors)
                .flat_map(files)
                .map(|(path, text)| (format!("sys/devices/system/cpu/{path}"), text))
                .collect();
            let all: Vec<(&str, &str)> = all.iter().map(|(path, text)| (&path[..], &text[..])).collect();
            machine(&all)
        }

        fn siblings(processor: usize, list: String) -> (String, String) {
            (format!("cpu{processor}/topology/thread_siblings_list"), list)
        }

        fn numbers(range: std::ops::Range<usize>) -> Processors {
            range.collect()
        }

        #[test]
        fn siblings_count_once_however_they_are_numbered() {
            let across = with(8, |p| vec![siblings(p, format!("{},{}\n", p % 4, p % 4 + 4))]);
            assert_eq!(performance_below(across.path(), &numbers(0..8)), numbers(0..4));
            let beside = with(8, |p| vec![siblings(p, format!("{}-{}\n", p & !1, p | 1))]);
            assert_eq!(performance_below(beside.path(), &numbers(0..8)), [0, 2, 4, 6].into_iter().collect());
            // Only the second thread of a core may be used.
            assert_eq!(performance_below(across.path(), &numbers(3..6)), [3, 4, 5].into_iter().collect());
        }

        #[test]
        fn intels_efficiency_cores_are_left_out() {
            let hybrid = with(12, |p| {
                let list = if p < 8 { format!("{}-{}", p & !1, p | 1) } else { p.to_string() };
                vec![siblings(p, list)]
            });
            let devices = hybrid.path().join("sys/devices");
            for (unit, list) in [("cpu_core", "0-7\n"), ("cpu_atom", "8-11\n")] {
                fs::create_dir_all(devices.join(unit)).unwrap();
                fs::write(devices.join(unit).join("cpus"), list).unwrap();
            }
            assert_eq!(performance_below(hybrid.path(), &numbers(0..12)), [0, 2, 4, 6].into_iter().collect());
            assert_eq!(
                performance_below(hybrid.path(), &numbers(8..12)),
                numbers(8..12),
                "there are no others"
            );
        }

        #[test]
        fn little_cores_are_left_out_and_middle_ones_are_not() {
            let capacities = [256, 256, 256, 256, 780, 780, 780, 1024];
            let arm = with(8, |p| vec![(format!("cpu{p}/cpu_capacity"), format!("{}\n", capacities[p]))]);
            assert_eq!(performance_below(arm.path(), &numbers(0..8)), numbers(4..8));
        }

        #[test]
        fn a_machine_that_tells_nothing_has_cores_of_one_kind() {
            assert_eq!(performance_below(machine(&[]).path(), &numbers(0..3)), numbers(0..3));
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::process::Command;

    use super::Processors;

    pub(super) fn usable(parallelism: usize) -> Processors {
        (0..parallelism).collect()
    }

    /// macOS numbers no processors towards programs; only how many there are counts.
    pub(super) fn performance(usable: &Processors) -> Processors {
        let count = ["hw.perflevel0.physicalcpu", "hw.physicalcpu"].into_iter().find_map(sysctl);
        usable.iter().take(count.unwrap_or(usable.len()).max(1)).collect()
    }

    pub(super) fn one_of_each_core(usable: &Processors) -> Processors {
        usable.clone()
    }

    fn sysctl(name: &str) -> Option<usize> {
        let output = Command::new("/usr/sbin/sysctl").args(["-n", name]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processors(list: &str) -> Processors {
        Processors::parse_list(list).unwrap()
    }

    #[test]
    fn threads_stay_within_the_quota() {
        let mut cores = Cores { usable: processors("0-15"), performance: processors("0-7"), quota: None };
        assert_eq!((cores.threads(), cores.most_threads()), (8, 16));
        cores.quota = Some(3);
        assert_eq!((cores.threads(), cores.most_threads()), (3, 3));
    }

    #[test]
    fn processors_that_may_not_be_used_cannot_be_chosen() {
        let cores = Cores { usable: processors("0-3"), performance: processors("0-1"), quota: None };
        assert_eq!(cores.clone().among(&processors("2-5")), Err(processors("4-5")));
        assert_eq!(cores.among(&processors("1-2")).unwrap().usable, processors("1-2"));
    }

    #[test]
    fn this_machine_has_cores() {
        let cores = cores();
        assert!(!cores.performance.is_empty());
        assert!(cores.performance.without(&cores.usable).is_empty());
        assert!(cores.threads() <= cores.most_threads());
    }
}
