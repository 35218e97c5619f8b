//! Headers of safetensors files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use unfazed_formats::huggingface::safetensors::read_header;
use unfazed_formats::source::MemorySource;
use unfazed_formats::{BlockFormat, FileId, FormatError, TensorInfo};

fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<TensorInfo>, FormatError> {
    read_header(&MemorySource::new("model.safetensors", bytes), FileId(1))
}

fn refusal(header: &str, data_bytes: usize) -> String {
    read(&file(header, data_bytes)).unwrap_err().to_string()
}

#[test]
fn tensors_are_placed_behind_the_header() {
    let header = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},
        "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
    let tensors = read(&file(header, 20)).unwrap();
    let start = 8 + header.len() as u64;
    let found: Vec<_> =
        tensors.iter().map(|t| (t.name.as_str(), t.format, t.extent.offset, t.extent.len)).collect();
    assert_eq!(found, [("a", BlockFormat::BF16, start, 12), ("b", BlockFormat::F32, start + 12, 8)]);
    assert_eq!(tensors[0].shape, [2, 3]);
}

#[test]
fn faults_are_refused_by_name() {
    let one = |dtype: &str, shape: &str, end: usize| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    assert!(
        refusal(&one("I8", "[4]", 4), 4).contains("type of tensor w is I8: not supported (BF16, F16 and F32")
    );
    assert!(refusal(&one("F32", "[]", 4), 4).contains("shape of tensor w is []"));
    assert!(refusal(&one("F32", "[0]", 0), 0).contains("shape of tensor w is [0]"));
    assert!(refusal(&one("F32", "[2]", 4), 4).contains("header is"));
    assert!(refusal(&one("F32", "[1]", 4), 3).contains("length of tensor data is 4: the file has 3 bytes"));
    assert!(refusal(&one("F32", "[4611686018427387904,4]", 4), 4).contains("header is"));
    assert!(refusal("[1]", 0).contains("header is 3 bytes of JSON"));
    let short = read(b"1234567").unwrap_err().to_string();
    assert!(short.contains("file size is 7"), "{short}");
    let long = read(&[0xFF; 16]).unwrap_err().to_string();
    assert!(long.contains("header length is 18446744073709551615"), "{long}");
}

proptest! {
    #[test]
    fn no_changed_byte_leads_outside_the_file(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let header = r#"{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
            "b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}}"#;
        let mut bytes = file(header, 20);
        let place = at.index(bytes.len());
        bytes[place] = byte;
        for tensor in read(&bytes).unwrap_or_default() {
            prop_assert!(tensor.extent.offset + tensor.extent.len <= bytes.len() as u64);
        }
    }
}
