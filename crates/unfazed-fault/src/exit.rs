//! How a process ended, as a class.

use crate::Class;

const SIGBUS: i32 = if cfg!(target_os = "linux") { 7 } else { 10 };
const SIGKILL: i32 = 9;
/// A shell adds this to the signal that ended its command.
const SHELL: i32 = 128;
/// The largest number of a signal that ends processes; those above are for programs' own use.
const LAST_SIGNAL: i32 = 31;
/// What a Rust program ends with when its main thread panicked.
const PANIC: i32 = 101;

/// What is known of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// The exit code. A signal may be in it: 128 and its number, as shells say, or the number below zero, as Python does.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The kernel ended processes of its control group meanwhile.
    pub out_of_memory: bool,
    /// The watchdog ended it.
    pub stalled: bool,
}

impl Exit {
    /// The signal that ended it, wherever it is told.
    pub fn ended_by(&self) -> Option<i32> {
        let told = self.signal.or_else(|| match self.code? {
            code if code < 0 => code.checked_neg(),
            code => code.checked_sub(SHELL),
        });
        told.filter(|signal| (1..=LAST_SIGNAL).contains(signal))
    }
}

/// The class of an end of an engine, which is a Rust program. An abort without another word is a signal like any other:
/// what a process said before tells more than how it went, so ask [`classify`](crate::classify) first.
pub fn of_exit(exit: Exit) -> Class {
    if exit.stalled {
        return Class::Stalled;
    }
    match (exit.ended_by(), exit.code) {
        (Some(SIGKILL), _) if exit.out_of_memory => Class::OutOfMemoryKilled,
        (Some(SIGBUS), _) => Class::BusError,
        (Some(_), _) => Class::Killed,
        (None, Some(PANIC)) => Class::Bug,
        (None, Some(_)) => Class::Exited,
        (None, None) if exit.signal.is_some() => Class::Killed,
        (None, None) => Class::Unknown,
    }
}
