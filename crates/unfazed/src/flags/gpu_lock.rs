//! The machine-wide lock of a GPU.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use unfazed_guard::lock::{ANY_ADAPTER, GpuLock, Held, LockError, LockFiles, Who, process};

/// Arguments whose value is nobody's business.
const SECRETS: [&str; 1] = ["--api-key"];

/// Whether it is taken.
#[derive(Debug, Args)]
#[command(next_help_heading = "GPU")]
pub(crate) struct GpuLockFlags {
    /// One process at a time on this machine gives work to a GPU; wait: for the one that has it, fail: end if there is one, off:
    /// take no lock, auto: wait where this program puts layers on a GPU that is no processor
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    gpu_lock: GpuLockWhen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GpuLockWhen {
    Auto,
    Off,
    Wait,
    Fail,
}

impl GpuLockFlags {
    /// `real_gpu`: layers are put on a GPU that is no processor. Takes the lock, if it is to be taken, for this process and all that it starts from now on. `tell` hears whom it waits for;
    /// Ctrl-C ends the program meanwhile.
    ///
    /// # Errors
    ///
    /// Another process has it and this one does not wait; no lock can be had here.
    pub(crate) fn take(
        &self,
        label: &str,
        real_gpu: bool,
        tell: impl FnMut(&Held),
    ) -> anyhow::Result<Option<GpuLock>> {
        let files = || {
            LockFiles::of_machine(ANY_ADAPTER, std::env::home_dir().as_deref(), |name| std::env::var_os(name))
        };
        let who = Who { label: label.to_owned(), cmdline: command_line(std::env::args_os()) };
        let when = match self.gpu_lock {
            GpuLockWhen::Auto if real_gpu => GpuLockWhen::Wait,
            when => when,
        };
        let lock = match when {
            GpuLockWhen::Auto | GpuLockWhen::Off => return Ok(None),
            GpuLockWhen::Wait => GpuLock::wait(&files()?, &who, tell)?,
            GpuLockWhen::Fail => match take_unless_held(&files()?, &who) {
                Err(LockError::Held(held)) => {
                    anyhow::bail!(
                        "--gpu-lock fail: {held}; end that process, or wait for it with --gpu-lock wait"
                    )
                }
                taken => taken?,
            },
        };
        lock.share_with_children().context("the GPU's lock cannot be shared with the engine")?;
        Ok(Some(lock))
    }
}

/// How long what a dead process left behind may take to end: an engine whose front was killed does so in a moment.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// Takes the lock. Whoever has it and runs keeps it; for what a dead one left behind this waits a little.
fn take_unless_held(files: &LockFiles, who: &Who) -> Result<GpuLock, LockError> {
    let begun = Instant::now();
    loop {
        match GpuLock::take(files, who) {
            // Also where that has ended since, and nobody is found who has it.
            Err(LockError::Held(held)) if !runs(&held) && begun.elapsed() < LEFT_BEHIND => {
                std::thread::sleep(Duration::from_millis(50));
            }
            taken => return taken,
        }
    }
}

/// Whether the process that took the lock runs.
fn runs(held: &Held) -> bool {
    held.pid.is_some_and(|pid| process::look(pid).is_some())
}

/// A command line for others to read, without what only its owner should.
fn command_line(args: impl Iterator<Item = OsString>) -> String {
    let mut hidden = false;
    let words = args.map(|arg| {
        let word = arg.to_string_lossy().into_owned();
        if std::mem::take(&mut hidden) {
            return "***".to_owned();
        }
        hidden = SECRETS.contains(&word.as_str());
        let begins = |secret: &&str| word.strip_prefix(*secret).is_some_and(|rest| rest.starts_with('='));
        SECRETS.iter().find(|secret| begins(secret)).map_or(word.clone(), |secret| format!("{secret}=***"))
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_says_no_key() {
        let line = |line: &str| command_line(line.split(' ').map(OsString::from));
        assert_eq!(line("unfazed serve --api-key k --port 1"), "unfazed serve --api-key *** --port 1");
        assert_eq!(line("unfazed serve --api-key=k -m x"), "unfazed serve --api-key=*** -m x");
        assert_eq!(line("unfazed serve --api-key-file f"), "unfazed serve --api-key-file f");
        assert_eq!(line("unfazed serve --api-key"), "unfazed serve --api-key");
    }
}
