//! What of this machine a server should know before it starts: each fact is gathered once and judged by a function of its own,
//! which does no I/O.
//!
//! | module | what |
//! |---|---|
//! | `finding` | one line: a verdict, what was found, why it matters, what changes it |
//! | `files` | small files of the kernel's |
//! | `memory` | memory that can be had, swap |
//! | `overcommit` | whether memory may be promised before it is used |
//! | `group` | control groups |
//! | `oom` | who is ended when memory runs out |
//! | `stalls` | whether the kernel tells that processes wait for memory |
//! | `limits` | `ulimit -a` |
//! | `processor` | cores, instruction set, clock |
//! | `ring` | io_uring |
//! | `huge_pages` | huge pages |
//! | `rights` | what an engine can give up |
//! | `graphics` | devices of GPUs, as the kernel shows them |
//! | `gpu` | GPUs, as their drivers describe them |
//! | `kept` | what was measured before |
//! | `mac` | what only Macs have |

mod files;
mod finding;
mod gpu;
#[cfg(target_os = "linux")]
mod graphics;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
mod huge_pages;
mod kept;
mod limits;
#[cfg(any(test, not(target_os = "linux")))]
mod mac;
mod memory;
#[cfg(target_os = "linux")]
mod oom;
#[cfg(target_os = "linux")]
mod overcommit;
mod processor;
#[cfg(target_os = "linux")]
mod rights;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod stalls;

use std::path::Path;

pub use finding::{Finding, Verdict};
pub use gpu::{Adapter, Adapters};

use self::kept::Kept;
use self::limits::Limits;
use self::processor::Processor;
use crate::Calibration;
use crate::disk::Disk;
use crate::disk_rates::DiskRates;

/// Everything that is looked at, on any system.
pub const CHECKS: [&str; 29] = [
    "memory",
    "swap",
    "overcommit",
    "control_group",
    "oom",
    "memory_pressure",
    "processor",
    "clock",
    "huge_pages",
    "huge_weights",
    "io_uring",
    "disk",
    "calibration",
    "cache_folder",
    "open_files",
    "locked_memory",
    "size_limits",
    "threads",
    "core_dumps",
    "landlock",
    "seccomp",
    "graphics",
    "gpu",
    "wired_limit",
    "metal_timeout",
    "display_sleep",
    "sleep",
    "low_power",
    "rosetta",
];

/// What this crate cannot find out by itself.
#[derive(Clone, Debug)]
pub struct Given {
    /// Instruction set of the kernels, and whether it has vectors.
    pub isa: (String, bool),
    /// Connections that a server serves at a time where nothing limits them.
    pub connections: usize,
    /// What came of making a ring that can only read, and how many bytes it would lock.
    pub ring: (Result<(), String>, u64),
    /// What came of gathering a full piece of shared memory into huge pages.
    pub gathered: Result<(), String>,
    /// What was measured of memory and arithmetic.
    pub calibration: Result<Option<Calibration>, String>,
    /// A model or folder by name, and what it is stored on with what was measured of that.
    pub disk: (String, Result<(Disk, Option<DiskRates>), String>),
    /// The GPUs, or why they could not be asked for.
    pub adapters: Result<Adapters, String>,
}

/// Looks at this machine. Changes nothing, needs no rights, and takes a few milliseconds.
pub fn audit(given: &Given) -> Vec<Finding> {
    let kept = Kept {
        calibration: given.calibration.clone(),
        place: given.disk.0.clone(),
        disk: given.disk.1.clone(),
        folder: kept::folder(),
    };
    let limits = Limits::read(files::text(Path::new("/"), "proc/sys/kernel/core_pattern").ok());
    let processor = Processor {
        name: crate::processor_name(),
        cores: crate::cores(),
        isa: given.isa.0.clone(),
        vectors: given.isa.1,
    };
    let mut findings = system::findings(given, &kept, &limits, &processor);
    let device = crate::graphics::has_device();
    findings.extend(gpu::judge(&given.adapters, device, gpu::Packages::of_machine()));
    findings
}

#[cfg(target_os = "linux")]
mod system {
    use super::group::Groups;
    use super::huge_pages::HugePages;
    use super::memory::Swap;
    use super::oom::Oom;
    use super::overcommit::Promises;
    use super::processor::Clock;
    use super::ring::Rings;
    use super::*;
    use crate::memory::linux::meminfo;

    pub(super) fn findings(
        given: &Given,
        kept: &Kept,
        limits: &Limits,
        processor: &Processor,
    ) -> Vec<Finding> {
        let root = Path::new("/");
        let memory = crate::memory().map_err(|error| error.to_string());
        let machine = files::text(root, "proc/meminfo").ok().and_then(|text| meminfo(&text, "MemTotal:"));
        let groups = Groups::read(root, machine.unwrap_or(u64::MAX));
        let pages = HugePages::read(root, given.gathered.clone());
        let mut findings = vec![
            memory::judge(&memory),
            memory::judge_swap(&Swap::read(root)),
            overcommit::judge(&Promises::read(root)),
            group::judge(&groups),
        ];
        findings.extend(oom::judge(&Oom::read(root, &groups.folders)));
        findings.extend([
            stalls::judge(&stalls::read(root)),
            processor::judge(processor),
            processor::judge_clock(&Clock::read(root)),
            huge_pages::judge(&pages),
            huge_pages::judge_gathering(&pages),
            ring::judge(&Rings::read(root, given.ring.0.clone())),
            kept::judge_disk(kept),
            kept::judge_calibration(kept),
            kept::judge_folder(kept),
            limits::judge_files(limits, given.connections),
            limits::judge_locked(limits, given.ring.1),
            limits::judge_sizes(limits),
            limits::judge_threads(limits, groups.threads),
            limits::judge_core(limits),
        ]);
        findings.extend(rights::judge(&crate::sandbox::offered()));
        findings.push(graphics::judge(&graphics::read(root)));
        findings
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::*;
    use crate::memory::jetsam;

    pub(super) fn findings(
        given: &Given,
        kept: &Kept,
        limits: &Limits,
        processor: &Processor,
    ) -> Vec<Finding> {
        let mac = mac::facts::read();
        let mut findings = vec![
            memory::judge(&crate::memory().map_err(|error| error.to_string())),
            memory::judge_swap(&mac::swap(&jetsam::read("vm.swapusage"))),
            processor::judge(processor),
            mac::judge_wired(&mac),
            mac::judge_timeout(&mac),
        ];
        findings.extend(mac::judge_translation(&mac));
        findings.extend(mac::judge_power(&mac));
        findings.extend([
            kept::judge_disk(kept),
            kept::judge_calibration(kept),
            kept::judge_folder(kept),
            limits::judge_files(limits, given.connections),
            limits::judge_sizes(limits),
            limits::judge_threads(limits, None),
            limits::judge_core(limits),
        ]);
        findings
    }
}
