//! What programs and kernels really print, as quoted in reports of their users, and what it is. Beside each is where it
//! was read: project and number of the report. Some are shortened to the lines that matter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod devices;
mod metal;
mod processes;
mod storage;

use std::collections::BTreeSet;

use unfazed_fault::Class::{self, *};
use unfazed_fault::parser::MAX_EVIDENCE;
use unfazed_fault::{Exit, classify, of_exit};

/// Class, where it was read, text.
type Case = (Class, &'static str, &'static str);

/// Nothing of this is a fault that we know, whatever it sounds like.
const UNKNOWN: &[(&str, &str)] = &[
    ("nothing", ""),
    ("only space", " \n\r\n\t"),
    (
        "ollama/ollama 9782, a log's line",
        "level=INFO source=sched.go:620 msg=\"gpu memory\" id=0 library=Metal available=\"47.5 GiB\" free=\"48.0 GiB\"",
    ),
    (
        "Strata's log",
        "strata generate: pre-filled 6144 of 6144 slots from the profile in 1.9 s (4409 MB/s); slot 0 verified",
    ),
    ("ml-explore/mlx, an environment variable", "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1"),
    (
        "wilicc/gpu-burn 1, a corrected error",
        "[74785.660380] pcieport 0000:00:02.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, id=0010(Transmitter ID)",
    ),
    (
        "ggml-org/llama.cpp 14097, no fault of anything",
        "decode: failed to find a memory slot for batch of size 1024",
    ),
    (
        "colibri 305, advice",
        "check whether the machine is out of memory and whether somebody killed the process",
    ),
    (
        "a panic of Linux that is none of a GPU",
        "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
    ),
    ("another panic of macOS", "panic(cpu 2 caller 0xfffffe001f): Kernel trap at 0x0, type 14=page fault"),
    ("half of a signature", "IOGPUMemory.cpp:550 was in the backtrace"),
    ("a hex dump", "00000002: 6b49 4f47 5055 kIOGPU"),
    ("a model's answer", "The timeout of 5 seconds is long. A hang is worse. Panic: don't."),
    ("words of a log in which all is well", "INFO [main] model loaded | 0 errors, 0 timeouts, no panic"),
];

fn cases() -> impl Iterator<Item = &'static Case> {
    [metal::METAL, devices::DEVICES, processes::PROCESSES, storage::STORAGE].into_iter().flatten()
}

