//! Ends a process with an exit code, whatever it is doing: as a library does that gives up.

/// Exit code of the engines that are ended so.
#[cfg(target_arch = "x86_64")]
const CODE: u64 = 77;

/// Whether [`end`] can end processes here.
pub(super) const fn possible() -> bool {
    cfg!(target_arch = "x86_64")
}

/// Has one of the process's threads call `exit_group`. Whether one was found that can.
#[cfg(target_arch = "x86_64")]
pub(super) fn end(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    threads.any(|thread| end_by(nix::unistd::Pid::from_raw(thread)).unwrap_or(false))
}

/// A thread that waits in a system call makes another one of it.
#[cfg(target_arch = "x86_64")]
fn end_by(thread: nix::unistd::Pid) -> nix::Result<bool> {
    use nix::sys::ptrace;
    use nix::sys::wait::{WaitPidFlag, waitpid};

    /// The call's number in the kernel's table.
    const EXIT_GROUP: u64 = 231;
    /// The instruction `syscall`.
    const SYSCALL: [u8; 2] = [0x0f, 0x05];

    // Unlike an attached thread, a seized one gets no SIGSTOP, which could outlast us.
    ptrace::seize(thread, ptrace::Options::empty())?;
    ptrace::interrupt(thread)?;
    waitpid(thread, Some(WaitPidFlag::__WALL))?;
    let mut registers = ptrace::getregs(thread)?;
    let call = registers.rip.wrapping_sub(SYSCALL.len() as u64);
    let word = ptrace::read(thread, call as ptrace::AddressType).unwrap_or(0);
    let waits = word.to_le_bytes().starts_with(&SYSCALL);
    if waits {
        registers.rip = call;
        registers.rax = EXIT_GROUP;
        registers.rdi = CODE;
        // No call is to be made again.
        registers.orig_rax = u64::MAX;
        ptrace::setregs(thread, registers)?;
    }
    ptrace::detach(thread, None)?;
    Ok(waits)
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn end(_pid: u32) -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_ends_with_the_code_while_it_waits() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        // At first it may not wait yet.
        let found = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            end(child.id())
        });
        if !found {
            child.kill().unwrap();
        }
        assert_eq!((found, child.wait().unwrap().code()), (true, Some(CODE as i32)));
    }
}
