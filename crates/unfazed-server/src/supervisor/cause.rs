//! Why an engine ended, as far as the front can tell.

use std::fmt;

use unfazed_fault::{Class, of_exit};

use super::Exit;

/// The signal that ends a process without its doing.
const SIGKILL: i32 = 9;
/// Signals that somebody sends: hang-up, interrupt, quit, kill, terminate. No fault of a program raises them.
const SENT: [i32; 5] = [1, 2, 3, SIGKILL, 15];

/// Why an engine ended. Equal causes are deaths that look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A signal, by number.
    Signal(i32),
    /// It ended by itself, with this exit code.
    Code(i32),
    /// The kernel ended it to get memory.
    OutOfMemory,
    /// It made no progress and was killed.
    Stalled,
    /// It said that its device cannot be used again in its process.
    Device(Class),
    /// It was ended to make room for one that has what was given up.
    Replaced,
    /// It closed its link, or sent what is no message, and was killed as it did not end by itself.
    LinkEnded,
    /// The same, and it did not end when it was killed.
    LeftBehind,
    /// There was no process.
    NeverStarted,
    /// It said that the model cannot be loaded.
    LoadFailed,
    /// It is another build.
    OtherBuild,
    /// Somebody else reaped it.
    Unknown,
}

/// What was seen of an end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// There was a process.
    pub(crate) started: bool,
    /// How the process ended; `None` if it has not.
    pub(crate) exit: Option<Exit>,
    /// The watchdog killed it.
    pub(crate) stalled: bool,
    /// It was killed because its link had ended and it had not.
    pub(crate) killed: bool,
    /// The kernel ended processes of our control group meanwhile.
    pub(crate) out_of_memory: bool,
}

impl Cause {
    pub(crate) fn of(seen: Seen) -> Cause {
        if !seen.started {
            return Cause::NeverStarted;
        }
        if seen.stalled {
            return Cause::Stalled;
        }
        let Some(exit) = seen.exit else { return Cause::LeftBehind };
        match (exit.code, exit.signal) {
            (Some(code), _) => Cause::Code(code),
            (None, Some(SIGKILL)) if seen.killed => Cause::LinkEnded,
            (None, Some(SIGKILL)) if seen.out_of_memory => Cause::OutOfMemory,
            (None, Some(signal)) => Cause::Signal(signal),
            (None, None) => Cause::Unknown,
        }
    }

    /// Its name in events, metrics and `/health`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cause::Signal(_) => "signal",
            Cause::Code(_) => "code",
            Cause::OutOfMemory => "out_of_memory",
            Cause::Stalled => "stalled",
            Cause::Device(_) => "device",
            Cause::Replaced => "replaced",
            Cause::LinkEnded => "link_ended",
            Cause::LeftBehind => "left_behind",
            Cause::NeverStarted => "never_started",
            Cause::LoadFailed => "load_failed",
            Cause::OtherBuild => "other_build",
            Cause::Unknown => "unknown",
        }
    }

    /// Its class among faults.
    pub(crate) fn class(self) -> Class {
        let exit = unfazed_fault::Exit::default();
        match self {
            Cause::Device(class) => class,
            // Nobody told it to: its link was gone, which is how fronts end engines.
            Cause::Code(0) => Class::WireBroken,
            Cause::Signal(signal) => of_exit(unfazed_fault::Exit { signal: Some(signal), ..exit }),
            Cause::Code(code) => of_exit(unfazed_fault::Exit { code: Some(code), ..exit }),
            Cause::OutOfMemory => Class::OutOfMemoryKilled,
            Cause::Stalled | Cause::LeftBehind => Class::Stalled,
            Cause::LinkEnded => Class::WireBroken,
            Cause::NeverStarted
            | Cause::LoadFailed
            | Cause::OtherBuild
            | Cause::Replaced
            | Cause::Unknown => Class::Unknown,
        }
    }

    /// Whether a request may have brought it about. A kill from outside, memory that ran out and a process that never
    /// was are nobody's fault; what a device cannot do is done without it in the end.
    pub(crate) fn is_from_within(self) -> bool {
        !self.is_from_outside()
            && !matches!(self, Cause::OutOfMemory | Cause::NeverStarted | Cause::Device(_))
    }

    /// Whether somebody outside ended it, who could have done so at any moment.
    pub(crate) fn is_from_outside(self) -> bool {
        match self {
            Cause::Signal(signal) => SENT.contains(&signal),
            cause => cause == Cause::Replaced,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Signal(signal) => write!(f, "signal {signal}"),
            Cause::Code(code) => write!(f, "exit code {code}"),
            Cause::OutOfMemory => f.write_str("out of memory"),
            Cause::Stalled => f.write_str("no progress"),
            Cause::Replaced => f.write_str("replaced"),
            Cause::Device(class) => write!(f, "its device: {}", class.name()),
            Cause::LinkEnded => f.write_str("its link ended"),
            Cause::LeftBehind => f.write_str("it cannot be ended"),
            Cause::NeverStarted => f.write_str("never started"),
            Cause::LoadFailed => f.write_str("the model cannot be loaded"),
            Cause::OtherBuild => f.write_str("another build"),
            Cause::Unknown => f.write_str("no known exit code"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_told_apart() {
        let killed = Exit { code: None, signal: Some(9) };
        let of = |exit: Option<Exit>, change: fn(&mut Seen)| {
            let mut seen = Seen { started: true, exit, ..Seen::default() };
            change(&mut seen);
            Cause::of(seen)
        };
        assert_eq!(of(Some(Exit { code: Some(3), signal: None }), |s| s.killed = true), Cause::Code(3));
        assert_eq!(
            of(Some(Exit { code: None, signal: Some(11) }), |s| s.out_of_memory = true),
            Cause::Signal(11)
        );
        assert_eq!(of(Some(killed), |_| {}), Cause::Signal(9));
        assert_eq!(of(Some(killed), |s| s.out_of_memory = true), Cause::OutOfMemory);
        assert_eq!(of(Some(killed), |s| s.killed = true), Cause::LinkEnded);
        assert_eq!(of(Some(killed), |s| s.stalled = true), Cause::Stalled);
        assert_eq!(of(None, |s| s.stalled = true), Cause::Stalled);
        assert_eq!(of(None, |s| s.killed = true), Cause::LeftBehind);
        assert_eq!(of(Some(Exit::default()), |_| {}), Cause::Unknown);
        assert_eq!(of(None, |s| s.started = false), Cause::NeverStarted);
    }

    #[test]
    fn only_a_kill_is_from_outside_lost_memory_and_a_process_that_never_was_are_nobodys_fault() {
        for cause in [Cause::Signal(9), Cause::Signal(15), Cause::OutOfMemory, Cause::NeverStarted] {
            assert!(!cause.is_from_within(), "{cause:?}");
        }
        for cause in [Cause::Signal(6), Cause::Code(1), Cause::Stalled, Cause::LinkEnded, Cause::LeftBehind] {
            assert!(cause.is_from_within(), "{cause:?}");
        }
    }
}
