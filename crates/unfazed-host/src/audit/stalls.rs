//! Whether the kernel tells that processes wait for memory.

use std::path::Path;

use super::files::{self, Known};
use super::finding::Finding;

/// The kernel's account of stalls.
pub(super) fn read(root: &Path) -> Known<String> {
    files::text(root, "proc/pressure/memory")
}

pub(super) fn judge(text: &Known<String>) -> Finding {
    const CHECK: &str = "memory_pressure";
    match text {
        Ok(text) if text.starts_with("some ") => Finding::ok(
            CHECK,
            "/proc/pressure/memory tells of stalls",
            "cache is given up as soon as processes wait for memory",
        ),
        Ok(_) => Finding::unknown(CHECK, "/proc/pressure/memory says something else than how long processes waited"),
        Err(why) => Finding::note(
            CHECK,
            format!("no account of stalls ({why})"),
            "memory that runs out is seen by what is free alone, which is later; a kernel with PSI tells if started with psi=1",
        )
        .command("grep -o 'psi=[01]' /proc/cmdline; zgrep CONFIG_PSI /proc/config.gz"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_kernel_without_an_account_of_stalls_is_a_note() {
        let told = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00".to_owned();
        assert_eq!(judge(&Ok(told)).verdict, Verdict::Ok);
        assert_eq!(judge(&Ok(String::new())).verdict, Verdict::Unknown);
        assert_eq!(judge(&Err("no such file".to_owned())).verdict, Verdict::Note);
    }
}
