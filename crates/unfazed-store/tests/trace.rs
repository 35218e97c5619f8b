//! Traces of experts: what is written is read, and what is damaged is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use proptest::prelude::*;
use unfazed_store::StoreError;
use unfazed_store::experts::Units;
use unfazed_store::experts::trace::{Step, TraceHeader, TraceReader, TraceWriter};

fn header() -> TraceHeader {
    TraceHeader {
        model: "Qwen3-30B-A3B".to_owned(),
        units: Units { layers: 48, experts: 128 },
        used: 8,
        expert_bytes: 2_654_208,
        other_bytes: 700 << 20,
    }
}

fn write(steps: &[Step]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, &header()).unwrap();
    steps.iter().for_each(|step| writer.step(step).unwrap());
    drop(writer);
    bytes
}

fn read(bytes: &[u8]) -> Result<(Vec<Step>, bool), StoreError> {
    let mut reader = TraceReader::new("a.trace", bytes)?;
    let steps = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((steps, reader.is_cut()))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let experts = prop::collection::btree_set(0..128u32, 0..20).prop_map(|set| set.into_iter().collect());
    let layers = prop::collection::vec((0..48u32, experts), 0..10);
    let step = (0..=u32::MAX, layers).prop_map(|(tokens, layers)| Step { tokens, layers });
    prop::collection::vec(step, 0..40)
}

proptest! {
    #[test]
    fn steps_come_back_as_they_were(steps in steps()) {
        prop_assert_eq!(read(&write(&steps)).unwrap(), (steps, false));
    }

    #[test]
    fn a_byte_that_is_off_is_found_and_its_place_is_told(
        steps in steps(), at in any::<prop::sample::Index>(), bit in 0..8u8,
    ) {
        let mut bytes = write(&steps);
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        match read(&bytes) {
            Err(error @ StoreError::Trace { .. }) => {
                prop_assert!(error.to_string().starts_with("a.trace: at "), "{}", error)
            }
            // A length that is off by more than there is looks like an end that was cut off.
            read => prop_assert!(read.unwrap().1),
        }
    }

    #[test]
    fn what_is_before_a_cut_is_read(steps in steps(), cut in any::<prop::sample::Index>()) {
        let bytes = write(&steps);
        let cut = cut.index(bytes.len());
        match read(&bytes[..cut]) {
            Ok((read, was_cut)) => {
                prop_assert!(steps.starts_with(&read));
                prop_assert!(was_cut || cut == bytes.len() || read.is_empty());
            }
            Err(error) => prop_assert!(error.to_string().contains("at 0"), "{}", error),
        }
    }

    #[test]
    fn no_bytes_at_all_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let mut behind_a_header = write(&[]);
        behind_a_header.extend(bytes);
        let _ = read(&behind_a_header);
    }
}

#[test]
fn a_trace_of_many_steps_is_compact_and_in_blocks() {
    let experts: Vec<u32> = (0..8).map(|e| e * 16 + 3).collect();
    let step = Step { tokens: 1, layers: (0..48).map(|layer| (layer, experts.clone())).collect() };
    let steps = vec![step; 1000];
    let bytes = write(&steps);
    assert!(bytes.len() < 500_000, "{} bytes", bytes.len());
    assert_eq!(read(&bytes).unwrap().0.len(), 1000);
    // A cut in the middle costs one block.
    let (half, cut) = read(&bytes[..bytes.len() / 2]).unwrap();
    assert!(cut && half.len() > 300, "{}", half.len());
}

#[test]
fn the_header_says_what_the_trace_is_of() {
    let bytes = write(&[]);
    assert_eq!(TraceReader::new("a.trace", &bytes[..]).unwrap().header(), &header());
    let long = TraceHeader { model: "ü".repeat(1000), ..header() };
    let mut bytes = Vec::new();
    TraceWriter::new(&mut bytes, &long).unwrap().flush().unwrap();
    assert_eq!(TraceReader::new("a.trace", &bytes[..]).unwrap().header().model, "ü".repeat(512));
}

#[test]
fn a_file_of_another_kind_is_refused_with_what_makes_one() {
    for other in [&b""[..], b"GGUF", &[0; 100]] {
        let error = TraceReader::new("model.gguf", other).err().unwrap().to_string();
        assert!(error.contains("model.gguf") && error.contains("--expert-trace"), "{error}");
    }
    let mut newer = write(&[]);
    newer[8] = 2;
    let error = TraceReader::new("a.trace", &newer[..]).err().unwrap().to_string();
    assert!(error.contains("version 2") && error.contains("version 1"), "{error}");
}
