//! Limits of this process, which a server that is started from here would have (`ulimit -a`).

use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, size};
use crate::limits::{FEWEST_FILES, FILES_BESIDE_CONNECTIONS};

/// Fewer threads and processes of a user are too few for a server beside anything else.
const FEWEST_PROCESSES: u64 = 512;

/// Each is `None` where there is none. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Open files as they are limited now, and as far as the process itself may raise that.
    pub(super) files: Option<u64>,
    pub(super) files_at_most: Option<u64>,
    pub(super) locked: Option<u64>,
    pub(super) core: Option<u64>,
    pub(super) address_space: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) file_size: Option<u64>,
    /// Threads and processes of the user.
    pub(super) processes: Option<u64>,
    /// `kernel.core_pattern`: a name for files, or behind `|` the program that gets core dumps.
    pub(super) core_pattern: Option<String>,
}

impl Limits {
    /// `core_pattern` is the kernel's, where it has one.
    pub(super) fn read(core_pattern: Option<String>) -> Limits {
        let now = |resource| getrlimit(resource).current;
        Limits {
            files: now(Resource::Nofile),
            files_at_most: getrlimit(Resource::Nofile).maximum,
            locked: now(Resource::Memlock),
            core: now(Resource::Core),
            address_space: now(Resource::As),
            data: now(Resource::Data),
            file_size: now(Resource::Fsize),
            processes: now(Resource::Nproc),
            core_pattern,
        }
    }
}

/// `connections` is how many a server serves at a time where nothing limits it.
pub(super) fn judge_files(limits: &Limits, connections: usize) -> Finding {
    const CHECK: &str = "open_files";
    let wanted = FILES_BESIDE_CONNECTIONS.saturating_add(connections as u64);
    let Some(most) = limits.files_at_most else {
        return Finding::ok(CHECK, "no limit", "a server raises its own as far as it needs");
    };
    let found = format!("the limit is {most}");
    let command = format!("sudo prlimit --pid $$ --nofile={}", wanted.next_power_of_two());
    if most < FEWEST_FILES {
        let reason = format!("a server needs {FEWEST_FILES} and does not start");
        return Finding::problem(CHECK, found, reason).command(command);
    }
    if most < wanted {
        let room = most.saturating_sub(FILES_BESIDE_CONNECTIONS);
        let reason = format!("room for {room} connections at a time instead of {connections}");
        return Finding::note(CHECK, found, reason).command(command);
    }
    Finding::ok(CHECK, found, format!("enough for {connections} connections at a time"))
}

/// `wanted` is how many bytes a ring for reads would lock.
#[cfg(target_os = "linux")]
pub(super) fn judge_locked(limits: &Limits, wanted: u64) -> Finding {
    const CHECK: &str = "locked_memory";
    let found = limits.locked.map_or("no limit".to_owned(), |limit| format!("the limit is {}", size(limit)));
    if limits.locked.is_some_and(|limit| limit < wanted) {
        let reason = format!(
            "reads through io_uring keep {} locked; without, each read locks its memory anew",
            size(wanted)
        );
        return Finding::note(CHECK, found, reason)
            .command("sudo prlimit --pid $$ --memlock=8388608:8388608");
    }
    Finding::ok(CHECK, found, format!("enough for the {} that reads through io_uring lock", size(wanted)))
}

/// Limits that a model is larger than.
pub(super) fn judge_sizes(limits: &Limits) -> Finding {
    const CHECK: &str = "size_limits";
    let all = [
        (limits.address_space, "address space", "-v"),
        (limits.data, "data", "-d"),
        (limits.file_size, "files", "-f"),
    ];
    let set: Vec<_> = all.iter().filter_map(|(limit, what, flag)| Some(((*limit)?, what, flag))).collect();
    if set.is_empty() {
        return Finding::ok(CHECK, "none on address space, data and files", "a model is mapped as a whole");
    }
    let found: Vec<String> = set.iter().map(|(limit, what, _)| format!("{what} {}", size(*limit))).collect();
    let command: Vec<String> = set.iter().map(|(_, _, flag)| format!("ulimit {flag} unlimited")).collect();
    Finding::warn(
        CHECK,
        format!("at most {}", found.join(", ")),
        "a model that is larger cannot be mapped, or the server is ended when it makes memory for it",
    )
    .command(command.join("; "))
}

