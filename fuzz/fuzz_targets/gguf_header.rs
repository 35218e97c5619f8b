//! Any bytes as a GGUF file: the reader refuses or gives extents that are inside the file and apart.

#![no_main]

use libfuzzer_sys::fuzz_target;
use unfazed_formats::gguf::{model_config, read_header, split, tokenizer};
use unfazed_formats::source::MemorySource;
use unfazed_formats::{Extent, FileId};

fuzz_target!(|bytes: &[u8]| {
    let source = MemorySource::new("fuzz", bytes);
    let Ok(header) = read_header(&source, FileId(0)) else { return };
    let mut extents: Vec<Extent> = header.tensors.iter().map(|tensor| tensor.extent).collect();
    extents.sort_by_key(|extent| extent.offset);
    for extent in &extents {
        assert!(extent.offset.checked_add(extent.len).is_some_and(|end| end <= bytes.len() as u64));
        assert!(extent.offset >= header.data_offset && extent.offset.is_multiple_of(header.alignment));
    }
    assert!(extents.windows(2).all(|pair| pair[0].offset + pair[0].len <= pair[1].offset));
    for tensor in &header.tensors {
        assert!(tensor.elements() > 0);
        assert_eq!(tensor.format.row_bytes(tensor.elements() as usize), Some(tensor.extent.len as usize));
    }
    let tensor = |name: &str| header.tensors.iter().find(|tensor| tensor.name == name);
    if let Ok(config) = model_config(&header.metadata, tensor, None) {
        let _ = tokenizer(&header.metadata, config.vocab);
    }
    let _ = split::check_parts(&[header]);
});
