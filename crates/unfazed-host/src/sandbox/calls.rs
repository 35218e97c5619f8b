//! seccomp: which system calls a process may make.
//!
//! A list of what is forbidden, not of what is allowed: the C library makes new calls with every release and takes `EPERM`
//! from them as the end, and what reaches out of a process is a short list that changes seldom.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter, apply_filter_all_threads,
};

use super::Calls;

/// Whose calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// The calling thread's, and of those that it starts.
    This,
    /// All of the process.
    All,
}

/// Forbidden whatever their arguments.
const OUTSIDE: &[c_long] = &[
    // Sockets. A link that is open goes on with reads, writes and messages.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Programs. New processes are below, as threads are started by the same call.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes: their memory, descriptors, signals, scheduling.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    #[cfg(target_env = "gnu")]
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Name spaces, mounts, and files by other ways than their names.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_acct,
    // What Landlock does not look at: owners, rights and attributes of files.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_utimensat,
    // Keys, and parts of the kernel that are attacked most.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_syslog,
    libc::SYS_lookup_dcookie,
    // The machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_personality,
    // Who this process is.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_capset,
];

/// Calls that newer architectures never had.
#[cfg(target_arch = "x86_64")]
const OUTSIDE_HERE: &[c_long] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_kexec_file_load,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
];
#[cfg(not(target_arch = "x86_64"))]
const OUTSIDE_HERE: &[c_long] = &[];

const RINGS: &[c_long] = &[libc::SYS_io_uring_setup, libc::SYS_io_uring_register];

/// `fchmodat2`, of Linux 6.6, which has this number on every architecture.
const FCHMODAT2: c_long = 452;

/// Text that a terminal takes as typed, for the shell behind it: the log may be a terminal.
const TYPE_INTO_TERMINAL: [u64; 2] = [0x5412, 0x541c];

/// The other numbering that x86-64 has for its calls, where the kernel was built with it.
#[cfg(target_arch = "x86_64")]
const X32: c_long = 0x4000_0000;
/// Calls that only that numbering has; `execve` and `ptrace` are among them.
#[cfg(target_arch = "x86_64")]
const X32_ALONE: std::ops::RangeInclusive<c_long> = 512..=547;

pub(super) fn give_up(calls: Calls, threads: Threads) -> Result<(), String> {
    let program = |rules, error| program(rules, error).map_err(|error| error.to_string());
    let mut programs = Vec::new();
    match calls {
        Calls::Outside => {
            let outside = outside(std::process::id()).map_err(|error| error.to_string())?;
            programs.push(program(outside, libc::EPERM)?);
            // Its flags are in memory, where a filter cannot look. The C library takes `clone` where it is not there.
            let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
            programs.push(program(clone3, libc::ENOSYS)?);
        }
        Calls::Rings => {
            programs.push(program(RINGS.iter().map(|call| (*call, Vec::new())).collect(), libc::EPERM)?);
        }
    }
    let apply = match threads {
        Threads::This => apply_filter,
        Threads::All => apply_filter_all_threads,
    };
    programs.iter().try_for_each(|program| apply(program)).map_err(|error| match error {
        seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error) => {
            format!("this kernel has no seccomp filters, or a container forbids them: {error}")
        }
        error => error.to_string(),
    })
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn outside(own: u32) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = OUTSIDE.iter().chain(OUTSIDE_HERE).map(|call| (*call, Vec::new())).collect();
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![if_argument(0, SeccompCmpOp::MaskedEq(thread), 0)?]);
    // A process ends itself by a signal when it aborts.
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        rules.insert(call, vec![if_argument(0, SeccompCmpOp::Ne, own.into())?]);
    }
    let limits = [
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0)?,
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, own.into())?,
    ];
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(limits.to_vec())?]);
    let typed = TYPE_INTO_TERMINAL.map(|request| if_argument(1, SeccompCmpOp::Eq, request));
    rules.insert(libc::SYS_ioctl, typed.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

/// A rule for calls whose argument of 32 bits compares so.
fn if_argument(index: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, how, value)?])
}

/// A program that fails these calls with an error and lets the others pass.
fn program(mut rules: Rules, error: i32) -> Result<BpfProgram, seccompiler::BackendError> {
    #[cfg(target_arch = "x86_64")]
    {
        let again: Rules = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        rules.extend(again);
        rules.extend(X32_ALONE.map(|call| (call | X32, Vec::new())));
    }
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(error.unsigned_abs()), architecture)?
        .try_into()
}
