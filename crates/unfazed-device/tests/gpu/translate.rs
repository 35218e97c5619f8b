//! Kernels as other platforms get them: text for Metal and words for Vulkan, on any machine.

use naga::back::{msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{CooperativeSize, Module, ShaderStage, TypeInner};
use unfazed_device::gpu::kernels::experts::{Down, GateUp};
use unfazed_device::gpu::kernels::grouped::{Combine, down, gate_up};
use unfazed_device::gpu::kernels::matvec::{MOST_ROWS, MatVec};
use unfazed_device::gpu::kernels::quantise::{Quantise, quantise};
use unfazed_device::gpu::kernels::receipt::receipt;
use unfazed_device::gpu::kernels::routing::{TopK, group_rows, top_k};
use unfazed_device::gpu::kernels::tile::{Product, Tile, TilePath, TileRows};
use unfazed_device::gpu::{Abilities, Access, Kernel};
use unfazed_formats::BlockFormat;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;

use crate::attention_text::attention;

/// What a kernel is for each platform.
pub(crate) struct Translated {
    /// Metal's text; why there is none for a kernel that Metal can't have.
    pub(crate) metal: Result<String, String>,
    /// Vulkan's words.
    pub(crate) vulkan: Vec<u32>,
    /// Bytes that a workgroup shares.
    pub(crate) shared: u32,
}

impl Translated {
    /// There is text for Metal too.
    pub(crate) fn everywhere(self) {
        let metal = self.metal.unwrap_or_else(|error| panic!("for Metal: {error}"));
        assert!(metal.contains("kernel void main_"), "{metal}");
        assert!(!self.vulkan.is_empty());
    }
}

/// Translates a kernel.
///
/// # Panics
///
/// It is not valid, for any platform.
pub(crate) fn translates(kernel: &Kernel) -> Translated {
    let name = &kernel.name;
    let module = naga::front::wgsl::parse_str(&kernel.source)
        .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(&kernel.source)));
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(&kernel.source)));
    let vulkan = vulkan(&module, &info).unwrap_or_else(|error| panic!("{name} for Vulkan: {error}"));
    let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
    let shared = shared.map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx())).sum();
    Translated { metal: metal(kernel, &module, &info), vulkan, shared }
}

fn vulkan(module: &Module, info: &ModuleInfo) -> Result<Vec<u32>, spv::Error> {
    let options = spv::Options { lang_version: (1, 4), ..spv::Options::default() };
    let entry = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".to_owned() };
    spv::write_vec(module, info, &options, Some(&entry))
}

/// As wgpu asks for it: buffers in the order of their bindings, then the immediates.
fn metal(kernel: &Kernel, module: &Module, info: &ModuleInfo) -> Result<String, String> {
    if let Some(sizes) = large_tiles(module, info) {
        return Err(sizes);
    }
    let mut resources = msl::EntryPointResources::default();
    for (binding, access) in (0_u8..).zip(&kernel.bindings) {
        let target = msl::BindTarget {
            buffer: Some(binding),
            mutable: *access == Access::Write,
            ..msl::BindTarget::default()
        };
        let place = naga::ResourceBinding { group: 0, binding: binding.into() };
        resources.resources.insert(place, target);
    }
    let count = kernel.bindings.len() as u8;
    resources.immediates_buffer = (kernel.immediates > 0).then_some(count);
    resources.sizes_buffer = Some(count + 1);
    let options = msl::Options {
        lang_version: (3, 1),
        per_entry_point_map: [("main".to_owned(), resources)].into_iter().collect(),
        fake_missing_bindings: false,
        zero_initialize_workgroup_memory: false,
        ..msl::Options::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: Some((ShaderStage::Compute, "main".to_owned())),
        ..Default::default()
    };
    let written = msl::write_string(module, info, &options, &pipeline).map_err(|error| error.to_string())?;
    match written.1.entry_point_names.as_slice() {
        [Ok(_)] => Ok(written.0),
        other => Err(format!("{other:?}")),
    }
}

/// Cooperative matrices that Metal does not have. naga translates them too, to text that Metal does not know.
fn large_tiles(module: &Module, info: &ModuleInfo) -> Option<String> {
    let entries = module.entry_points.iter().enumerate();
    let entries = entries.map(|(i, entry)| (&entry.function, info.get_entry_point(i)));
    let functions = module.functions.iter().map(|(handle, function)| (function, &info[handle]));
    for (function, info) in entries.chain(functions) {
        for (expression, _) in function.expressions.iter() {
            let inner = info[expression].ty.inner_with(&module.types);
            if let TypeInner::CooperativeMatrix { columns, rows, .. } = inner
                && (*columns, *rows) != (CooperativeSize::Eight, CooperativeSize::Eight)
            {
                return Some(format!("cooperative matrices of {columns:?} by {rows:?}"));
            }
        }
    }
    None
}

