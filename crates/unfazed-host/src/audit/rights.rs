//! Rights that an engine can give up here.

use super::finding::Finding;
use crate::sandbox::Offered;

pub(super) fn judge(offered: &Offered) -> [Finding; 2] {
    let files = match &offered.landlock {
        Ok(version) => Finding::ok(
            "landlock",
            format!("version {version} of its interface"),
            "an engine gives up all files but those that it needs",
        ),
        Err(why) => Finding::warn(
            "landlock",
            format!("not to be had: {why}"),
            "an engine keeps the right to every file of this user; a kernel that has Landlock may have to be started with lsm=landlock",
        ),
    };
    let calls = match &offered.seccomp {
        Ok(()) => Finding::ok(
            "seccomp",
            "filters can be had",
            "an engine gives up network, programs and other processes",
        ),
        Err(why) => Finding::warn(
            "seccomp",
            format!("not to be had: {why}"),
            "an engine keeps the right to open connections and start programs",
        ),
    };
    // Both are a matter of how the kernel was built or started.
    let files = match offered.landlock {
        Err(_) if cfg!(target_os = "linux") => files.command("cat /sys/kernel/security/lsm"),
        _ => files,
    };
    [files, calls]
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn rights_that_cannot_be_given_up_are_a_warning_each() {
        let verdicts = |offered: &Offered| judge(offered).map(|finding| finding.verdict);
        let all = Offered { landlock: Ok(6), seccomp: Ok(()) };
        assert_eq!(verdicts(&all), [Verdict::Ok, Verdict::Ok]);
        let no = || "this kernel has none".to_owned();
        let neither = Offered { landlock: Err(no()), seccomp: Err(no()) };
        assert_eq!(verdicts(&neither), [Verdict::Warn, Verdict::Warn]);
        assert!(judge(&neither)[0].found.ends_with("this kernel has none"));
    }
}
