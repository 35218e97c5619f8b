//! Memory that can be had, and swap.

use super::files::Known;
use super::finding::{Finding, size};
use crate::Memory;

/// With less a server of the smallest model is refused, or lives dangerously.
const LEAST: u64 = 512 << 20;
/// From here on the kernel swaps anonymous and shared memory out for page cache.
const SWAPPINESS: u32 = 10;
/// Shows who has the memory.
const WHO: &str = "ps -eo rss,args --sort=-rss | head -n 6";

/// Swap, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Swap {
    pub(super) total: u64,
    pub(super) used: u64,
    /// Linux's `vm.swappiness`, from 0 to 200.
    pub(super) swappiness: Option<u32>,
}

#[cfg(target_os = "linux")]
impl Swap {
    pub(super) fn read(root: &std::path::Path) -> Known<Swap> {
        use super::files;
        use crate::memory::linux::meminfo;

        let text = files::text(root, "proc/meminfo")?;
        let field = |name| meminfo(&text, name).ok_or_else(|| format!("/proc/meminfo has no {name}"));
        let (total, free) = (field("SwapTotal:")?, field("SwapFree:")?);
        let swappiness = files::number(root, "proc/sys/vm/swappiness").ok();
        Ok(Swap { total, used: total.saturating_sub(free), swappiness })
    }
}

pub(super) fn judge(memory: &Known<Memory>) -> Finding {
    const CHECK: &str = "memory";
    let Memory { total, available, bound, .. } = match memory {
        Ok(memory) => memory,
        Err(why) => return Finding::unknown(CHECK, why),
    };
    let under = bound.as_ref().map_or(String::new(), |bound| format!(" (under {bound})"));
    let found = format!("{} of {} can be had{under}", size(*available), size(*total));
    if *available < LEAST {
        let reason = format!("a server of the smallest model needs {}: end what has the rest", size(LEAST));
        return Finding::problem(CHECK, found, reason).command(WHO);
    }
    if *available < total / 2 {
        let reason = "other programs have the rest; a server plans with what is free when it starts";
        return Finding::note(CHECK, found, reason).command(WHO);
    }
    Finding::ok(CHECK, found, "a server plans with that, and reads experts that do not fit from the disk")
}

pub(super) fn judge_swap(swap: &Known<Swap>) -> Finding {
    const CHECK: &str = "swap";
    let Swap { total, used, swappiness } = match swap {
        Ok(swap) => swap,
        Err(why) => return Finding::unknown(CHECK, why),
    };
    if *total == 0 {
        return Finding::ok(
            CHECK,
            "none",
            "weights stay in memory, and when it runs short the engine gives up cache before the kernel kills",
        );
    }
    let found = format!("{} of {} in use", size(*used), size(*total));
    match swappiness {
        Some(swappiness) if *swappiness > SWAPPINESS => Finding::note(
            CHECK,
            format!("{found}, vm.swappiness {swappiness}"),
            "weights are shared memory: the kernel may swap them out to keep files cached, and tokens wait for the disk",
        )
        .command("sudo sysctl vm.swappiness=1"),
        Some(_) => Finding::ok(CHECK, found, "the kernel would rather drop cached files (vm.swappiness) than swap weights out"),
        // macOS makes swap files as it needs them.
        None if *used > 0 => Finding::note(
            CHECK,
            found,
            "memory was short: what was swapped out is read back when it is used; end other programs, or serve with less",
        )
        .command("unfazed serve --memory SIZE"),
        None => Finding::ok(CHECK, found, "memory was not short"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn memory(available: u64) -> Known<Memory> {
        Ok(Memory { total: 32 << 30, available, bound: None, unified: false })
    }

    #[test]
    fn memory_is_fine_taken_or_too_little() {
        assert_eq!(judge(&memory(30 << 30)).verdict, Verdict::Ok);
        let taken = judge(&memory(10 << 30));
        assert_eq!((taken.verdict, taken.found.as_str()), (Verdict::Note, "10.0 GiB of 32.0 GiB can be had"));
        assert_eq!(judge(&memory(100 << 20)).verdict, Verdict::Problem);
        assert_eq!(judge(&Err("closed".to_owned())).verdict, Verdict::Unknown);
        let bound = Some("the control group /job".to_owned());
        let bound = judge(&Ok(Memory { bound, ..memory(20 << 30).unwrap() }));
        assert!(bound.found.ends_with("(under the control group /job)"), "{}", bound.found);
    }

    #[test]
    fn swap_matters_where_the_kernel_likes_to_use_it() {
        let judged = |total, used, swappiness| judge_swap(&Ok(Swap { total, used, swappiness })).verdict;
        assert_eq!(judged(0, 0, Some(60)), Verdict::Ok);
        assert_eq!(judged(8 << 30, 0, Some(60)), Verdict::Note);
        assert_eq!(judged(8 << 30, 0, Some(1)), Verdict::Ok);
        assert_eq!(judged(1 << 30, 0, None), Verdict::Ok);
        assert_eq!(judged(1 << 30, 1 << 20, None), Verdict::Note);
        assert_eq!(judge_swap(&Err("closed".to_owned())).verdict, Verdict::Unknown);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn swap_is_read_as_the_kernel_writes_it() {
        let root = tempfile::tempdir().unwrap();
        assert!(Swap::read(root.path()).is_err());
        std::fs::create_dir_all(root.path().join("proc/sys/vm")).unwrap();
        let meminfo = "MemTotal: 1 kB\nSwapTotal:    2048 kB\nSwapFree:    1024 kB\nCommitLimit:   12 kB\nCommitted_AS:  4 kB\n";
        for (path, text) in
            [("meminfo", meminfo), ("sys/vm/swappiness", "60\n"), ("sys/vm/overcommit_memory", "2\n")]
        {
            std::fs::write(root.path().join("proc").join(path), text).unwrap();
        }
        let swap = Swap { total: 2 << 20, used: 1 << 20, swappiness: Some(60) };
        assert_eq!(Swap::read(root.path()), Ok(swap));
    }
}
