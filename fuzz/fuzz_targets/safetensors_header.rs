//! Any bytes as a safetensors file: the reader refuses or gives extents that are inside the file and apart.

#![no_main]

use libfuzzer_sys::fuzz_target;
use unfazed_formats::FileId;
use unfazed_formats::huggingface::safetensors::read_header;
use unfazed_formats::source::MemorySource;

fuzz_target!(|bytes: &[u8]| {
    let source = MemorySource::new("fuzz", bytes);
    let Ok(tensors) = read_header(&source, FileId(0)) else { return };
    let mut end = 0;
    for tensor in &tensors {
        assert!(tensor.extent.offset >= end);
        end = tensor.extent.offset + tensor.extent.len;
        assert!(end <= bytes.len() as u64);
        assert!(tensor.elements() > 0);
        assert_eq!(tensor.format.row_bytes(tensor.elements() as usize), Some(tensor.extent.len as usize));
    }
});
