//! Which panic it is, by metal-guard's names.
//!
//! The rules are those of `unfazed-fault`: words of which all must be there. There they stand in one line of a log; a panic's
//! message and place may be on different lines, so its text is taken as one.

use unfazed_fault::{Class, classify};

/// Fewer seconds without a check-in are another watchdog's.
const LEAST_SILENCE: u32 = 90;

/// What panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signature {
    /// `completeMemory() prepare count underflow` at `IOGPUMemory.cpp`.
    PrepareCountUnderflow,
    /// `fPendingMemorySet` at `IOGPUGroupMemory.cpp`.
    PendingMemorySet,
    /// `remove_memory_object` at `IOGPUGroupMemory.cpp`.
    RemoveMemoryObject,
    /// `IOGPUCommandQueue`: context store timeout.
    ContextStoreTimeout,
    /// A panic over the GPU's memory.
    MetalOom,
    /// `no checkins from watchdogd in 9x seconds`.
    WatchdogNoCheckins,
    /// Another panic.
    Unknown,
}

impl Signature {
    /// All of them.
    pub const ALL: [Signature; 7] = [
        Signature::PrepareCountUnderflow,
        Signature::PendingMemorySet,
        Signature::RemoveMemoryObject,
        Signature::ContextStoreTimeout,
        Signature::MetalOom,
        Signature::WatchdogNoCheckins,
        Signature::Unknown,
    ];

    /// metal-guard's name, where it has one.
    pub const fn name(self) -> &'static str {
        match self {
            Signature::PrepareCountUnderflow => "prepare_count_underflow",
            Signature::PendingMemorySet => "pending_memory_set",
            Signature::RemoveMemoryObject => "remove_memory_object",
            Signature::ContextStoreTimeout => "ctxstore_timeout",
            Signature::MetalOom => "metal_oom",
            Signature::WatchdogNoCheckins => "watchdogd_no_checkins",
            Signature::Unknown => "unknown",
        }
    }

    /// Its class.
    pub const fn class(self) -> Class {
        match self {
            Signature::PrepareCountUnderflow => Class::PrepareCountUnderflow,
            Signature::PendingMemorySet => Class::PendingMemorySet,
            Signature::RemoveMemoryObject => Class::RemoveMemoryObject,
            Signature::ContextStoreTimeout => Class::ContextStoreTimeout,
            Signature::MetalOom => Class::OutOfMemory,
            Signature::WatchdogNoCheckins => Class::WatchdogNoCheckins,
            Signature::Unknown => Class::Unknown,
        }
    }

    /// Whether the gate counts it: work on the GPU may have brought it about.
    pub const fn counts(self) -> bool {
        !matches!(self, Signature::Unknown)
    }

    /// The signature of a panic's text.
    pub fn of(text: &str) -> Signature {
        let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match classify(&line).class {
            Class::PrepareCountUnderflow => Signature::PrepareCountUnderflow,
            Class::PendingMemorySet => Signature::PendingMemorySet,
            Class::RemoveMemoryObject => Signature::RemoveMemoryObject,
            Class::ContextStoreTimeout => Signature::ContextStoreTimeout,
            Class::OutOfMemory if line.contains("CommandBufferCallbackErrorOutOfMemory") => {
                Signature::MetalOom
            }
            Class::WatchdogNoCheckins if was_silent(&line) => Signature::WatchdogNoCheckins,
            _ => Signature::Unknown,
        }
    }
}

/// Whether it is watchdogd that did not check in, and for how long.
fn was_silent(line: &str) -> bool {
    let mut places = line.split("no checkins from watchdogd in ").skip(1);
    places.any(|rest| {
        let seconds = rest.split(' ').next().and_then(|number| number.parse::<u32>().ok());
        seconds.is_some_and(|seconds| seconds >= LEAST_SILENCE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_found_on_one_line_and_on_several() {
        for (text, signature) in [
            (
                "panic(cpu 4 caller 0x1): \"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:492",
                Signature::PrepareCountUnderflow,
            ),
            (
                "panic: prepare_count_underflow detected\nat IOGPUMemory.cpp:550 completeMemory()",
                Signature::PrepareCountUnderflow,
            ),
            ("panic: fPendingMemorySet.empty()\n@IOGPUGroupMemory.cpp:219", Signature::PendingMemorySet),
            ("panic: pending memory set\n@IOGPUGroupMemory.cpp:219", Signature::PendingMemorySet),
            ("panic: remove_memory_object failed\n@IOGPUGroupMemory.cpp:323", Signature::RemoveMemoryObject),
            ("panic: IOGPUCommandQueue: context store timeout", Signature::ContextStoreTimeout),
            ("panic: (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", Signature::MetalOom),
            (
                "watchdog timeout: no checkins from watchdogd in 90 seconds (1 total)",
                Signature::WatchdogNoCheckins,
            ),
            ("watchdog timeout: no checkins from watchdogd in\n93 seconds", Signature::WatchdogNoCheckins),
        ] {
            assert_eq!(Signature::of(text), signature, "{text}");
            assert!(signature.counts());
        }
    }

    /// One half of a rule is not enough.
    #[test]
    fn other_panics_do_not_count() {
        for text in [
            "panic: prepare_count_underflow detected",
            "panic: something at IOGPUMemory.cpp:492",
            "panic: a reference count underflow @kern_foo.c:1 completeMemory()",
            "panic: memory object not found @vm_object.c:7",
            "panic: context store timeout @disk.c:3",
            "panic: out of memory; loaded kexts: com.apple.iokit.IOGPUFamily",
            "userspace watchdog timeout: no successful checkins from com.apple.WindowServer in 120 seconds",
            "watchdog timeout: no checkins from watchdogd in 30 seconds",
            "watchdog timeout: no checkins from logd in 91 seconds",
            "",
        ] {
            assert_eq!(Signature::of(text), Signature::Unknown, "{text}");
        }
        assert!(!Signature::Unknown.counts());
    }

    /// Classes and signatures are two names of the same.
    #[test]
    fn a_signatures_class_is_a_kernel_panic_where_there_is_one() {
        for signature in Signature::ALL {
            let panic = signature.class().is_kernel_panic();
            assert_eq!(
                panic,
                !matches!(signature, Signature::MetalOom | Signature::Unknown),
                "{signature:?}"
            );
        }
    }
}
