//! Rights that the engine gives up.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

/// Whether it does.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine process")]
pub(crate) struct SandboxFlags {
    /// Lock the engine in: no network, no programs, no files but those that it needs, as far as the system can; off: for
    /// debuggers and profilers
    #[arg(long, value_name = "WHEN", default_value = "on")]
    sandbox: OnOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnOff {
    On,
    Off,
}

impl SandboxFlags {
    /// The engine gives up what it does not need.
    pub(crate) fn locked(&self) -> bool {
        self.sandbox == OnOff::On
    }

    /// The same flag for the engine's command line.
    pub(crate) fn for_engine(&self) -> [OsString; 2] {
        let word = if self.locked() { "on" } else { "off" };
        ["--sandbox", word].map(OsString::from)
    }
}
