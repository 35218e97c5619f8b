//! Heads between projections and attention, against the CPU's norm, rotation and store.

use unfazed_device::gpu::kernels::heads::{Heads, HeadsPlace};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_formats::config::{RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{KvType, KvTypes};
use unfazed_kernels::Isa;
use unfazed_kernels::vector::{RopeFrequencies, rms_norm, rotate};

use crate::pages::{Rows, Shape, noise};
use crate::support::gpu;

/// Where rows are if they are query, key and value one after the other.
fn side_by_side(shape: &Shape) -> HeadsPlace {
    let [query, key] = [shape.heads, shape.kv_heads].map(|heads| (heads * shape.head_dim) as u32);
    let stride = query + 2 * key;
    HeadsPlace {
        query: 0,
        key: query,
        value: query + key,
        query_stride: stride,
        key_stride: stride,
        table: 0,
    }
}

/// Activations and pages after the kernel ran.
fn run(
    heads: &Heads,
    rows: &Rows,
    ropes: &[RopeFrequencies],
    place: HeadsPlace,
    [x, weights]: [&[f32]; 2],
    pages: &[u8],
) -> Option<(Vec<f32>, Vec<u8>)> {
    let gpu = gpu()?;
    let (data, counts) = rows.data(32, ropes);
    let trial = Trial {
        buffers: &[&data, bytemuck::cast_slice(x), pages, bytemuck::cast_slice(weights)],
        immediates: &place.bytes(),
        grid: heads.grid(counts.spans),
    };
    let mut got = once(gpu, &heads.kernel(), &trial).unwrap();
    let pages = got.remove(2);
    Some((bytemuck::pod_collect_to_vec(&got[1]), pages))
}

/// Keys, or values, of all rows.
fn part(x: &[f32], stride: usize, at: usize, len: usize) -> Vec<f32> {
    x.chunks(stride).flat_map(|row| row[at..at + len].to_vec()).collect()
}

fn assert_stored_as_on_the_cpu(shape: Shape, sequences: &[(usize, usize)], x: &[f32]) -> Option<()> {
    let rows = Rows::new(shape.page_tokens, sequences);
    let (place, layout) = (side_by_side(&shape), shape.layout());
    let (stride, kv) = (place.query_stride as usize, shape.kv_heads * shape.head_dim);
    assert_eq!(x.len(), rows.batch.rows.len() * stride);
    assert_eq!(layout.page_bytes(), shape.text().page_bytes());
    let mut pages = rows.used_pages(&layout);
    let heads = Heads { heads: shape.heads, kv: shape.text(), norm: None, rope: None };
    let (after, got) = run(&heads, &rows, &[], place, [x, &[0.0]], &pages)?;
    let [keys, values] = [place.key, place.value].map(|at| part(x, stride, at as usize, kv));
    rows.store(&layout, &mut pages, &keys, &values);
    let wrong = got.iter().zip(&pages).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "{shape:?} {sequences:?}: {:?}", wrong.map(|i| (got[i], pages[i])));
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(&after) == bits(x), "queries stay");
    Some(())
}

#[test]
fn every_type_is_stored_to_the_bit_and_nothing_beside_it_is_touched() {
    for (i, kind) in KvType::ALL.into_iter().enumerate() {
        let types = KvTypes { keys: kind, values: KvType::ALL[(i + 2) % 5] };
        let shape = Shape { heads: 2, kv_heads: 2, head_dim: 96, page_tokens: 32, types };
        // Odd slots, a page's end within a sequence, single rows, a row that fills a panel.
        let sequences = [(13, 24), (7, 1), (47, 1), (64, 2)];
        let x = noise(i as u32, 28 * 6 * 96, 3.0);
        let Some(()) = assert_stored_as_on_the_cpu(shape, &sequences, &x) else { return };
    }
}

#[test]
fn rounding_is_the_cpus_for_numbers_of_every_size_and_kind() {
    for kind in KvType::ALL {
        let types = KvTypes::both(kind);
        let shape = Shape { heads: 1, kv_heads: 1, head_dim: 32, page_tokens: 16, types };
        let mut x = noise(9, 16 * 3 * 32, 1.0);
        for (i, row) in x.chunks_mut(96).enumerate() {
            // Down to what f16 has no number for, and up to beyond its largest.
            let size = 2f32.powi(i as i32 * 3 - 26);
            row.iter_mut().for_each(|x| *x *= size);
        }
        let Some(()) = assert_stored_as_on_the_cpu(shape, &[(0, 16)], &x) else { return };
        // Quotients that are halves, or next to one, and zeros, infinities and numbers that are none.
        for (i, row) in x.chunks_mut(96).enumerate() {
            let peak = [127.0, -8.0, 1.0, -3.0][i % 4];
            for (j, x) in row.iter_mut().enumerate() {
                let half = peak / [127.0, 8.0][i / 4 % 2] * ((j % 32) as f32 / 2.0 - 7.5);
                *x = f32::from_bits(half.to_bits() + (j / 32) as u32 % 2);
            }
            row.iter_mut().step_by(32).for_each(|x| *x = peak);
        }
        x[14 * 96 + 40] = f32::NAN;
        x[13 * 96 + 40] = f32::INFINITY;
        x[15 * 96..].fill(-0.0);
        let Some(()) = assert_finite_parts_are_the_cpus(shape, &x) else { return };
    }
}

