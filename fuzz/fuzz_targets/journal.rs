//! Any bytes as a journal's segments: what is whole is kept, the rest is counted, and memory stays bounded.

#![no_main]

use std::alloc::System;

use cap::Cap;
use libfuzzer_sys::fuzz_target;
use unfazed_server::fuzzing::read_journal;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Bytes of memory per byte of a segment: the smallest record has 61 and takes a place in each of a few tables.
const EXPANSION: usize = 64;
/// For what tables take in advance.
const IN_ADVANCE: usize = 4 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let (seal, parts) = (first & 1 == 1, usize::from(first >> 1 & 3) + 1);
    let segments: Vec<Vec<u8>> = rest.chunks(rest.len().div_ceil(parts).max(1)).map(<[u8]>::to_vec).collect();
    // An allocation over the limit ends the process, which the fuzzer reports.
    let limit = IN_ADVANCE + EXPANSION * bytes.len();
    ALLOCATOR.set_limit(ALLOCATOR.allocated() + limit).expect("the limit is above what is allocated");
    let read = read_journal(segments, seal);
    ALLOCATOR.set_limit(usize::MAX).expect("there is no limit");
    if let Some([kept, skipped]) = read {
        assert!(kept + skipped <= rest.len() as u64);
    }
});