/// What Apple's GPUs can do.
fn apple() -> Abilities {
    Abilities {
        subgroup: Some(32),
        half: true,
        packed_dot: false,
        cooperative: vec![[8, 8, 8]],
        binding_bytes: 4 << 30,
        buffer_bytes: 4 << 30,
        shared_bytes: 32 << 10,
        workgroup_threads: 1024,
        workgroups: 65_535,
    }
}

/// What a card of NVIDIA can do through Vulkan.
fn nvidia() -> Abilities {
    Abilities {
        packed_dot: true,
        cooperative: vec![[16, 16, 16], [16, 8, 16], [16, 8, 8]],
        binding_bytes: (2 << 30) - 1,
        shared_bytes: 48 << 10,
        ..apple()
    }
}

/// The least that there is.
fn plain() -> Abilities {
    Abilities { subgroup: None, half: false, packed_dot: false, cooperative: Vec::new(), ..apple() }
}

/// Kernels of every kind, as a device with these abilities runs them: for a model of a few formats.
fn kernels(abilities: &Abilities) -> Vec<Kernel> {
    let mut all = vec![receipt(), group_rows(), top_k(&TopK { experts: 64, used: 8, normalised: true })];
    all.push(Combine { hidden: 512, used: 8 }.kernel());
    for (grain, norm) in
        [Grain::Float, Grain::Per32, Grain::Per256].map(|grain| [(grain, true), (grain, false)]).concat()
    {
        let integers = grain != Grain::Float;
        let what =
            Quantise { columns: 512, grain, norm, listed: false, floats: !integers, integers, halves: true };
        all.push(quantise(&what));
    }
    for format in [BlockFormat::Q4_0, BlockFormat::Q6_K, BlockFormat::MXFP4, BlockFormat::F32] {
        let layout = PanelLayout::new(format, 64, 512).unwrap();
        let path = TilePath::best(&layout, abilities);
        for rows in [1, MOST_ROWS] {
            let plain = MatVec { matrices: vec![layout], norm: None, add: true, listed: false, rows };
            let listed = MatVec { norm: Some(1e-6), add: false, listed: true, ..plain.clone() };
            let projections = MatVec { matrices: vec![layout; 3], listed: false, ..listed.clone() };
            all.extend([plain, listed, projections].map(|what| what.kernel(abilities)));
            all.push(
                GateUp { gate: layout, up: layout, norm: Some(1e-6), used: None, rows }.kernel(abilities),
            );
        }
        let chosen = GateUp { gate: layout, up: layout, norm: Some(1e-6), used: Some(8), rows: 1 };
        all.extend([chosen.kernel(abilities), Down { down: layout, used: 8 }.kernel(abilities)]);
        for product in [Product::Store, Product::Add, Product::GatedSilu] {
            all.push(Tile { layout, path, rows: TileRows::All, product, tile_rows: 64 }.kernel());
        }
        all.extend([gate_up(layout, path, 8, 64), down(layout, path, 64)].map(|tile| tile.kernel()));
    }
    all.extend(attention(abilities));
    // Some serve all types of keys and values alike.
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup();
    all
}

#[test]
fn every_kernel_translates_for_metal_and_vulkan_as_each_of_their_gpus_would_have_it() {
    for abilities in [apple(), plain()] {
        kernels(&abilities).iter().for_each(|kernel| translates(kernel).everywhere());
    }
    for kernel in kernels(&nvidia()) {
        assert!(!translates(&kernel).vulkan.is_empty());
    }
}

#[test]
fn kernels_have_names_of_their_own() {
    for abilities in [apple(), nvidia(), plain()] {
        let mut names: Vec<String> = kernels(&abilities).into_iter().map(|kernel| kernel.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

#[test]
fn large_cooperative_matrices_are_refused_for_metal_and_small_ones_are_not() {
    let tile = |size: u32| Kernel {
        name: format!("tile {size}"),
        source: format!(
            "enable wgpu_cooperative_matrix;
            enable f16;
            @group(0) @binding(0) var<storage, read> a: array<f32>;
            @group(0) @binding(1) var<storage, read_write> c: array<f32>;
            @compute @workgroup_size(32) fn main() {{
                let x = coopLoad<coop_mat{size}x{size}<f32, A>>(&a[0], {size}u);
                let y = coopLoad<coop_mat{size}x{size}<f32, B>>(&a[0], {size}u);
                let z = coopLoad<coop_mat{size}x{size}<f32, C>>(&c[0], {size}u);
                coopStore(coopMultiplyAdd(x, y, z), &c[0], {size}u);
            }}"
        ),
        bindings: vec![Access::Read, Access::Write],
        immediates: 0,
    };
    assert!(translates(&tile(8)).metal.is_ok());
    let refused = translates(&tile(16)).metal.unwrap_err();
    assert!(refused.contains("Sixteen"), "{refused}");
}
