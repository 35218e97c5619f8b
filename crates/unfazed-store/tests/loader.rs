//! Loading from bytes in memory, and from a reader that fails.

#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use unfazed_formats::source::{ByteSource, MemorySource};
use unfazed_formats::{BlockFormat, Extent, FileId};
use unfazed_kernels::panel::unpack_row;
use unfazed_store::{Loader, MatrixSource, Reader, StoreError, VectorSource};

/// Bytes, and the number of the read that fails.
struct Bytes {
    bytes: Vec<u8>,
    reads: AtomicUsize,
    fails_at: usize,
}

impl Reader for Bytes {
    fn read(&self, tensor: &str, extent: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        let error = |source| StoreError::Read {
            file: "memory.gguf".to_owned(),
            tensor: tensor.to_owned(),
            offset: extent.offset,
            len: buf.len() as u64,
            source,
        };
        if self.reads.fetch_add(1, Ordering::SeqCst) == self.fails_at {
            return Err(error(io::Error::other("the disk is on fire")));
        }
        let source = MemorySource::new("memory.gguf", &self.bytes);
        source.read_exact_at(buf, extent.offset).map_err(|source| StoreError::Read {
            file: "memory.gguf".to_owned(),
            tensor: tensor.to_owned(),
            offset: extent.offset,
            len: 0,
            source,
        })
    }
}

fn extent(offset: u64, len: u64) -> Extent {
    Extent { file: FileId(0), offset, len }
}

fn loader(bytes: Vec<u8>, fails_at: usize, threads: usize) -> (Loader, Arc<Mutex<u64>>, Arc<Bytes>) {
    let most = Arc::new(Mutex::new(0));
    let reader = Arc::new(Bytes { bytes, reads: AtomicUsize::new(0), fails_at });
    let progress = {
        let most = most.clone();
        Box::new(move |done: u64| {
            let mut most = most.lock().unwrap();
            *most = done.max(*most);
        })
    };
    (Loader::new(reader.clone(), threads, progress), most, reader)
}

/// Two matrices of `rows` x 1024 F32, the second before the first in the file.
fn matrix(rows: usize) -> (Vec<u8>, MatrixSource) {
    let weights = (0..2 * rows * 1024).map(|i| i as f32 * 0.25 - 77.0);
    let bytes: Vec<u8> = weights.flat_map(f32::to_le_bytes).collect();
    let len = (rows * 1024 * 4) as u64;
    let source = MatrixSource {
        name: "blk.0.ffn_up_exps.weight".to_owned(),
        format: BlockFormat::F32,
        rows,
        columns: 1024,
        parts: vec![extent(len, len), extent(0, len)],
    };
    (bytes, source)
}

#[test]
fn a_stack_is_packed_row_by_row_with_any_number_of_threads() {
    for (rows, threads) in [(5, 1), (16, 2), (700, 1), (700, 3), (700, 64)] {
        let (bytes, source) = matrix(rows);
        let total = bytes.len() as u64;
        let (loader, done, _) = loader(bytes, usize::MAX, threads);
        let stack = loader.load_matrix(&source).unwrap();
        assert_eq!((stack.parts(), *done.lock().unwrap()), (2, total));
        let mut row = vec![0.0; 1024];
        for (part, first) in [(0, rows), (1, 0)] {
            for r in 0..rows {
                unpack_row(&stack.matrix(part), r, &mut row);
                let start = ((first + r) * 1024) as f32 * 0.25 - 77.0;
                assert!(row.iter().enumerate().all(|(i, x)| *x == start + i as f32 * 0.25));
            }
        }
    }
}

#[test]
fn a_read_that_fails_ends_the_load_and_names_tensor_and_file() {
    for fails_at in [0, 3, 5] {
        for threads in [1, 4] {
            let (bytes, source) = matrix(700);
            let (loader, _, reader) = loader(bytes, fails_at, threads);
            let error = loader.load_matrix(&source).unwrap_err().to_string();
            assert!(error.contains("memory.gguf") && error.contains("blk.0.ffn_up_exps.weight"), "{error}");
            assert!(error.contains("the disk is on fire"), "{error}");
            assert!(reader.reads.load(Ordering::SeqCst) <= fails_at + threads, "it went on reading");
        }
    }
}

#[test]
fn a_shape_that_its_extent_cannot_hold_is_refused_before_anything_is_read() {
    let (bytes, mut source) = matrix(20);
    let (loader, _, reader) = loader(bytes, usize::MAX, 1);
    source.parts[1].len -= 1;
    assert!(matches!(loader.load_matrix(&source), Err(StoreError::Extent { .. })));
    source.rows = usize::MAX / 8;
    assert!(matches!(loader.load_matrix(&source), Err(StoreError::Shape { .. })));
    (source.rows, source.format, source.columns) = (1, BlockFormat::Q4_K, 1000);
    assert!(matches!(loader.load_matrix(&source), Err(StoreError::Shape { .. })));
    let vector = VectorSource {
        name: "output_norm.weight".to_owned(),
        format: BlockFormat::F16,
        len: usize::MAX,
        extent: extent(0, 64),
    };
    assert!(matches!(loader.load_vector(&vector), Err(StoreError::Extent { .. })));
    let quantised = VectorSource { format: BlockFormat::Q8_0, len: 32, ..vector };
    assert!(matches!(loader.load_vector(&quantised), Err(StoreError::Shape { .. })));
    assert_eq!(reader.reads.load(Ordering::SeqCst), 0);
}

#[test]
fn vectors_of_every_float_format_become_f32() {
    // 1.5 and -2 in f32, f16 and bf16.
    let bytes = vec![0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0, 0x00, 0x3e, 0x00, 0xc0, 0xc0, 0x3f, 0x00, 0xc0];
    let (loader, done, _) = loader(bytes, usize::MAX, 1);
    for (format, offset, len) in
        [(BlockFormat::F32, 0, 8), (BlockFormat::F16, 8, 4), (BlockFormat::BF16, 12, 4)]
    {
        let source = VectorSource { name: "norm".to_owned(), format, len: 2, extent: extent(offset, len) };
        assert_eq!(loader.load_vector(&source).unwrap(), [1.5, -2.0]);
    }
    assert_eq!(*done.lock().unwrap(), 16);
}
