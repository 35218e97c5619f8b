//! Who is ended when memory runs out.

use std::path::Path;

use super::files::{self, Known};
use super::finding::Finding;
use crate::oom::ENGINE_SCORE;

const CHECK: &str = "oom";
/// `systemd-oomd` listens here while it runs.
const OOMD: &str = "run/systemd/oom/io.systemd.ManagedOOM";

/// What decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Oom {
    /// `vm.panic_on_oom`.
    pub(super) panics: Known<u8>,
    /// `vm.oom_kill_allocating_task`.
    pub(super) kills_asker: Known<u8>,
    /// This process's `oom_score_adj`, which a server would inherit.
    pub(super) own_score: Known<i32>,
    /// Control groups on the way up that are killed as a whole, by their folders.
    pub(super) whole_groups: Vec<String>,
    /// `systemd-oomd` runs.
    pub(super) oomd: bool,
}

impl Oom {
    /// `groups` are the folders of this process's control groups of version two.
    pub(super) fn read(root: &Path, groups: &[String]) -> Oom {
        let whole = |folder: &&String| files::number(root, &format!("{folder}/memory.oom.group")) == Ok(1);
        Oom {
            panics: files::number(root, "proc/sys/vm/panic_on_oom"),
            kills_asker: files::number(root, "proc/sys/vm/oom_kill_allocating_task"),
            own_score: files::number(root, "proc/self/oom_score_adj"),
            whole_groups: groups.iter().filter(whole).cloned().collect(),
            oomd: root.join(OOMD).exists(),
        }
    }
}

/// One line if all is well, else one for each thing that is not.
pub(super) fn judge(oom: &Oom) -> Vec<Finding> {
    let mut findings = Vec::new();
    match oom.panics {
        Ok(0) => {}
        Ok(mode) => findings.push(
            Finding::problem(
                CHECK,
                format!("vm.panic_on_oom is {mode}"),
                "the kernel panics when memory runs out, instead of ending an engine that can be started again",
            )
            .command("sudo sysctl vm.panic_on_oom=0"),
        ),
        Err(ref why) => findings.push(Finding::unknown(CHECK, why)),
    }
    for folder in &oom.whole_groups {
        findings.push(
            Finding::warn(
                CHECK,
                format!("memory.oom.group is 1 in /{folder}"),
                "the kernel ends the server together with its engine (a unit of systemd's has OOMPolicy=continue against it)",
            )
            .command(format!("echo 0 | sudo tee /{folder}/memory.oom.group")),
        );
    }
    if oom.kills_asker.as_ref().is_ok_and(|kills| *kills != 0) {
        findings.push(
            Finding::warn(
                CHECK,
                "vm.oom_kill_allocating_task is on",
                "whoever asks for memory last is ended, which may be the server",
            )
            .command("sudo sysctl vm.oom_kill_allocating_task=0"),
        );
    }
    if let Ok(score) = oom.own_score
        && score >= ENGINE_SCORE
    {
        findings.push(
            Finding::warn(
                CHECK,
                format!("oom_score_adj is {score} here, and would be the server's"),
                format!("an engine has {ENGINE_SCORE}: the kernel would not take it before the server"),
            )
            .command("sudo choom --adjust 0 --pid $$"),
        );
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            CHECK,
            "the kernel would end an engine, not the server",
            "another engine is started and goes on with all requests",
        ));
    }
    if oom.oomd {
        findings.push(
            Finding::note(
                CHECK,
                "systemd-oomd runs",
                "under long pressure it ends a whole control group, the server too, unless told to leave it out",
            )
            .command("systemd-run --user -t -p ManagedOOMPreference=omit unfazed serve"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn calm() -> Oom {
        Oom { panics: Ok(0), kills_asker: Ok(0), own_score: Ok(0), whole_groups: Vec::new(), oomd: false }
    }

    fn verdicts(oom: &Oom) -> Vec<Verdict> {
        judge(oom).into_iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn an_engine_goes_first_unless_something_says_otherwise() {
        assert_eq!(verdicts(&calm()), [Verdict::Ok]);
        assert_eq!(verdicts(&Oom { own_score: Ok(799), ..calm() }), [Verdict::Ok]);
        assert_eq!(verdicts(&Oom { own_score: Ok(800), ..calm() }), [Verdict::Warn]);
        assert_eq!(verdicts(&Oom { panics: Ok(2), ..calm() }), [Verdict::Problem]);
        assert_eq!(verdicts(&Oom { kills_asker: Ok(1), ..calm() }), [Verdict::Warn]);
        assert_eq!(verdicts(&Oom { oomd: true, ..calm() }), [Verdict::Ok, Verdict::Note]);
        assert_eq!(verdicts(&Oom { panics: Err("closed".to_owned()), ..calm() }), [Verdict::Unknown]);
    }

    #[test]
    fn a_group_that_is_killed_as_a_whole_is_named_and_each_thing_has_its_line() {
        let folder = "sys/fs/cgroup/job".to_owned();
        let oom = Oom { whole_groups: vec![folder], kills_asker: Ok(1), ..calm() };
        assert_eq!(verdicts(&oom), [Verdict::Warn, Verdict::Warn]);
        let command = judge(&oom)[0].command.clone().unwrap();
        assert_eq!(command, "echo 0 | sudo tee /sys/fs/cgroup/job/memory.oom.group");
    }

    #[test]
    fn what_decides_is_read_as_the_kernel_writes_it() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("proc/sys/vm/panic_on_oom", "0\n"),
            ("proc/sys/vm/oom_kill_allocating_task", "0\n"),
            ("proc/self/oom_score_adj", "-500\n"),
            ("sys/fs/cgroup/a/memory.oom.group", "1\n"),
            ("sys/fs/cgroup/b/memory.oom.group", "0\n"),
            ("run/systemd/oom/io.systemd.ManagedOOM", ""),
        ];
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let groups = ["sys/fs/cgroup/a", "sys/fs/cgroup/b", "sys/fs/cgroup"].map(str::to_owned);
        let oom = Oom::read(root.path(), &groups);
        let whole_groups = vec![groups[0].clone()];
        assert_eq!(oom, Oom { own_score: Ok(-500), whole_groups, oomd: true, ..calm() });
    }
}
