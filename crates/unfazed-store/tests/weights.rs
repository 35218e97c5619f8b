//! Weights that outlive the process that loaded them.

#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use unfazed_formats::{BlockFormat, Extent, FileId};
use unfazed_kernels::panel::unpack_row;
use unfazed_store::{Loader, MatrixSource, Reader, StoreError, VectorSource, WeightMemory};
use unfazed_wire::memory::{Segment, WEIGHTS_OFFSET};

const ROWS: usize = 48;
const COLUMNS: usize = 64;
const MATRIX: usize = ROWS * COLUMNS * 4;

/// A file whose value number `i` is `i`; reads from `broken` on fail.
#[derive(Default)]
struct Counting {
    reads: AtomicUsize,
    broken: Option<usize>,
}

impl Reader for Counting {
    fn read(&self, tensor: &str, extent: Extent, buf: &mut [u8]) -> Result<(), StoreError> {
        let number = self.reads.fetch_add(1, Ordering::SeqCst);
        if self.broken.is_some_and(|broken| number >= broken) {
            let (file, tensor, source) = ("f".into(), tensor.into(), std::io::Error::other("unplugged"));
            return Err(StoreError::Read { file, tensor, offset: extent.offset, len: extent.len, source });
        }
        let first = extent.offset / 4;
        for (value, bytes) in (first..).zip(buf.as_chunks_mut().0) {
            *bytes = (value as f32).to_le_bytes();
        }
        Ok(())
    }
}

fn tensors() -> (Vec<MatrixSource>, VectorSource) {
    let extent =
        |number: usize| Extent { file: FileId(0), offset: (number * MATRIX) as u64, len: MATRIX as u64 };
    let matrix = |number| MatrixSource {
        name: format!("matrix {number}"),
        format: BlockFormat::F32,
        rows: ROWS,
        columns: COLUMNS,
        parts: vec![extent(number)],
    };
    let vector = VectorSource { name: "norm".into(), format: BlockFormat::F32, len: 10, extent: extent(3) };
    ((0..3).map(matrix).collect(), vector)
}

/// Loads everything, as an engine does.
fn load(segment: Segment, reader: &Arc<Counting>) -> Result<Loader, StoreError> {
    let memory = WeightMemory::open(segment).unwrap();
    let loader = Loader::new(Arc::clone(reader) as Arc<dyn Reader>, 2, Box::new(|_| {})).into_memory(memory);
    let (matrices, vector) = tensors();
    for (number, source) in matrices.iter().enumerate() {
        let stack = loader.load_matrix(source)?;
        let mut row = vec![0.0; COLUMNS];
        for r in 0..ROWS {
            unpack_row(&stack.matrix(0), r, &mut row);
            let first = (number * ROWS + r) * COLUMNS;
            assert!(row.iter().zip(first..).all(|(value, expected)| *value == expected as f32));
        }
    }
    let norm = loader.load_vector(&vector)?;
    assert!(norm.iter().zip(3 * ROWS * COLUMNS..).all(|(value, expected)| *value == expected as f32));
    Ok(loader)
}

fn segment(bytes: usize) -> Segment {
    Segment::create("weights", (WEIGHTS_OFFSET + bytes) as u64).unwrap()
}

/// The same memory in another process's hands.
fn again(segment: &Segment) -> Segment {
    Segment::received("weights", segment.as_fd().try_clone_to_owned().unwrap(), segment.len()).unwrap()
}

#[test]
fn what_one_process_has_loaded_the_next_one_does_not_read() {
    let memory = segment(4 * MATRIX);
    let first = Arc::new(Counting::default());
    let loader = load(again(&memory), &first).unwrap();
    loader.seal().unwrap();
    assert_eq!((loader.bytes_kept(), loader.bytes_read()), (0, (3 * MATRIX + 40) as u64));
    assert_eq!(memory.contents_are_sealed().unwrap(), cfg!(target_os = "linux"));
    let second = Arc::new(Counting::default());
    let loader = load(again(&memory), &second).unwrap();
    loader.seal().unwrap();
    assert_eq!((loader.bytes_kept(), loader.bytes_read()), ((3 * MATRIX + 40) as u64, 0));
    assert_eq!(second.reads.load(Ordering::SeqCst), 0);
}

#[test]
fn a_process_that_ends_while_it_loads_leaves_whole_tensors_to_the_next() {
    for broken in 0..4 {
        let memory = segment(4 * MATRIX);
        let dying = Arc::new(Counting { broken: Some(broken), ..Counting::default() });
        assert!(load(again(&memory), &dying).is_err());
        let next = Arc::new(Counting::default());
        let loader = load(again(&memory), &next).unwrap();
        assert_eq!(loader.bytes_kept(), (broken * MATRIX) as u64, "all before the one that broke");
        assert_eq!(next.reads.load(Ordering::SeqCst), 4 - broken);
    }
}

#[test]
fn memory_that_is_too_small_or_of_another_model_is_refused_by_name() {
    let error = load(segment(2 * MATRIX), &Arc::default()).err().unwrap().to_string();
    assert!(error.contains("matrix 2") && error.contains("do not fit"), "{error}");
    if cfg!(target_os = "linux") {
        let memory = segment(4 * MATRIX);
        memory.seal_contents().unwrap();
        let error = load(again(&memory), &Arc::default()).err().unwrap().to_string();
        assert!(error.contains("matrix 0") && error.contains("sealed"), "{error}");
    }
}
