//! Any text, from anywhere.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use unfazed_fault::parser::MAX_EVIDENCE;
use unfazed_fault::{Class, Exit, classify, of_exit};

/// Pieces that rules are made of, among which anything may be.
const PIECES: [&str; 12] = [
    "[METAL] Command buffer execution failed: ",
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
    "Caused GPU Hang Error",
    "prepare count underflow",
    "IOGPUMemory.cpp",
    "panic: ",
    "Killed",
    "\n",
    "\r",
    "é\u{1f600}",
    "CUDA error: out of memory",
    " ",
];

fn assert_bounded(text: &str) -> Class {
    let report = classify(text);
    let range = text.as_bytes().as_ptr_range();
    let evidence = report.evidence.as_bytes().as_ptr_range();
    assert!(report.evidence.len() <= MAX_EVIDENCE);
    assert!(!report.evidence.contains(['\n', '\r']));
    assert_eq!(report.evidence.is_empty(), report.class == Class::Unknown);
    assert!(report.evidence.is_empty() || (evidence.start >= range.start && evidence.end <= range.end));
    // A whole line says by itself what it said in the text; of a long one the words may be apart.
    let cut = text.split(['\n', '\r']).any(|line| line.len() > MAX_EVIDENCE);
    assert!(cut || classify(report.evidence).class == report.class);
    report.class
}

proptest! {
    #[test]
    fn any_text_has_a_class_and_evidence_that_is_a_bounded_part_of_it(text in any::<String>()) {
        assert_bounded(&text);
    }

    #[test]
    fn so_has_any_text_of_pieces_that_mean_something(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::sample::select(&PIECES[..]).prop_map(str::to_owned),
                "\\PC{0,20}",
                ("é|x", 1usize..2000).prop_map(|(piece, times)| piece.repeat(times)),
            ],
            0..20,
        ),
    ) {
        assert_bounded(&pieces.concat());
    }

    #[test]
    fn any_bytes_read_as_text_have_a_class(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        assert_bounded(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_end_of_a_process_has_a_class(
        code in any::<Option<i32>>(), signal in any::<Option<i32>>(), out_of_memory: bool, stalled: bool,
    ) {
        let class = of_exit(Exit { code, signal, out_of_memory, stalled });
        prop_assert_eq!(class == Class::Stalled, stalled);
        if class == Class::OutOfMemoryKilled {
            prop_assert!(out_of_memory);
        }
    }
}
