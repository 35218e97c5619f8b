//! The processor: cores, instruction set, clock.

#[cfg(target_os = "linux")]
use std::path::Path;

#[cfg(target_os = "linux")]
use super::files;
use super::finding::Finding;
use crate::Cores;

/// What computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Processor {
    pub(super) name: String,
    pub(super) cores: Cores,
    /// Instruction set of the kernels.
    pub(super) isa: String,
    /// It has vectors: the kernels for it are not the scalar definition.
    pub(super) vectors: bool,
}

pub(super) fn judge(processor: &Processor) -> Finding {
    const CHECK: &str = "processor";
    let Processor { name, cores, isa, vectors } = processor;
    let (threads, usable) = (cores.threads(), cores.usable.len());
    let quota = match cores.quota {
        Some(quota) => format!(", the control group's quota leaves the time of {quota}"),
        None => String::new(),
    };
    let found = format!("{name}: {usable} processors{quota}, kernels for {isa}");
    if !vectors {
        let reason = "this program has no vector kernels for it: expect a tenth of the speed or less";
        return Finding::warn(CHECK, found, reason);
    }
    let threads =
        if threads == 1 { "one thread computes".to_owned() } else { format!("{threads} threads compute") };
    let why = if threads_are_cores(cores) { ", one on each core" } else { "" };
    Finding::ok(CHECK, found, threads + why)
}

/// Not fewer, for a quota.
fn threads_are_cores(cores: &Cores) -> bool {
    cores.threads() == cores.performance.len()
}

/// How the kernel chooses clocks.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    pub(super) governor: String,
    pub(super) driver: String,
    /// The processor's own preference between speed and energy, where it has one.
    pub(super) preference: Option<String>,
}

/// Drivers with which the processor itself chooses its clock, and "powersave" is the name for it.
#[cfg(target_os = "linux")]
const SELF_CHOOSING: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];

#[cfg(target_os = "linux")]
impl Clock {
    /// That of each group of processors with one clock.
    pub(super) fn read(root: &Path) -> Vec<Clock> {
        const FOLDER: &str = "sys/devices/system/cpu/cpufreq";
        let read = |name: &String| {
            let file = |file: &str| files::text(root, &format!("{FOLDER}/{name}/{file}")).ok();
            Some(Clock {
                governor: file("scaling_governor")?,
                driver: file("scaling_driver").unwrap_or_default(),
                preference: file("energy_performance_preference"),
            })
        };
        files::names(root, FOLDER).iter().filter(|name| name.starts_with("policy")).filter_map(read).collect()
    }

    fn is_slow(&self) -> bool {
        self.governor == "powersave" && !SELF_CHOOSING.contains(&self.driver.as_str())
    }

    fn saves(&self) -> bool {
        self.preference.as_deref() == Some("power")
    }
}

#[cfg(target_os = "linux")]
pub(super) fn judge_clock(clocks: &[Clock]) -> Finding {
    const CHECK: &str = "clock";
    const ALL: &str = "/sys/devices/system/cpu/cpufreq/policy*";
    let Some(first) = clocks.first() else {
        return Finding::unknown(CHECK, "the system shows no clocks, as in most virtual machines");
    };
    if let Some(slow) = clocks.iter().find(|clock| clock.is_slow()) {
        let found = format!("governor powersave ({})", slow.driver);
        return Finding::warn(CHECK, found, "the processor stays at its lowest clock")
            .command(format!("echo performance | sudo tee {ALL}/scaling_governor"));
    }
    if clocks.iter().any(Clock::saves) {
        let reason = "the processor prefers to save energy: prompts are slower than they could be";
        return Finding::note(CHECK, "energy preference power", reason)
            .command(format!("echo balance_performance | sudo tee {ALL}/energy_performance_preference"));
    }
    Finding::ok(CHECK, format!("governor {}", first.governor), "the clock follows the work")
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::Processors;

    fn processor(vectors: bool, quota: Option<usize>) -> Processor {
        let processors = |list: &str| Processors::parse_list(list).unwrap();
        let cores = Cores { usable: processors("0-7"), performance: processors("0-3"), quota };
        Processor { name: "A Chip".to_owned(), cores, isa: "avx2".to_owned(), vectors }
    }

    #[test]
    fn a_processor_is_told_with_the_threads_that_compute_and_without_vectors_it_is_a_warning() {
        let good = judge(&processor(true, None));
        assert_eq!(good.verdict, Verdict::Ok);
        assert_eq!(good.found, "A Chip: 8 processors, kernels for avx2");
        assert_eq!(good.reason, "4 threads compute, one on each core");
        let limited = judge(&processor(true, Some(1)));
        assert!(limited.found.contains("quota leaves the time of 1"), "{}", limited.found);
        assert_eq!(limited.reason, "one thread computes");
        assert_eq!(judge(&processor(false, None)).verdict, Verdict::Warn);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_governor_called_powersave_is_slow_only_where_the_kernel_chooses_the_clock() {
        let clock = |governor: &str, driver: &str, preference: Option<&str>| Clock {
            governor: governor.to_owned(),
            driver: driver.to_owned(),
            preference: preference.map(str::to_owned),
        };
        let judged = |clock: Clock| judge_clock(&[clock]).verdict;
        assert_eq!(judged(clock("powersave", "intel_pstate", Some("balance_performance"))), Verdict::Ok);
        assert_eq!(judged(clock("powersave", "intel_pstate", Some("power"))), Verdict::Note);
        assert_eq!(judged(clock("powersave", "acpi-cpufreq", None)), Verdict::Warn);
        assert_eq!(judged(clock("schedutil", "acpi-cpufreq", None)), Verdict::Ok);
        assert_eq!(judge_clock(&[]).verdict, Verdict::Unknown);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn clocks_are_read_from_each_policy() {
        let policy = "sys/devices/system/cpu/cpufreq/policy0";
        let root = crate::cgroup::machine(&[
            (&format!("{policy}/scaling_governor"), "powersave\n"),
            (&format!("{policy}/scaling_driver"), "acpi-cpufreq\n"),
            ("sys/devices/system/cpu/cpufreq/boost", "1\n"),
        ]);
        let clock =
            Clock { governor: "powersave".to_owned(), driver: "acpi-cpufreq".to_owned(), preference: None };
        assert_eq!(Clock::read(root.path()), [clock]);
    }
}
