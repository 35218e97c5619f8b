//! Whether memory may be promised before it is used.

use std::path::Path;

use super::files::{self, Known};
use super::finding::{Finding, size};
use crate::memory::linux::meminfo;

/// Whether the kernel promises more than it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Promises {
    /// `vm.overcommit_memory`: 0 by guess, 1 always, 2 never.
    pub(super) mode: Known<u8>,
    /// Most bytes that may be promised where it is 2, and what is promised already.
    pub(super) limit: Option<(u64, u64)>,
}

impl Promises {
    pub(super) fn read(root: &Path) -> Promises {
        let text = files::text(root, "proc/meminfo").unwrap_or_default();
        let limit = meminfo(&text, "CommitLimit:").zip(meminfo(&text, "Committed_AS:"));
        Promises { mode: files::number(root, "proc/sys/vm/overcommit_memory"), limit }
    }
}

pub(super) fn judge(promises: &Promises) -> Finding {
    const CHECK: &str = "overcommit";
    let mode = match &promises.mode {
        Ok(mode) => *mode,
        Err(why) => return Finding::unknown(CHECK, why),
    };
    let found = format!("vm.overcommit_memory is {mode}");
    if mode != 2 {
        return Finding::ok(CHECK, found, "memory may be reserved before it is used, as a model's is");
    }
    let found = match promises.limit {
        Some((limit, used)) => format!("{found}: {} of {} are promised", size(used), size(limit)),
        None => found,
    };
    Finding::warn(CHECK, found, "memory may be refused though it is free, since what nobody uses counts too")
        .command("sudo sysctl vm.overcommit_memory=0")
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_kernel_that_promises_no_more_than_it_has_is_a_warning() {
        let judged = |mode| judge(&Promises { mode, limit: Some((8 << 30, 2 << 30)) });
        assert_eq!(judged(Ok(0)).verdict, Verdict::Ok);
        assert_eq!(judged(Ok(1)).verdict, Verdict::Ok);
        let strict = judged(Ok(2));
        assert_eq!(strict.verdict, Verdict::Warn);
        assert!(strict.found.ends_with("2.0 GiB of 8.0 GiB are promised"), "{}", strict.found);
        assert!(strict.command.unwrap().contains("vm.overcommit_memory=0"));
        assert_eq!(judged(Err("closed".to_owned())).verdict, Verdict::Unknown);
    }

    #[test]
    fn promises_are_read_as_the_kernel_writes_them() {
        let root = crate::cgroup::machine(&[
            ("proc/meminfo", "MemTotal: 1 kB\nCommitLimit:   12 kB\nCommitted_AS:  4 kB\n"),
            ("proc/sys/vm/overcommit_memory", "2\n"),
        ]);
        let promises = Promises { mode: Ok(2), limit: Some((12 << 10, 4 << 10)) };
        assert_eq!(Promises::read(root.path()), promises);
        assert!(Promises::read(&root.path().join("nowhere")).mode.is_err());
    }
}
