//! Any bytes as a message, a log or a report: there is a class, and its evidence is a bounded part of the text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use unfazed_fault::parser::MAX_EVIDENCE;
use unfazed_fault::{Class, classify};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let report = classify(&text);
    assert!(report.evidence.len() <= MAX_EVIDENCE);
    assert!(!report.evidence.contains(['\n', '\r']));
    assert_eq!(report.evidence.is_empty(), report.class == Class::Unknown);
    assert!(text.contains(report.evidence));
    // A whole line says by itself what it said in the text; of a long one the words may be apart.
    let cut = text.split(['\n', '\r']).any(|line| line.len() > MAX_EVIDENCE);
    assert!(cut || classify(report.evidence).class == report.class);
});
