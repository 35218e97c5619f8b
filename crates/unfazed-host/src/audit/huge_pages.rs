//! Huge pages, under buffers and under the weights.

use std::path::Path;

use super::files::{self, Known};
use super::finding::Finding;

const FOLDER: &str = "sys/kernel/mm/transparent_hugepage";

/// What the kernel does with huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HugePages {
    /// Of memory that is a process's own: `always`, `madvise`, `never`.
    pub(super) enabled: Known<String>,
    /// Of shared memory, as weights are: `always`, `within_size`, `advise`, `never`, `deny`, `force`.
    pub(super) shared: Known<String>,
    /// What came of gathering a full piece of shared memory (`MADV_COLLAPSE`).
    pub(super) gathered: Result<(), String>,
}

impl HugePages {
    pub(super) fn read(root: &Path, gathered: Result<(), String>) -> HugePages {
        HugePages {
            enabled: files::choice(root, &format!("{FOLDER}/enabled")),
            shared: files::choice(root, &format!("{FOLDER}/shmem_enabled")),
            gathered,
        }
    }
}

pub(super) fn judge(pages: &HugePages) -> Finding {
    const CHECK: &str = "huge_pages";
    match pages.enabled.as_deref() {
        Ok("never") => Finding::note(
            CHECK,
            "transparent_hugepage/enabled is never",
            "buffers for reads have small pages, each of which a drive has to be told of",
        )
        .command(format!("echo madvise | sudo tee /{FOLDER}/enabled")),
        Ok(choice) => Finding::ok(
            CHECK,
            format!("transparent_hugepage/enabled is {choice}"),
            "large buffers for reads ask for them",
        ),
        Err(why) => Finding::unknown(CHECK, why),
    }
}

pub(super) fn judge_gathering(pages: &HugePages) -> Finding {
    const CHECK: &str = "huge_weights";
    const USE: &str = "the next engine is at full speed at once, and a dying one is gone at once";
    let setting =
        pages.shared.as_ref().map_or(String::new(), |shared| format!("shmem_enabled is {shared}, "));
    match &pages.gathered {
        Ok(()) => Finding::ok(
            CHECK,
            format!("{setting}MADV_COLLAPSE works"),
            format!("weights are gathered into huge pages while requests run: {USE}"),
        ),
        Err(why) => {
            let found = format!("{setting}MADV_COLLAPSE does not work: {why}");
            let finding =
                Finding::note(CHECK, found, format!("weights stay on small pages; on huge ones {USE}"));
            match pages.shared.as_deref() {
                Ok("deny") => finding.command(format!("echo never | sudo tee /{FOLDER}/shmem_enabled")),
                _ => finding,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn pages(enabled: &str, shared: &str, gathered: Result<(), &str>) -> HugePages {
        HugePages {
            enabled: Ok(enabled.to_owned()),
            shared: Ok(shared.to_owned()),
            gathered: gathered.map_err(str::to_owned),
        }
    }

    #[test]
    fn huge_pages_that_nobody_gets_are_a_note_with_the_command() {
        assert_eq!(judge(&pages("madvise", "never", Ok(()))).verdict, Verdict::Ok);
        assert_eq!(judge(&pages("always", "never", Ok(()))).verdict, Verdict::Ok);
        let never = judge(&pages("never", "never", Ok(())));
        assert_eq!(never.verdict, Verdict::Note);
        assert_eq!(never.command.unwrap(), format!("echo madvise | sudo tee /{FOLDER}/enabled"));
        let closed = HugePages { enabled: Err("closed".to_owned()), ..pages("", "", Ok(())) };
        assert_eq!(judge(&closed).verdict, Verdict::Unknown);
    }

    #[test]
    fn weights_are_judged_by_what_gathering_did_and_not_by_the_setting() {
        let good = judge_gathering(&pages("never", "never", Ok(())));
        assert_eq!(
            (good.verdict, good.found.as_str()),
            (Verdict::Ok, "shmem_enabled is never, MADV_COLLAPSE works")
        );
        let denied = judge_gathering(&pages("always", "deny", Err("invalid")));
        assert_eq!(denied.verdict, Verdict::Note);
        assert!(denied.command.unwrap().contains("shmem_enabled"));
        assert_eq!(judge_gathering(&pages("always", "never", Err("old"))).command, None);
    }

    #[test]
    fn the_chosen_word_is_read_from_the_kernels_list() {
        let root = crate::cgroup::machine(&[
            (&format!("{FOLDER}/enabled"), "always [madvise] never\n"),
            (&format!("{FOLDER}/shmem_enabled"), "always within_size advise [never] deny force\n"),
        ]);
        assert_eq!(HugePages::read(root.path(), Ok(())), pages("madvise", "never", Ok(())));
    }
}
