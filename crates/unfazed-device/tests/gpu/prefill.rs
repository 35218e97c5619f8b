//! What the tests of prompt kernels share.

use crate::weights::{Activations, Random};

pub(crate) fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// Rows of ordinary activations.
pub(crate) fn rows(count: usize, columns: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    (0..count).map(|_| Activations::Ordinary.row(columns, &mut random)).collect()
}

/// `|a - b| / |b|`
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let off: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (off / size).sqrt()
}

/// Fails with the distance if `a` is further from `b` than this, or not a number.
pub(crate) fn close(a: &[f32], b: &[f32], tolerance: f64, what: &str) {
    let distance = distance(a, b);
    assert!(distance < tolerance, "{what}: {distance:e} from the CPU's");
}
