//! What the tests of prompt kernels share.

use unfazed_device::gpu::Gpu;
use unfazed_device::gpu::kernels::quantise::{Quantise, QuantiseScalars, quantise};
use unfazed_device::gpu::kernels::tile::{Tile, TilePath};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

use crate::support::{bytes, difference};
use crate::weights::{Activations, Random};

/// Rows of ordinary activations.
pub(crate) fn rows(count: usize, columns: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    (0..count).map(|_| Activations::Ordinary.row(columns, &mut random)).collect()
}

/// Rows as a product on this path takes them.
pub(crate) fn activations(gpu: &Gpu, layout: &PanelLayout, path: TilePath, x: &[Vec<f32>]) -> Vec<Vec<u8>> {
    let x: Vec<f32> = x.concat();
    let columns = layout.columns();
    if path == TilePath::Floats {
        return vec![bytes(&x)];
    }
    let integers = path == TilePath::Integers;
    let what = Quantise {
        columns,
        grain: Grain::of(layout.format()),
        norm: false,
        listed: false,
        floats: false,
        integers,
        halves: !integers,
    };
    let count = x.len() / columns;
    let input = bytes(&x);
    let outputs = if integers {
        let block = what.grain.block().unwrap();
        vec![vec![0xff; x.len()], vec![0xff; x.len() / block * 4], vec![0xff; x.len() / 16 * 4]]
    } else {
        vec![vec![0xff; x.len() * 2], vec![0xff; count * 4]]
    };
    let buffers: Vec<&[u8]> = [&input].into_iter().chain(&outputs).map(Vec::as_slice).collect();
    let scalars = QuantiseScalars { rows: count as u32, epsilon: 0.0 };
    let trial = Trial { buffers: &buffers, immediates: &scalars.bytes(), grid: scalars.grid() };
    once(gpu, &quantise(&what), &trial).unwrap().split_off(1)
}

/// The paths of a matrix on this device.
pub(crate) fn paths(gpu: &Gpu, layout: &PanelLayout) -> Vec<TilePath> {
    let plain =
        if Grain::of(layout.format()) == Grain::Float { TilePath::Floats } else { TilePath::Integers };
    let best = TilePath::best(layout, &gpu.abilities);
    if best == plain { vec![plain] } else { vec![plain, best] }
}

/// How far a result of this path may be from the CPU's.
pub(crate) fn tolerance(tile: &Tile) -> f64 {
    if matches!(tile.path, TilePath::Cooperative(_)) { 2e-3 } else { 1e-3 }
}

/// Fails with the distance if `a` is further from `b` than this, or not a number.
pub(crate) fn close(a: &[f32], b: &[f32], tolerance: f64, what: &str) {
    let off = difference(a, b);
    assert!(off < tolerance, "{what}: {off:e} from the CPU's");
}