#[test]
fn real_messages_are_what_they_are() {
    let mut wrong = Vec::new();
    for (class, source, text) in cases() {
        let report = classify(text);
        if report.class != *class {
            wrong.push(format!("{source}: {} is not {class}: {:?}", report.class, report.evidence));
        }
        assert!(text.contains(report.evidence) && report.evidence.len() <= MAX_EVIDENCE, "{source}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases().count() >= 80, "{}", cases().count());
    let texts: BTreeSet<_> = cases().map(|(_, _, text)| text).collect();
    assert_eq!(texts.len(), cases().count(), "a text is there twice");
}

#[test]
fn a_message_in_the_middle_of_a_log_is_found_and_its_line_is_the_evidence() {
    for (class, source, text) in cases() {
        let log = format!("INFO one thing\r\nINFO another\r\n{text}\r\nINFO the end\r\n");
        let report = classify(&log);
        assert_eq!(report.class, *class, "{source}");
        assert!(!report.evidence.is_empty() && !report.evidence.contains('\n'), "{source}");
        assert_eq!(report.evidence, classify(text).evidence, "{source}");
    }
}

#[test]
fn letters_may_be_of_any_case() {
    for (class, source, text) in cases() {
        assert_eq!(classify(&text.to_ascii_uppercase()).class, *class, "{source}");
    }
}

#[test]
fn what_is_not_known_is_not_guessed() {
    for (source, text) in UNKNOWN {
        let report = classify(text);
        assert_eq!((report.class, report.evidence), (Unknown, ""), "{source}");
    }
}

/// MLX's message with each code, as its driver words it, and the code and the name alone.
#[test]
fn each_code_of_metal_is_told_by_its_words_its_name_and_its_number() {
    let codes = [
        (Timeout, "00000002", "Timeout", "Caused GPU Timeout Error"),
        (Hang, "00000003", "Hang", "Caused GPU Hang Error"),
        (
            SubmissionsIgnored,
            "00000004",
            "SubmissionsIgnored",
            "Ignored (for causing prior/excessive GPU errors)",
        ),
        (InnocentVictim, "00000005", "InnocentVictim", "Innocent Victim"),
        (OutOfMemory, "00000008", "OutOfMemory", "Insufficient Memory"),
        (PageFault, "0000000b", "PageFault", "GPU Address Fault Error"),
        (Interactivity, "0000000e", "ImpactingInteractivity", "Impacting Interactivity"),
    ];
    for (class, code, name, words) in codes {
        let name = format!("kIOGPUCommandBufferCallbackError{name}");
        for text in [
            format!("[METAL] Command buffer execution failed: {words} ({code}:{name})."),
            format!("[METAL] Command buffer execution failed: {words}."),
            format!("[METAL] Command buffer execution failed: Zeitüberschreitung ({code}:…)."),
            name.clone(),
            name.replace("kIOGPU", "kIOAccel"),
            format!("{code}:kIOGPU…"),
        ] {
            assert_eq!(classify(&text).class, class, "{text}");
        }
    }
    let other = "[METAL] Command buffer execution failed: Something new (0000000f:kIOGPUCommandBufferCallbackErrorNew).";
    assert_eq!(classify(other).class, CommandBufferFailed);
}

/// In one text with something less specific, in either order.
#[test]
fn the_cause_wins_over_what_followed_whichever_comes_first() {
    let pairs = [
        ("completeMemory() prepare count underflow", "watchdog timeout: no checkins from watchdogd"),
        ("watchdog timeout: no checkins from watchdogd", "Caused GPU Hang Error"),
        ("Ignored (for causing prior/excessive GPU errors)", "Caused GPU Hang Error"),
        ("Caused GPU Hang Error", "Caused GPU Timeout Error"),
        ("vk::Queue::submit: ErrorDeviceLost", "ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=2"),
        ("ErrorOutOfDeviceMemory", "Caused GPU Timeout Error"),
        ("Caused GPU Timeout Error", "Innocent Victim"),
        ("Innocent Victim", "Bus error (core dumped)"),
        ("Out of memory: Killed process 1 (llama)", "Killed"),
        ("Stale file handle", "Input/output error"),
        ("Input/output error", "Traceback (most recent call last):"),
        ("Caused GPU Timeout Error", "thread 'main' panicked at crates/unfazed-device/src/gpu.rs:1:1"),
        ("RecvError", "thread 'main' panicked at src/main.rs:1:1"),
        (
            "thread 'main' panicked at crates/unfazed/src/main.rs:1:1",
            "thread 'main' panicked at src/main.rs:1:1",
        ),
        ("mlx::core::gpu::check_error", "[METAL] Command buffer execution failed: ?"),
        ("[METAL] Command buffer execution failed: ?", "terminating due to uncaught exception"),
        ("panic: runtime error: index out of range", "llama runner process has terminated: exit status 2"),
        ("signal: killed", "llama runner process has terminated: exit status 2"),
    ];
    for (cause, effect) in pairs {
        let expected = classify(cause);
        assert_ne!(expected.class, Unknown, "{cause}");
        assert_ne!(classify(effect).class, Unknown, "{effect}");
        for text in [format!("{cause}\n{effect}"), format!("{effect}\n{cause}")] {
            assert_eq!(classify(&text), expected, "{text}");
        }
    }
}

#[test]
fn ends_of_processes_are_what_they_are() {
    let code = |code| Exit { code: Some(code), ..Exit::default() };
    let signal = |signal| Exit { signal: Some(signal), ..Exit::default() };
    let sigbus = if cfg!(target_os = "linux") { 7 } else { 10 };
    let table = [
        (Exited, code(0), "it ended though nobody told it to"),
        (Exited, code(1), "Strata"),
        (Exited, code(2), "a Go runner's panic, or wrong usage"),
        (Exited, code(6), "oMLX"),
        (Exited, code(127), "a shell that found no program"),
        (Exited, code(128), "no signal is 0"),
        (Exited, code(255), "no signal is 127"),
        (Bug, code(101), "a panic of Rust"),
        (Killed, code(134), "a shell's SIGABRT"),
        (Killed, code(137), "a shell's SIGKILL"),
        (Killed, code(139), "a shell's SIGSEGV"),
        (Killed, code(143), "a shell's SIGTERM"),
        (Killed, code(-6), "Python's SIGABRT"),
        (BusError, code(128 + sigbus), "a shell's SIGBUS"),
        (BusError, signal(sigbus), "SIGBUS"),
        (Killed, signal(6), "SIGABRT"),
        (Killed, signal(9), "SIGKILL"),
        (Killed, signal(11), "SIGSEGV"),
        (Killed, signal(15), "SIGTERM"),
        (Killed, signal(64), "a signal of a program's own"),
        (Exited, code(i32::MIN), "no signal at all"),
        (Unknown, Exit::default(), "somebody else reaped it"),
    ];
    for (class, exit, what) in table {
        assert_eq!(of_exit(exit), class, "{what}: {exit:?}");
        assert_eq!(of_exit(Exit { stalled: true, ..exit }), Stalled, "{what}");
    }
    // The kernel's counter speaks of a SIGKILL and of nothing else.
    for exit in [signal(9), code(137), code(-9)] {
        assert_eq!(of_exit(Exit { out_of_memory: true, ..exit }), OutOfMemoryKilled, "{exit:?}");
    }
    for exit in [signal(11), code(1), code(143)] {
        assert_eq!(of_exit(Exit { out_of_memory: true, ..exit }), of_exit(exit), "{exit:?}");
    }
}
