//! The classes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Declares [`Class`] with its names and meanings, so that none can be forgotten.
macro_rules! classes {
    ($($class:ident $name:literal $origin:ident $meaning:literal)*) => {
        /// What went wrong. Names are stable: they are in events, metrics and status files.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Class {
            $(#[doc = $meaning] $class,)*
        }

        impl Class {
            /// All classes.
            pub const ALL: [Class; [$($name),*].len()] = [$(Class::$class),*];

            /// Its name in events and metrics. Where metal-guard has a name, it is that name.
            pub const fn name(self) -> &'static str {
                match self { $(Class::$class => $name,)* }
            }

            /// Whose fault it is.
            pub const fn origin(self) -> Origin {
                match self { $(Class::$class => Origin::$origin,)* }
            }

            /// What it means, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Class::$class => $meaning,)* }
            }
        }
    };
}

classes! {
    PrepareCountUnderflow "iogpu_prepare_count_underflow" Device
        "macOS panicked: its GPU driver released memory that it had not prepared."
    PendingMemorySet "iogpu_pending_memory_set" Device
        "macOS panicked: its GPU driver lost count of a group of memory."
    RemoveMemoryObject "remove_memory_object" Device
        "macOS panicked: its GPU driver removed memory that it did not know."
    ContextStoreTimeout "ctxstore_timeout" Device
        "macOS panicked: the GPU did not store its context in time."
    WatchdogNoCheckins "watchdogd_no_checkins" Device
        "macOS panicked: nothing ran for 90 s, mostly for a GPU driver that hung."

    SubmissionsIgnored "gpu_submissions_ignored" Device
        "The driver takes no more work from this process, for what it did before."
    Hang "gpu_hang" Device
        "The GPU hung and was reset by its firmware or its driver."
    PageFault "gpu_page_fault" Device
        "A kernel touched an address that is not mapped."
    DeviceLost "gpu_device_lost" Device
        "The device is gone with all that was on it: removed, reset, or its context broken."
    OutOfMemory "cmd_buffer_oom" Device
        "The GPU's memory did not suffice."
    Timeout "gpu_timeout" Device
        "Work on the GPU took longer than the watchdog allows."
    Interactivity "gpu_interactivity" Device
        "Work on the GPU was ended because it held up the display."
    InnocentVictim "gpu_innocent_victim" Device
        "Work was thrown away because something else faulted on the GPU."
    Discarded "gpu_discarded" Device
        "The driver reported success and the work did not run."
    DescriptorLeak "metal_descriptor_leak" Device
        "More objects of the GPU are alive than its driver allows."
    CompletionAbort "metal_completion_sigabrt" Device
        "A runner threw an exception in the driver's callback, which ends the process."
    CommandBufferFailed "metal_command_buffer_failed" Device
        "Work on the device failed, and the text does not say why."

    OutOfMemoryKilled "engine_out_of_memory" Engine
        "The process found no memory: the kernel ended it, or an allocation failed."
    BusError "engine_bus_error" Storage
        "A mapped page could not be had: its file shrank, its disk failed, or no memory was left."

    StorageGone "storage_gone" Storage
        "A file, its mount or its disk went away, perhaps for a while."
    StorageCorrupt "storage_corrupt" Storage
        "What was read is not what was written."
    StorageTransient "storage_transient" Storage
        "A read failed and may succeed when it is tried again."
    StorageSlow "storage_slow" Storage
        "A read missed its deadline."

    NonFinite "non_finite" Engine
        "Results are not finite."
    Stalled "engine_stalled" Engine
        "It made no progress for too long."
    WireBroken "wire_broken" Engine
        "The link between two processes or threads ended while an answer was due."
    Bug "bug" Us
        "An invariant of unfazed does not hold."
    RunnerPanic "runner_panic" Engine
        "A runner ended itself: a panic, an assertion, an exception."
    Killed "engine_killed" Engine
        "A signal ended the process."
    Exited "engine_exited" Engine
        "The process ended by itself."
    Unknown "unknown" Unknown
        "Nothing is known."
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A GPU or its driver.
    Device,
    /// A process that computes.
    Engine,
    /// Files and what they are on.
    Storage,
    /// Our own.
    Us,
    /// It cannot be told.
    Unknown,
}

impl Origin {
    /// Its name, for labels.
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Device => "device",
            Origin::Engine => "engine",
            Origin::Storage => "storage",
            Origin::Us => "us",
            Origin::Unknown => "unknown",
        }
    }
}

/// metal-guard's word for how bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The machine restarted.
    KernelPanic,
    /// The GPU's memory did not suffice.
    CommandBufferOom,
    /// The GPU hung.
    GpuHang,
    /// The GPU touched what is not mapped.
    GpuPageFault,
    /// Too many objects.
    DescriptorLeak,
    /// The process ended.
    ProcessAbort,
    /// metal-guard has no word for it.
    None,
}

impl Severity {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::KernelPanic => "kernel_panic",
            Severity::CommandBufferOom => "command_buffer_oom",
            Severity::GpuHang => "gpu_hang",
            Severity::GpuPageFault => "gpu_page_fault",
            Severity::DescriptorLeak => "descriptor_leak",
            Severity::ProcessAbort => "process_abort",
            Severity::None => "none",
        }
    }
}

