//! GGUF headers: what is read, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use unfazed_formats::gguf::{Array, Header, Value, read_header};
use unfazed_formats::source::MemorySource;
use unfazed_formats::{BlockFormat, FileId, FormatError};
use unfazed_testkit::gguf_writer::{Entry, GgufWriter};

fn read(bytes: &[u8]) -> Result<Header, FormatError> {
    read_header(&MemorySource::new("test.gguf", bytes), FileId(3))
}

fn with_value(value: Value) -> Result<Value, FormatError> {
    let bytes = GgufWriter::new(vec![("key".to_owned(), value)], Vec::new()).to_bytes(|_| Ok(Vec::new()));
    read(&bytes.unwrap()).map(|header| header.metadata.get("key").unwrap().clone())
}

fn refusal(bytes: &[u8]) -> String {
    read(bytes).unwrap_err().to_string()
}

fn entry(name: &str, shape: &[usize], format: BlockFormat) -> Entry {
    Entry { name: name.to_owned(), shape: shape.to_vec(), format }
}

fn written(writer: &GgufWriter) -> Vec<u8> {
    let extents = writer.layout().unwrap().extents;
    writer.to_bytes(|i| Ok(vec![0; extents[i].1 as usize])).unwrap()
}

/// Values of all types, arrays nested as deep as is allowed.
fn values() -> impl Strategy<Value = Value> {
    fn many<T: std::fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
        proptest::collection::vec(one, 0..4)
    }
    let arrays = prop_oneof![
        many(any::<u8>()).prop_map(Array::U8),
        many(any::<i8>()).prop_map(Array::I8),
        many(any::<u16>()).prop_map(Array::U16),
        many(any::<i16>()).prop_map(Array::I16),
        many(any::<u32>()).prop_map(Array::U32),
        many(any::<i32>()).prop_map(Array::I32),
        many(any::<f32>()).prop_map(Array::F32),
        many(any::<bool>()).prop_map(Array::Bool),
        many(".{0,9}").prop_map(Array::String),
        many(any::<u64>()).prop_map(Array::U64),
        many(any::<i64>()).prop_map(Array::I64),
        many(any::<f64>()).prop_map(Array::F64),
    ];
    let nested = arrays.prop_recursive(3, 16, 3, |inner| many(inner).prop_map(Array::Array));
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,99}".prop_map(Value::String),
        nested.prop_map(Value::Array),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
    ]
}

proptest! {
    #[test]
    fn metadata_of_every_type_come_back(value in values()) {
        prop_assert_eq!(with_value(value.clone()).unwrap(), value);
    }

    #[test]
    fn tensors_come_back_with_their_place(
        shapes in proptest::collection::vec((1usize..4, 1usize..4, 0..BlockFormat::GGUF.len()), 1..6),
        version in 2u32..=3,
        alignment in (3u32..12).prop_map(|bits| 1u64 << bits),
    ) {
        let entries = shapes.iter().enumerate().map(|(i, (rows, blocks, format))| {
            let format = BlockFormat::GGUF[*format];
            entry(&format!("t{i}"), &[*rows, blocks * format.block_weights()], format)
        });
        let writer = GgufWriter { version, alignment, ..GgufWriter::new(Vec::new(), entries.collect()) };
        let header = read(&written(&writer)).unwrap();
        prop_assert_eq!((header.version, header.alignment), (version, alignment));
        let extents = writer.layout().unwrap().extents;
        for ((tensor, entry), (offset, len)) in header.tensors.iter().zip(&writer.tensors).zip(extents) {
            prop_assert_eq!((&tensor.name, tensor.format), (&entry.name, entry.format));
            prop_assert_eq!(&tensor.shape, &entry.shape.iter().map(|d| *d as u64).collect::<Vec<_>>());
            prop_assert_eq!((tensor.extent.offset, tensor.extent.len, tensor.extent.file), (offset, len, FileId(3)));
        }
    }

    /// A byte may change to anything: the reader answers, and what it accepts is inside the file.
    #[test]
    fn no_changed_byte_leads_outside_the_file(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 0usize..64) {
        let metadata = vec![
            ("general.architecture".to_owned(), Value::String("llama".to_owned())),
            ("a".to_owned(), Value::Array(Array::Array(vec![Array::String(vec!["x".to_owned()]), Array::U8(vec![1])]))),
        ];
        let entries = vec![entry("w", &[2, 32], BlockFormat::Q4_0), entry("v", &[4], BlockFormat::F32)];
        let mut bytes = written(&GgufWriter::new(metadata, entries));
        let place = at.index(bytes.len());
        bytes[place] = byte;
        bytes.truncate(bytes.len() - cut);
        if let Ok(header) = read(&bytes) {
            for tensor in &header.tensors {
                prop_assert!(tensor.extent.offset + tensor.extent.len <= bytes.len() as u64);
            }
        }
    }
}

#[test]
fn versions_and_byte_orders_that_are_not_read_are_refused_by_name() {
    let version = |version: u32| {
        let writer = GgufWriter { version, ..GgufWriter::new(Vec::new(), Vec::new()) };
        refusal(&written(&writer))
    };
    assert!(version(1).contains("version is 1: not supported"));
    assert!(version(4).contains("version is 4: not supported"));
    assert!(version(3u32.swap_bytes()).contains("version is 3 in big endian: not supported"));
}

