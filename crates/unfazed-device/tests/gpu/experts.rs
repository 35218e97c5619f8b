//! Feed-forward networks, against the CPU's products one after the other.

use unfazed_device::gpu::Abilities;
use unfazed_device::gpu::kernels::embed::Embed;
use unfazed_device::gpu::kernels::experts::{Down, GateUp};
use unfazed_device::gpu::kernels::matvec::{MOST_ROWS, MatVec};
use unfazed_device::gpu::kernels::shard::{Shard, immediates};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_formats::BlockFormat;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::panel::PanelLayout;
use unfazed_kernels::vector::{add_scaled, rms_norm, silu_mul};

use crate::support::{bytes_of, difference, floats, gpu};
use crate::translate::translates;
use crate::weights::{Activations, Bytes, Packed, Random, Scales, file_rows, product};

const TOLERANCE: f64 = 1e-3;
/// Experts of a layer, and those that a row uses.
const COUNT: usize = 5;
const USED: usize = 3;
/// Of four rows, ascending in each.
const IDS: [u32; 12] = [0, 2, 4, 1, 2, 3, 0, 1, 2, 0, 3, 4];
const ROWS: usize = 4;

/// A stack of experts.
struct Stack {
    experts: Vec<Packed>,
    bytes: Vec<u8>,
}

impl Stack {
    fn new(format: BlockFormat, rows: usize, columns: usize, count: usize, seed: u64) -> Stack {
        let mut random = Random(seed);
        let experts: Vec<Packed> = (0..count)
            .map(|_| {
                let file = file_rows(format, rows, columns, Scales::Ordinary, Bytes::Random, &mut random);
                Packed::new(format, rows, columns, &file)
            })
            .collect();
        let bytes = experts.iter().flat_map(|expert| expert.bytes.iter().copied()).collect();
        Stack { experts, bytes }
    }

    fn layout(&self) -> PanelLayout {
        self.experts[0].layout
    }

    fn part(&self, shard: Shard) -> &[u8] {
        let size = self.layout().bytes();
        &self.bytes[shard.first as usize * size..][..shard.count as usize * size]
    }

    fn times(&self, expert: u32, x: &[f32]) -> Vec<f32> {
        let w = &self.experts[expert as usize];
        product(Isa::best(), w, Grain::of(w.layout.format()), &[x.to_vec()], w.layout.panels())
    }
}