/// As above, where a NaN may be any.
fn assert_finite_parts_are_the_cpus(shape: Shape, x: &[f32]) -> Option<()> {
    if matches!(shape.types.keys, KvType::Q8_0 | KvType::Q4_0) {
        return assert_stored_as_on_the_cpu(shape, &[(0, 16)], x);
    }
    let x: Vec<f32> = x.iter().map(|x| if x.is_nan() { 1.5 } else { *x }).collect();
    assert_stored_as_on_the_cpu(shape, &[(0, 16)], &x)
}

fn near(got: &[f32], expected: &[f32]) {
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{i}: {a}, not {b}");
    }
}

#[test]
fn heads_are_normed_and_turned_as_on_the_cpu() {
    let types = KvTypes::both(KvType::F32);
    for (head_dim, dimensions, pairing, norm) in [
        (64, 64, RopePairing::Halves, Some(1e-6)),
        (96, 32, RopePairing::Neighbours, Some(1e-5)),
        (128, 128, RopePairing::Neighbours, None),
        (80, 20, RopePairing::Halves, None),
    ] {
        let shape = Shape { heads: 3, kv_heads: 1, head_dim, page_tokens: 16, types };
        let rows = Rows::new(16, &[(13, 9), (1000, 1)]);
        let count = rows.batch.rows.len();
        let rope = |base| {
            RopeFrequencies::new(&RopeConfig { base, dimensions, pairing, scaling: RopeScaling::None })
        };
        // Another layer's table comes before.
        let ropes = [rope(1e3), rope(1e6)];
        // Separate regions, with something between.
        let query_len = count * 3 * head_dim;
        let key = query_len + 5;
        let value = key + count * head_dim;
        let place = HeadsPlace {
            query: 0,
            key: key as u32,
            value: value as u32,
            query_stride: 3 * head_dim as u32,
            key_stride: head_dim as u32,
            table: dimensions as u32,
        };
        let x = noise(5, value + count * head_dim, 2.0);
        let weights = noise(6, 2 * head_dim, 1.0);
        let heads = Heads { heads: 3, kv: shape.text(), norm, rope: Some((pairing, dimensions)) };
        let mut pages = rows.used_pages(&shape.layout());
        let Some((after, got)) = run(&heads, &rows, &ropes, place, [&x, &weights], &pages) else { return };

        let mut expected = x.clone();
        let mut table = vec![0.0; dimensions];
        for (i, row) in rows.batch.rows.iter().enumerate() {
            ropes[1].table(row.position, &mut table);
            let q = &mut expected[i * 3 * head_dim..(i + 1) * 3 * head_dim];
            let weight = weights.split_at(head_dim);
            for head in q.chunks_mut(head_dim) {
                if let Some(epsilon) = norm {
                    rms_norm(Isa::Reference, head, weight.0, epsilon);
                }
            }
            rotate(Isa::Reference, pairing, &table, head_dim, q);
            let k = &mut expected[key + i * head_dim..][..head_dim];
            if let Some(epsilon) = norm {
                rms_norm(Isa::Reference, k, weight.1, epsilon);
            }
            rotate(Isa::Reference, pairing, &table, head_dim, k);
        }
        near(&after[..query_len], &expected[..query_len]);
        assert_eq!(after[query_len..], x[query_len..], "keys and values stay where they were");
        rows.store(&shape.layout(), &mut pages, &expected[key..value], &expected[value..]);
        // What was there before is no number.
        let numbers = |pages: &[u8]| -> Vec<f32> {
            let all: Vec<f32> = bytemuck::pod_collect_to_vec(pages);
            all.into_iter().map(|x| if x.is_finite() { x.clamp(-99.0, 99.0) } else { 0.0 }).collect()
        };
        near(&numbers(&got), &numbers(&pages));
    }
}

#[test]
fn a_row_alone_and_among_eight_is_turned_and_stored_to_the_same_bits() {
    let types = KvTypes { keys: KvType::F32, values: KvType::Q8_0 };
    let shape = Shape { heads: 2, kv_heads: 1, head_dim: 64, page_tokens: 16, types };
    let (place, dim) = (side_by_side(&shape), 64);
    let (pairing, stride) = (RopePairing::Halves, 4 * dim);
    let heads = Heads { heads: 2, kv: shape.text(), norm: Some(1e-6), rope: Some((pairing, dim)) };
    let rope = [RopeFrequencies::new(&RopeConfig {
        base: 1e4,
        dimensions: dim,
        pairing,
        scaling: RopeScaling::None,
    })];
    let (x, weights) = (noise(3, 8 * stride, 1.0), noise(4, 2 * dim, 1.0));
    let all = Rows::new(16, &[(3, 8)]);
    let mut pages = all.used_pages(&shape.layout());
    let Some((together, stored)) = run(&heads, &all, &rope, place, [&x, &weights], &pages) else { return };
    for row in 0..8 {
        let one = Rows::new(16, &[(3 + row, 1)]);
        let part = &x[row * stride..(row + 1) * stride];
        let (alone, after) = run(&heads, &one, &rope, place, [part, &weights], &pages).unwrap();
        assert_eq!(alone[..2 * dim], together[row * stride..row * stride + 2 * dim]);
        pages = after;
    }
    assert!(pages == stored, "one after the other they leave the pages that they leave together");
}
