//! The demo model with one fault at a time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use unfazed_formats::{Checkpoint, FormatError};
use unfazed_testkit::damage::{Damage, Damager};

/// The field and the value that a refusal must name.
fn expected(damage: Damage) -> Option<(&'static str, &'static str)> {
    Some(match damage {
        Damage::Empty => ("magic is missing", "0 bytes are left"),
        Damage::MagicOnly => ("version is missing", "0 bytes are left"),
        Damage::NotGguf => ("magic is \"", "a GGUF file starts with \"GGUF\""),
        Damage::TruncatedHalf => ("offset of tensor blk.3.ffn_gate_exps.weight", "the file ends at 8850592"),
        Damage::TruncatedLast100Bytes => {
            ("offset of tensor blk.7.ffn_down_exps.weight", "the file ends at 17701084")
        }
        Damage::TruncatedInHeader => {
            ("length of tokenizer.ggml.tokens is 8192", "bytes are left in the file")
        }
        Damage::Version99 => ("version is 99", "versions 2 and 3"),
        Damage::TensorCountHuge => ("tensor count is 1152921504606846976", "bytes are left in the file"),
        Damage::KvCountHuge => ("metadata count is 1152921504606846976", "bytes are left in the file"),
        Damage::FirstKeyLengthHuge => ("length of metadata key 0 is 4611686018427387904", "bytes are left"),
        Damage::OffsetPastEnd => {
            ("offset of tensor blk.1.attn_q.weight is 70804736", "do not end inside the file")
        }
        Damage::OffsetWraps => {
            ("offset of tensor blk.1.attn_q.weight is 18446744073709551584", "do not end inside the file")
        }
        Damage::OffsetMisaligned => ("offset of tensor blk.1.attn_q.weight is 4130311", "the alignment 32"),
        Damage::OffsetOverlaps => ("offset of tensor blk.1.attn_q.weight is 0", "overlaps"),
        Damage::DimsHuge => {
            ("dimensions of tensor blk.1.attn_q.weight is [4611686018427387904, 256]", "too large")
        }
        // Twice as wide, it reaches into the tensor behind it.
        Damage::DimsWrong => ("tensor blk.1.attn_q.weight overlaps it", "from 4130304 to 4204032"),
        Damage::DimsZero => ("dimensions of tensor blk.1.attn_q.weight is [0, 256]", "none may be zero"),
        Damage::TypeUnknown => ("type of tensor blk.1.attn_q.weight is 250", "Q4_0"),
        Damage::WeightsRandomBytes => return None,
    })
}

#[test]
fn every_fault_that_a_header_shows_is_refused_with_file_field_and_value() {
    let folder = tempfile::tempdir().unwrap();
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-moe-29m-Q4_0.gguf");
    let good = std::fs::read(good).unwrap();
    let damager = Damager::new(&good, 1).unwrap();
    for damage in Damage::ALL {
        let path = folder.path().join(damage.name()).with_extension("gguf");
        std::fs::write(&path, damager.apply(damage)).unwrap();
        let result = Checkpoint::open(&path);
        let Some((field, value)) = expected(damage) else {
            assert_eq!(result.unwrap().tensors.len(), 98);
            continue;
        };
        let error = result.expect_err(damage.name());
        let supported = !matches!(damage, Damage::Version99 | Damage::TypeUnknown);
        assert_eq!(supported, !matches!(error, FormatError::Unsupported { .. }), "{error:?}");
        let message = error.to_string();
        let file = format!("{}.gguf: ", damage.name());
        assert!(message.starts_with(&file), "{message}");
        assert!(message.contains(field) && message.contains(value), "{message}");
        assert!(!message.contains('\n') && message.len() < 300, "{message}");
    }
}
