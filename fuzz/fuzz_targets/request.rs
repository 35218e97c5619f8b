//! Any bytes as a request's body: both endpoints read it or refuse it, and never call that their own fault.

#![no_main]

use libfuzzer_sys::fuzz_target;
use unfazed_server::fuzzing::parse_request;

fuzz_target!(|bytes: &[u8]| {
    for refused in parse_request(bytes).into_iter().filter_map(Result::err) {
        assert!((400..500).contains(&refused), "{refused}");
    }
});
