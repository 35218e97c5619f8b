//! The adapter that the tests run on.

use std::sync::{Arc, OnceLock};

use unfazed_device::gpu::{Adapters, Gpu};

/// Oldest Mesa whose software device is right: older ones leave loops after 65,535 rounds.
const MESA: u32 = 25;

/// A device: of the GPU that `UNFAZED_TEST_GPU` names, else of the first one. Without any, tests that need one pass without
/// having looked; with `UNFAZED_REQUIRE_GPU=1` they fail.
pub(crate) fn gpu() -> Option<&'static Gpu> {
    static OPEN: OnceLock<Option<Gpu>> = OnceLock::new();
    OPEN.get_or_init(open).as_ref()
}

/// A device of its own, for tests of what becomes of a device.
pub(crate) fn fresh() -> Option<Arc<Gpu>> {
    gpu()?;
    Some(Arc::new(Gpu::open(&adapter()?).unwrap()))
}

/// The adapter that is tested on.
pub(crate) fn adapter() -> Option<wgpu::Adapter> {
    let adapters = Adapters::find();
    let wanted = std::env::var("UNFAZED_TEST_GPU").unwrap_or_else(|_| "0".to_owned());
    match adapters.choose(Some(&wanted)) {
        Ok(adapter) => Some(adapter),
        Err(error) => {
            let required = std::env::var("UNFAZED_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "UNFAZED_REQUIRE_GPU is set: {error}");
            eprintln!("no GPU, nothing was tested: {error}");
            None
        }
    }
}

fn open() -> Option<Gpu> {
    let adapter = adapter()?;
    let gpu = Gpu::open(&adapter).unwrap();
    eprintln!("{}, {}: {:?}", gpu.info.name, gpu.info.driver, gpu.abilities);
    if let Some((_, version)) = gpu.info.driver.split_once("Mesa ") {
        let major: u32 = version.split('.').next().unwrap_or_default().parse().unwrap();
        assert!(major >= MESA, "Mesa {version} computes wrongly: install {MESA} or newer");
    }
    Some(gpu)
}

/// As a buffer has them.
pub(crate) fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// The same of f32.
pub(crate) fn bytes_of(floats: &[f32]) -> Vec<u8> {
    bytes(floats)
}

/// The f32 of a buffer.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The words of a buffer.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// |a - b| / |b| in the L2 norm; infinite if there is a NaN.
pub(crate) fn difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let off = off / norm(&mut b.iter().map(|b| f64::from(*b)));
    if off.is_nan() { f64::INFINITY } else { off }
}
