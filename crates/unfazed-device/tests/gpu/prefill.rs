//! What the tests of prompt kernels share.

use unfazed_device::gpu::kernels::quantise::{Quantise, QuantiseScalars, quantise};
use unfazed_device::gpu::kernels::tile::{Tile, TilePath};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_device::gpu::{Gpu, Kernel};
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

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

/// Translates a kernel, as it is done for Vulkan and for Metal; returns the bytes of its shared memory.
pub(crate) fn translate(kernel: &Kernel, vulkan: bool, metal: bool) -> u32 {
    use naga::valid::{Capabilities, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
    let Kernel { name, source, .. } = kernel;
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(source)));
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    let info = validator
        .validate(&module)
        .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(source)));
    if vulkan {
        let options = naga::back::spv::Options { lang_version: (1, 6), ..Default::default() };
        naga::back::spv::write_vec(&module, &info, &options, None).unwrap();
    }
    if metal {
        let options = naga::back::msl::Options {
            lang_version: (3, 1),
            fake_missing_bindings: true,
            ..Default::default()
        };
        naga::back::msl::write_string(&module, &info, &options, &Default::default()).unwrap();
    }
    let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
    shared.map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx())).sum()
}