#[test]
fn names_that_are_used_twice_are_refused() {
    let metadata = vec![("key".to_owned(), Value::U8(1)), ("key".to_owned(), Value::U8(2))];
    let message = refusal(&written(&GgufWriter::new(metadata, Vec::new())));
    assert!(message.contains("metadata key 1 is \"key\": the key was already used"), "{message}");
    let entries = vec![entry("w", &[1], BlockFormat::F32), entry("w", &[1], BlockFormat::F32)];
    let message = refusal(&written(&GgufWriter::new(Vec::new(), entries)));
    assert!(message.contains("name of tensor 1 is \"w\": the name was already used"), "{message}");
}

#[test]
fn names_and_shapes_beyond_the_specification_are_refused() {
    let tensor = |entry: Entry| refusal(&written(&GgufWriter::new(Vec::new(), vec![entry])));
    let long = "x".repeat(65);
    assert!(tensor(entry(&long, &[1], BlockFormat::F32)).contains("at most 64 bytes"));
    assert!(tensor(entry("a\nb", &[1], BlockFormat::F32)).contains("name of tensor 0 is \"a\\nb\""));
    assert!(tensor(entry("", &[1], BlockFormat::F32)).contains("name of tensor 0 is \"\""));
    assert!(
        tensor(entry("w", &[1, 1, 1, 1, 1], BlockFormat::F32)).contains("dimension count of tensor w is 5")
    );
    let key = vec![("k".repeat(1 << 16), Value::U8(1))];
    let message = refusal(&written(&GgufWriter::new(key, Vec::new())));
    assert!(message.contains("length of metadata key 0 is 65536: at most 65535 bytes"), "{message}");
}

#[test]
fn rows_must_be_whole_blocks() {
    let writer = GgufWriter::new(Vec::new(), vec![entry("w", &[2, 32], BlockFormat::Q4_0)]);
    let mut bytes = written(&writer);
    // Magic, version, two counts, the name with its length, the number of dimensions: then the first dimension.
    bytes[4 + 4 + 16 + 9 + 4] = 48;
    let message = refusal(&bytes);
    assert!(message.contains("dimensions of tensor w is [48, 2]"), "{message}");
    assert!(message.contains("whole blocks of 32 for Q4_0"), "{message}");
}

#[test]
fn a_type_that_exists_but_is_not_supported_is_named() {
    let mut bytes = written(&GgufWriter::new(Vec::new(), vec![entry("w", &[256], BlockFormat::Q4_K)]));
    bytes[4 + 4 + 16 + 9 + 4 + 8] = 41;
    let message = refusal(&bytes);
    assert!(message.contains("type of tensor w is 41 (Q1_0): not supported (F32, F16, BF16"), "{message}");
}

#[test]
fn alignments_that_are_no_powers_of_two_or_absurd_are_refused() {
    for alignment in [0u32, 24, 1 << 21] {
        let metadata = vec![("general.alignment".to_owned(), Value::U32(alignment))];
        let message = refusal(&written(&GgufWriter::new(metadata, Vec::new())));
        assert!(
            message.contains(&format!("general.alignment is {alignment}: it must be a power of two")),
            "{message}"
        );
    }
}

#[test]
fn arrays_that_nest_too_deep_are_refused_and_do_not_exhaust_the_stack() {
    let mut array = Array::U8(vec![1]);
    for _ in 0..3 {
        array = Array::Array(vec![array]);
    }
    assert!(with_value(Value::Array(array.clone())).is_ok());
    let message = with_value(Value::Array(Array::Array(vec![array]))).unwrap_err().to_string();
    assert!(message.contains("nesting of key is 5"), "{message}");
}

#[test]
fn a_bool_is_0_or_1_and_text_is_utf8() {
    let damaged = |value: Value, byte: u8| {
        let bytes = GgufWriter::new(vec![("key".to_owned(), value)], Vec::new());
        let mut bytes = bytes.to_bytes(|_| Ok(Vec::new())).unwrap();
        let place = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes[place] = byte;
        refusal(&bytes)
    };
    assert!(damaged(Value::Bool(true), 2).contains("value of key is 2: a bool is 0 or 1"));
    assert!(damaged(Value::String("ab".to_owned()), 0xFF).contains("it is not UTF-8 at byte 1"));
}

#[test]
fn getters_name_the_key_and_the_value() {
    let metadata = vec![
        ("text".to_owned(), Value::String("seven".to_owned())),
        ("many".to_owned(), Value::Array(Array::U32(vec![4, 4]))),
        ("negative".to_owned(), Value::I32(-1)),
        ("nan".to_owned(), Value::F32(f32::NAN)),
        ("small".to_owned(), Value::U8(7)),
    ];
    let metadata = read(&written(&GgufWriter::new(metadata, Vec::new()))).unwrap().metadata;
    let text = metadata.u64("text").unwrap_err().to_string();
    assert_eq!(text, "test.gguf: text is \"seven\": it must be one whole number that is not negative");
    assert!(metadata.u64("many").unwrap_err().to_string().contains("many is an array of 2 u32 values"));
    assert!(metadata.u64("negative").unwrap_err().to_string().contains("negative is -1"));
    assert!(metadata.f32("nan").unwrap_err().to_string().contains("nan is NaN"));
    assert_eq!(metadata.size("small", 0..=7).unwrap(), Some(7));
    assert!(metadata.size("small", 8..=9).unwrap_err().to_string().contains("it must be from 8 to 9"));
    assert!(
        metadata.required_string("none", "why").unwrap_err().to_string().contains("none is missing: why")
    );
}