pub(super) fn judge_core(limits: &Limits) -> Finding {
    const CHECK: &str = "core_dumps";
    /// It is piped to like others, and looks at the limit itself.
    const HEEDS_LIMIT: &str = "systemd-coredump";
    let receiver = limits.core_pattern.as_deref().and_then(|pattern| pattern.strip_prefix('|'));
    let receiver = receiver.and_then(|command| command.split_whitespace().next());
    if limits.core == Some(0) {
        return match receiver {
            Some(program) if !program.ends_with(HEEDS_LIMIT) => Finding::note(
                CHECK,
                format!("the limit is 0, which {program} need not heed"),
                "the kernel pipes a crash there whatever the limit: prompts and answers may end up in a file",
            )
            .command("sudo sysctl kernel.core_pattern=core"),
            _ => Finding::ok(CHECK, "none are written", "prompts and answers stay out of files"),
        };
    }
    Finding::note(
        CHECK,
        "they are allowed",
        "a crash may write prompts and answers to a file (weights, keys and values are kept out of it)",
    )
    .command("ulimit -c 0")
}

/// `group` is how many more threads the control groups allow.
pub(super) fn judge_threads(limits: &Limits, group: Option<u64>) -> Finding {
    const CHECK: &str = "threads";
    if let Some(room) = group
        && room < FEWEST_PROCESSES
    {
        let reason =
            "front, engine and renderers start a few for each processor, and one for each read at a time";
        return Finding::warn(CHECK, format!("the control group has room for {room} more"), reason)
            .command("systemctl set-property UNIT TasksMax=infinity");
    }
    match limits.processes {
        Some(limit) if limit < FEWEST_PROCESSES => {
            let reason = "that counts all threads of this user; a server starts a few for each processor";
            Finding::warn(CHECK, format!("the limit is {limit}"), reason)
                .command(format!("sudo prlimit --pid $$ --nproc={}", 8 * FEWEST_PROCESSES))
        }
        limit => {
            let found =
                limit.map_or("no limit".to_owned(), |limit| format!("the limit is {limit} of this user"));
            Finding::ok(CHECK, found, "a server starts a few for each processor")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn open_files_are_judged_by_how_far_a_server_can_raise_them() {
        let judged =
            |most| judge_files(&Limits { files: Some(64), files_at_most: most, ..Limits::default() }, 4096);
        assert_eq!(judged(None).verdict, Verdict::Ok);
        assert_eq!(judged(Some(1 << 20)).verdict, Verdict::Ok);
        let few = judged(Some(1024));
        assert_eq!(few.verdict, Verdict::Note);
        assert!(few.reason.starts_with("room for 768 connections"), "{}", few.reason);
        assert_eq!(few.command.unwrap(), "sudo prlimit --pid $$ --nofile=8192");
        assert_eq!(judged(Some(63)).verdict, Verdict::Problem);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn locked_memory_is_judged_by_what_a_ring_locks() {
        let judged = |locked| judge_locked(&Limits { locked, ..Limits::default() }, 4 << 20).verdict;
        assert_eq!((judged(None), judged(Some(8 << 20))), (Verdict::Ok, Verdict::Ok));
        assert_eq!(judged(Some(64 << 10)), Verdict::Note);
    }

    #[test]
    fn a_limit_of_size_is_named_with_the_command_that_lifts_it() {
        assert_eq!(judge_sizes(&Limits::default()).verdict, Verdict::Ok);
        let limits = Limits { address_space: Some(8 << 30), file_size: Some(1 << 30), ..Limits::default() };
        let judged = judge_sizes(&limits);
        assert_eq!(judged.verdict, Verdict::Warn);
        assert_eq!(judged.found, "at most address space 8.0 GiB, files 1.0 GiB");
        assert_eq!(judged.command.unwrap(), "ulimit -v unlimited; ulimit -f unlimited");
    }

    #[test]
    fn core_dumps_are_a_note_also_where_a_program_gets_them_that_need_not_heed_the_limit() {
        let piped = |program: &str| {
            let core_pattern = Some(format!("|{program} %p %c"));
            judge_core(&Limits { core: Some(0), core_pattern, ..Limits::default() }).verdict
        };
        assert_eq!(piped("/usr/share/apport/apport"), Verdict::Note);
        assert_eq!(piped("/usr/lib/systemd/systemd-coredump"), Verdict::Ok);
        let judged = |core| {
            let core_pattern = Some("core".to_owned());
            judge_core(&Limits { core, core_pattern, ..Limits::default() }).verdict
        };
        assert_eq!(
            (judged(Some(0)), judged(None), judged(Some(1))),
            (Verdict::Ok, Verdict::Note, Verdict::Note)
        );
    }

    #[test]
    fn too_few_threads_are_a_warning_whoever_limits_them() {
        let judged = |processes, group| judge_threads(&Limits { processes, ..Limits::default() }, group);
        assert_eq!(judged(None, None).verdict, Verdict::Ok);
        assert_eq!(judged(Some(4096), Some(4096)).verdict, Verdict::Ok);
        assert_eq!(judged(Some(100), None).verdict, Verdict::Warn);
        assert!(judged(None, Some(20)).found.contains("room for 20 more"));
    }
}
