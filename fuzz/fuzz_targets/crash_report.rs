//! Any bytes as a report of macOS, the first of them for its kind: it is read or refused, and what it says is short and harmless.

#![no_main]

use libfuzzer_sys::fuzz_target;
use unfazed_guard::reports::{Kind, Report, parse};

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let kind = match first % 3 {
        0 => Kind::Panic,
        1 => Kind::GpuEvent,
        _ => Kind::Other,
    };
    match parse(kind, bytes) {
        Ok(Report::Panic(panic)) => {
            assert!(panic.explanation.chars().count() <= 300);
            assert!(!panic.explanation.contains(char::is_control));
        }
        Ok(Report::GpuEvent(event)) => {
            for text in [event.description, event.process].into_iter().flatten() {
                assert!(text.chars().count() <= 300 && !text.contains(char::is_control));
            }
        }
        Ok(_) => assert_ne!(kind, Kind::Panic),
        Err(damage) => assert!(!damage.to_string().is_empty()),
    }
});
