//! Reads through io_uring.

use std::path::Path;

use super::files::{self, Known};
use super::finding::Finding;

/// Whether a ring can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rings {
    /// What came of making one that can only read.
    pub(super) tried: Result<(), String>,
    /// `kernel.io_uring_disabled`: 0 for nobody, 1 for those without rights, 2 for all. Kernels before 6.6 have no such setting.
    pub(super) disabled: Known<u8>,
}

impl Rings {
    pub(super) fn read(root: &Path, tried: Result<(), String>) -> Rings {
        Rings { tried, disabled: files::number(root, "proc/sys/kernel/io_uring_disabled") }
    }
}

pub(super) fn judge(rings: &Rings) -> Finding {
    const CHECK: &str = "io_uring";
    let why = match &rings.tried {
        Ok(()) => {
            return Finding::ok(CHECK, "a ring that can only read was made", "files are read through one");
        }
        Err(why) => why,
    };
    const INSTEAD: &str = "files are read by threads instead, which a fast drive notices";
    match rings.disabled {
        Ok(mode @ 1..) => {
            Finding::note(CHECK, format!("kernel.io_uring_disabled is {mode} ({why})"), INSTEAD)
                .command("sudo sysctl kernel.io_uring_disabled=0")
        }
        // Docker and Podman of 2023 and later forbid it by their own filter.
        Ok(0) => Finding::note(
            CHECK,
            format!("no ring: {why}"),
            format!("something above this process forbids it, as containers do; {INSTEAD}"),
        ),
        Err(_) => Finding::note(CHECK, format!("no ring: {why}"), INSTEAD),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_ring_that_cannot_be_had_is_a_note_with_what_forbids_it() {
        let judged = |tried: Result<(), &str>, disabled: Known<u8>| {
            judge(&Rings { tried: tried.map_err(str::to_owned), disabled })
        };
        assert_eq!(judged(Ok(()), Ok(0)).verdict, Verdict::Ok);
        let by_setting = judged(Err("not permitted"), Ok(2));
        assert_eq!(by_setting.verdict, Verdict::Note);
        assert!(by_setting.found.contains("io_uring_disabled is 2") && by_setting.command.is_some());
        let by_container = judged(Err("not permitted"), Ok(0));
        assert!(by_container.reason.contains("containers") && by_container.command.is_none());
        let old = judged(Err("not implemented"), Err("no such file".to_owned()));
        assert_eq!((old.verdict, old.found.as_str()), (Verdict::Note, "no ring: not implemented"));
    }
}