fn words(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn rows_of(rows: usize, columns: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    (0..rows).map(|_| Activations::Ordinary.row(columns, &mut random)).collect()
}

fn normed(x: &[f32], weight: &[f32]) -> Vec<f32> {
    let mut x = x.to_vec();
    rms_norm(Isa::best(), &mut x, weight, 1e-6);
    x
}

/// SiLU of gate times up, of one expert and one row.
fn inner(gate: &Stack, up: &Stack, expert: u32, x: &[f32]) -> Vec<f32> {
    let mut inner = gate.times(expert, x);
    silu_mul(Isa::best(), &mut inner, &up.times(expert, x));
    inner
}

#[test]
fn each_row_goes_through_gate_and_up_of_its_experts() {
    let Some(gpu) = gpu() else { return };
    let (width, columns) = (40, 512);
    // Formats of one grain, and of two.
    for (first, second) in [
        (BlockFormat::Q4_0, BlockFormat::Q4_0),
        (BlockFormat::Q4_K, BlockFormat::Q6_K),
        (BlockFormat::MXFP4, BlockFormat::Q2_K),
    ] {
        let gate = Stack::new(first, width, columns, COUNT, 1);
        let up = Stack::new(second, width, columns, COUNT, 2);
        let x = rows_of(ROWS, columns, 3);
        let weight = Activations::Ordinary.row(columns, &mut Random(4));
        let kernel =
            GateUp { gate: gate.layout(), up: up.layout(), norm: Some(1e-6), used: Some(USED), rows: 1 };
        let mut out = bytes_of(&vec![f32::NAN; ROWS * USED * width]);
        for shard in [Shard { first: 0, count: 2 }, Shard { first: 2, count: 3 }] {
            let buffers: [&[u8]; 6] = [
                &bytes_of(&x.concat()),
                &bytes_of(&weight),
                &words(&IDS),
                gate.part(shard),
                up.part(shard),
                &out,
            ];
            let immediates = immediates(ROWS, shard);
            let trial = Trial { buffers: &buffers, immediates: &immediates, grid: kernel.grid(ROWS) };
            out = once(gpu, &kernel.kernel(&gpu.abilities), &trial).unwrap().swap_remove(5);
        }
        let expected: Vec<f32> = IDS
            .iter()
            .enumerate()
            .flat_map(|(i, expert)| inner(&gate, &up, *expert, &normed(&x[i / USED], &weight)))
            .collect();
        let off = difference(&floats(&out), &expected);
        assert!(off < TOLERANCE, "{first:?} and {second:?} are off by {off:e}");
    }
}

#[test]
fn a_dense_network_has_the_bits_of_a_row_whatever_the_rows_beside_it() {
    let Some(gpu) = gpu() else { return };
    let (width, columns) = (24, 512);
    for format in [BlockFormat::Q8_0, BlockFormat::F16] {
        let gate = Stack::new(format, width, columns, 1, 5);
        let up = Stack::new(format, width, columns, 1, 6);
        let x = rows_of(6, columns, 7);
        let kernel = GateUp { gate: gate.layout(), up: up.layout(), norm: None, used: None, rows: 6 };
        let run = |kernel: &GateUp, x: &[Vec<f32>]| {
            let out = bytes_of(&vec![f32::NAN; x.len() * width]);
            let buffers: [&[u8]; 4] = [&bytes_of(&x.concat()), &gate.bytes, &up.bytes, &out];
            let immediates = immediates(x.len(), Shard::all(1));
            let trial = Trial { buffers: &buffers, immediates: &immediates, grid: kernel.grid(x.len()) };
            floats(&once(gpu, &kernel.kernel(&gpu.abilities), &trial).unwrap()[3])
        };
        let all = run(&kernel, &x);
        let expected: Vec<f32> = x.iter().flat_map(|x| inner(&gate, &up, 0, x)).collect();
        let off = difference(&all, &expected);
        assert!(off < TOLERANCE, "{format:?} is off by {off:e}");
        assert_eq!(run(&kernel, &x[5..]), all[5 * width..], "{format:?}");
        assert_eq!(run(&GateUp { rows: 1, ..kernel }, &x[5..]), all[5 * width..], "{format:?} for a row");
    }
}

/// The residual after the experts of a shard, or of several one after the other.
fn down(stack: &Stack, x: &[Vec<f32>], ids: &[u32], weights: &[f32], shards: &[Shard]) -> Vec<f32> {
    let gpu = gpu().unwrap();
    let kernel = Down { down: stack.layout(), used: USED };
    let rows = x.len() / USED;
    let mut residual = bytes_of(&vec![0.5; rows * stack.layout().rows()]);
    for shard in shards {
        let buffers: [&[u8]; 5] =
            [&bytes_of(&x.concat()), &words(ids), &bytes_of(weights), stack.part(*shard), &residual];
        let immediates = immediates(rows, *shard);
        let trial = Trial { buffers: &buffers, immediates: &immediates, grid: kernel.grid(rows) };
        residual = once(gpu, &kernel.kernel(&gpu.abilities), &trial).unwrap().swap_remove(4);
    }
    floats(&residual)
}

#[test]
fn outputs_of_experts_are_weighted_and_added_to_the_residual() {
    if gpu().is_none() {
        return;
    }
    let hidden = 40;
    // The last width is more than what is held at once.
    for (format, width) in [
        (BlockFormat::Q4_0, 96),
        (BlockFormat::Q6_K, 256),
        (BlockFormat::BF16, 96),
        (BlockFormat::Q8_0, 3072),
    ] {
        let stack = Stack::new(format, hidden, width, COUNT, 8);
        let x = rows_of(ROWS * USED, width, 9);
        let weights: Vec<f32> = rows_of(1, ROWS * USED, 10).concat().iter().map(|w| w.abs()).collect();
        let got = down(&stack, &x, &IDS, &weights, &[Shard::all(COUNT)]);
        let mut expected = vec![0.5; ROWS * hidden];
        for (i, (expert, weight)) in IDS.iter().zip(&weights).enumerate() {
            let row = &mut expected[i / USED * hidden..][..hidden];
            add_scaled(Isa::best(), row, *weight, &stack.times(*expert, &x[i]));
        }
        let off = difference(&got, &expected);
        assert!(off < TOLERANCE, "{format:?} {width} is off by {off:e}");

        let last = (ROWS - 1) * USED;
        let alone = down(&stack, &x[last..], &IDS[last..], &weights[last..], &[Shard::all(COUNT)]);
        assert_eq!(alone, got[(ROWS - 1) * hidden..], "{format:?} {width}");

        let shards = [Shard { first: 0, count: 2 }, Shard { first: 2, count: 3 }];
        let off = difference(&down(&stack, &x, &IDS, &weights, &shards), &expected);
        assert!(off < TOLERANCE, "{format:?} {width} in shards is off by {off:e}");
    }
}

#[test]
fn decode_kernels_translate_for_vulkan_and_metal_with_and_without_abilities() {
    let most = Abilities {
        subgroup: Some(32),
        half: true,
        packed_dot: true,
        cooperative: Vec::new(),
        binding_bytes: 1 << 30,
        buffer_bytes: 1 << 30,
        shared_bytes: 32 << 10,
        workgroup_threads: 1024,
        workgroups: 65_535,
    };
    let least =
        Abilities { subgroup: None, half: false, packed_dot: false, workgroup_threads: 256, ..most.clone() };
    for format in BlockFormat::all() {
        let layout = PanelLayout::new(format, 32, 512).unwrap();
        let matvec =
            MatVec { matrices: vec![layout; 2], norm: Some(1e-6), add: true, listed: true, rows: MOST_ROWS };
        let up = PanelLayout::new(BlockFormat::Q4_0, 32, 512).unwrap();
        let gate_up = GateUp { gate: layout, up, norm: Some(1e-6), used: Some(2), rows: 1 };
        let dense = GateUp { used: None, rows: MOST_ROWS, norm: None, ..gate_up };
        for abilities in [&most, &least] {
            let kernels = [
                matvec.kernel(abilities),
                gate_up.kernel(abilities),
                dense.kernel(abilities),
                Down { down: layout, used: 2 }.kernel(abilities),
                Embed { table: layout }.kernel(),
            ];
            for kernel in kernels {
                let translated = translates(&kernel);
                assert!(translated.metal.is_ok(), "{}: {:?}", kernel.name, translated.metal);
            }
        }
    }
}