/// metal-guard's word for what a script should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hint {
    /// Wait until the machine may be used again.
    WaitLockout,
    /// Start the process again at once.
    RespawnNow,
    /// Load the model anew.
    ForceReload,
    /// Nothing is known; scripts start the process again, with care.
    None,
}

impl Hint {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            Hint::WaitLockout => "wait_lockout",
            Hint::RespawnNow => "respawn_now",
            Hint::ForceReload => "force_reload",
            Hint::None => "none",
        }
    }
}

impl Class {
    /// Whether the machine itself went down.
    pub const fn is_kernel_panic(self) -> bool {
        matches!(self.severity(), Severity::KernelPanic)
    }

    /// metal-guard's severity. A class that metal-guard does not know has the one of the row that its text falls to there.
    pub const fn severity(self) -> Severity {
        use Class::*;
        match self {
            PrepareCountUnderflow
            | PendingMemorySet
            | RemoveMemoryObject
            | ContextStoreTimeout
            | WatchdogNoCheckins => Severity::KernelPanic,
            OutOfMemory => Severity::CommandBufferOom,
            Hang => Severity::GpuHang,
            PageFault => Severity::GpuPageFault,
            DescriptorLeak => Severity::DescriptorLeak,
            Timeout | Interactivity | InnocentVictim | SubmissionsIgnored | DeviceLost | CompletionAbort
            | CommandBufferFailed | OutOfMemoryKilled | BusError | RunnerPanic | Bug | Killed | Exited => {
                Severity::ProcessAbort
            }
            Discarded | StorageGone | StorageCorrupt | StorageTransient | StorageSlow | NonFinite
            | Stalled | WireBroken | Unknown => Severity::None,
        }
    }

    /// metal-guard's hint.
    pub const fn hint(self) -> Hint {
        match self.severity() {
            Severity::KernelPanic => Hint::WaitLockout,
            Severity::DescriptorLeak => Hint::ForceReload,
            Severity::None => Hint::None,
            _ => Hint::RespawnNow,
        }
    }

    /// Whether the device can't be used again in the process that saw it: another device there would meet the same.
    pub const fn outlives_rebuild(self) -> bool {
        matches!(self, Class::SubmissionsIgnored | Class::Hang)
    }

    /// Whether keys and values written after the last verified step are not to be trusted. An engine that was ended from
    /// outside left whole pages or none, and each says so itself; a device that faulted may have written anything.
    pub const fn spoils_memory(self) -> bool {
        matches!(self.origin(), Origin::Device | Origin::Us | Origin::Unknown)
            || matches!(self, Class::NonFinite | Class::RunnerPanic)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no class has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no fault class is called {0:?}")]
pub struct UnknownName(pub String);

impl FromStr for Class {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let class = Class::ALL.into_iter().find(|class| class.name() == name);
        class.ok_or_else(|| UnknownName(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_labels_that_are_different_and_read_back() {
        let names: BTreeSet<_> = Class::ALL.iter().map(|class| class.name()).collect();
        assert_eq!(names.len(), Class::ALL.len());
        for class in Class::ALL {
            assert!(class.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{class}");
            assert_eq!(class.name().parse(), Ok(class));
        }
        assert_eq!(
            "gpu_hangs".parse::<Class>().unwrap_err().to_string(),
            "no fault class is called \"gpu_hangs\""
        );
    }

    /// Name, severity and hint of each row of metal-guard 0.11.7's table.
    #[test]
    fn metal_guards_scripts_find_their_words() {
        let table = [
            ("iogpu_prepare_count_underflow", "kernel_panic", "wait_lockout"),
            ("iogpu_pending_memory_set", "kernel_panic", "wait_lockout"),
            ("cmd_buffer_oom", "command_buffer_oom", "respawn_now"),
            ("gpu_hang", "gpu_hang", "respawn_now"),
            ("gpu_page_fault", "gpu_page_fault", "respawn_now"),
            ("metal_descriptor_leak", "descriptor_leak", "force_reload"),
            ("metal_completion_sigabrt", "process_abort", "respawn_now"),
            ("metal_command_buffer_failed", "process_abort", "respawn_now"),
        ];
        for (name, severity, hint) in table {
            let class: Class = name.parse().unwrap();
            assert_eq!((class.severity().name(), class.hint().name()), (severity, hint), "{name}");
        }
    }

    #[test]
    fn memory_is_not_trusted_after_a_fault_of_a_device_and_is_after_a_kill() {
        for class in Class::ALL.into_iter().filter(|class| class.origin() == Origin::Device) {
            assert!(class.spoils_memory(), "{class}");
        }
        for class in [Class::Killed, Class::OutOfMemoryKilled, Class::Stalled, Class::StorageGone] {
            assert!(!class.spoils_memory(), "{class}");
        }
        for class in [Class::NonFinite, Class::Bug, Class::Unknown] {
            assert!(class.spoils_memory(), "{class}");
        }
    }
}
