//! Experts of many rows.

use unfazed_device::gpu::Gpu;
use unfazed_device::gpu::kernels::grouped::{Combine, down, gate_up};
use unfazed_device::gpu::kernels::tile::{Tile, TileScalars};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_formats::BlockFormat;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::Grain;
use unfazed_kernels::vector::{add_scaled, silu_mul};

use crate::prefill::{activations, close, paths, rows, tolerance};
use crate::support::{bytes, floats, gpu};
use crate::weights::{Bytes, Packed, Random, Scales, file_rows, product};

const EXPERTS: usize = 4;
const USED: usize = 2;
const HIDDEN: usize = 128;
const FEED_FORWARD: usize = 96;

/// Experts of each row: the third has none, the first has all, more than a tile.
fn ids(rows: usize) -> Vec<u32> {
    (0..rows).flat_map(|row| [0, if row % 5 == 0 { 1 } else { 3 }]).collect()
}

/// Lists with room for so many, and counts.
fn lists(ids: &[u32], stride: usize) -> [Vec<u8>; 2] {
    let (mut lists, mut counts) = (vec![u32::MAX; EXPERTS * stride], vec![0u32; EXPERTS]);
    for (entry, id) in (0..).zip(ids) {
        let count = &mut counts[*id as usize];
        lists[*id as usize * stride + *count as usize] = entry;
        *count += 1;
    }
    [bytes(&lists), bytes(&counts)]
}

fn experts(format: BlockFormat, rows: usize, columns: usize, seed: u64) -> Vec<Packed> {
    let mut random = Random(seed);
    (0..EXPERTS)
        .map(|_| {
            let file = file_rows(format, rows, columns, Scales::Ordinary, Bytes::Random, &mut random);
            Packed::new(format, rows, columns, &file)
        })
        .collect()
}

/// Runs a product of some of the experts, whose first is `first`, over what is in `out`.
fn run(
    gpu: &Gpu,
    tile: &Tile,
    stacks: &[&[Packed]],
    first: usize,
    x: &[Vec<u8>],
    ids: &[u32],
    out: &[f32],
) -> Vec<f32> {
    let rows = ids.len() / USED;
    let mut buffers: Vec<Vec<u8>> =
        stacks.iter().map(|stack| stack.iter().flat_map(|w| w.bytes.to_vec()).collect()).collect();
    buffers.extend(x.iter().cloned());
    buffers.extend(lists(ids, rows + 1));
    buffers.push(bytes(out));
    let scalars = TileScalars { rows: 0, stride: rows as u32 + 1, first_expert: first as u32 };
    let slices: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
    let grid = tile.grid(rows as u32, stacks[0].len() as u32);
    let trial = Trial { buffers: &slices, immediates: &scalars.bytes(), grid };
    floats(once(gpu, &tile.kernel(), &trial).unwrap().last().unwrap())
}

/// The CPU's products of each entry, whose activations are row `entry / share` of `x`.
fn expected(stack: &[Packed], x: &[Vec<f32>], ids: &[u32], share: usize) -> Vec<f32> {
    let grain = Grain::of(stack[0].layout.format());
    let one = |(entry, id): (usize, &u32)| {
        product(Isa::best(), &stack[*id as usize], grain, &x[entry / share..=entry / share], 1)
    };
    ids.iter().enumerate().flat_map(one).collect()
}

#[test]
fn experts_of_many_rows_agree_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for format in [BlockFormat::Q8_0, BlockFormat::F16] {
        let (gate, up) = (experts(format, FEED_FORWARD, HIDDEN, 1), experts(format, FEED_FORWARD, HIDDEN, 2));
        let outer = experts(format, HIDDEN, FEED_FORWARD, 3);
        for (count, path) in paths(gpu, &gate[0].layout).into_iter().flat_map(|path| [(1, path), (67, path)])
        {
            let (x, ids) = (rows(count, HIDDEN, 4), ids(count));
            let mut inner = expected(&gate, &x, &ids, USED);
            silu_mul(Isa::best(), &mut inner, &expected(&up, &x, &ids, USED));
            let what = format!("{format:?} {path:?} {count}");

            let tile = gate_up(gate[0].layout, path, USED as u32, 64);
            let packed = activations(gpu, &tile.layout, path, &x);
            let none = vec![f32::NAN; ids.len() * FEED_FORWARD];
            let got = run(gpu, &tile, &[&gate, &up], 0, &packed, &ids, &none);
            close(&got, &inner, 2.0 * tolerance(&tile), &what);

            let inner: Vec<Vec<f32>> = got.chunks(FEED_FORWARD).map(<[f32]>::to_vec).collect();
            let tile = down(outer[0].layout, path, 64);
            let packed = activations(gpu, &tile.layout, path, &inner);
            let none = vec![f32::NAN; ids.len() * HIDDEN];
            let got = run(gpu, &tile, &[&outer], 0, &packed, &ids, &none);
            close(&got, &expected(&outer, &inner, &ids, 1), tolerance(&tile), &what);
        }
    }
}

#[test]
fn a_stack_in_parts_gives_the_bits_of_the_whole() {
    let Some(gpu) = gpu() else { return };
    let stack = experts(BlockFormat::Q8_0, HIDDEN, FEED_FORWARD, 5);
    let (x, ids) = (rows(20, FEED_FORWARD, 6), ids(10));
    let path = paths(gpu, &stack[0].layout)[0];
    let tile = down(stack[0].layout, path, 64);
    let packed = activations(gpu, &tile.layout, path, &x);
    let none = vec![f32::NAN; ids.len() * HIDDEN];
    let whole = run(gpu, &tile, &[&stack], 0, &packed, &ids, &none);
    let first = run(gpu, &tile, &[&stack[..1]], 0, &packed, &ids, &none);
    assert!(first.iter().any(|value| value.is_nan()));
    let both = run(gpu, &tile, &[&stack[1..]], 1, &packed, &ids, &first);
    assert_eq!(bytes(&both), bytes(&whole));
}

#[test]
fn outputs_are_added_in_ascending_order_of_expert() {
    let Some(gpu) = gpu() else { return };
    let combine = Combine { hidden: 72, used: 3 };
    let (residual, outputs) = (rows(5, 72, 1).concat(), rows(15, 72, 2).concat());
    let weights = rows(5, 3, 3).concat();
    let mut sums = residual.clone();
    for (row, sum) in sums.chunks_mut(72).enumerate() {
        for entry in 3 * row..3 * row + 3 {
            add_scaled(Isa::best(), sum, weights[entry], &outputs[entry * 72..][..72]);
        }
    }
    let buffers: [&[u8]; 3] = [&bytes(&residual), &bytes(&outputs), &bytes(&weights)];
    let trial = Trial { buffers: &buffers, immediates: &[], grid: combine.grid(5) };
    let got = floats(&once(gpu, &combine.kernel(), &trial).unwrap()[0]);
    close(&got, &sums, 1e-6, "sums");
}
