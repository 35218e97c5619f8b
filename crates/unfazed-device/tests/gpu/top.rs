//! The largest logits of rows.

use unfazed_device::gpu::kernels::top::{TOP, TopPass, TopPlace, top};
use unfazed_device::gpu::trial::{Trial, once};

use crate::pages::noise;
use crate::support::gpu;

/// Values and ids of each row's largest.
fn found(rows: usize, logits: &[f32]) -> Option<Vec<Vec<(f32, u32)>>> {
    let gpu = gpu()?;
    let mut place = TopPlace { candidates: (logits.len() / rows) as u32 };
    let mut input: Vec<u8> = bytemuck::cast_slice(logits).to_vec();
    let mut pass = TopPass::First;
    loop {
        let out = vec![0xaa; place.out_words(rows) * 4];
        let trial =
            Trial { buffers: &[&input, &out], immediates: &place.bytes(), grid: place.grid(rows as u32) };
        input = once(gpu, &top(pass), &trial).unwrap().remove(1);
        let Some(next) = place.next() else { break };
        (place, pass) = (next, TopPass::Later);
    }
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(&input);
    let pairs = words.as_chunks::<2>().0.iter().map(|[value, id]| (f32::from_bits(*value), *id));
    Some(pairs.collect::<Vec<_>>().chunks(TOP).map(<[_]>::to_vec).collect())
}

fn expected(logits: &[f32]) -> Vec<(f32, u32)> {
    let mut all: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    all.truncate(TOP);
    all
}

#[test]
fn the_largest_of_each_row_come_in_order_and_of_equals_the_lower_id_comes_first() {
    for vocab in [65, 4096, 30_000] {
        let mut logits = noise(vocab as u32, 3 * vocab, 20.0);
        // The second row has a few numbers only, so many are equal; in the third all are.
        logits[vocab..2 * vocab].iter_mut().for_each(|x| *x = (*x / 4.0).round() + 0.5);
        logits[2 * vocab..].fill(-1.0);
        let Some(rows) = found(3, &logits) else { return };
        for (row, logits) in rows.iter().zip(logits.chunks(vocab)) {
            assert_eq!(row, &expected(logits), "of {vocab}");
        }
    }
}

#[test]
fn a_row_that_is_not_all_finite_begins_with_a_nan() {
    for bad in [f32::NAN, f32::from_bits(u32::MAX), f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits = noise(1, 2 * 5000, 9.0);
        logits[4999] = bad;
        let Some(rows) = found(2, &logits) else { return };
        assert!(rows[0][0].0.is_nan() && rows[0][0].1 == 4999, "{bad}: {:?}", rows[0][0]);
        assert_eq!(rows[1], expected(&logits[5000..]));
    }
}

#[test]
fn fewer_candidates_than_are_looked_for_are_all_found() {
    let Some(rows) = found(1, &[1.0, -3.0, 0.0, -0.0, 7.0]) else { return };
    assert_eq!(rows[0][..5], [(7.0, 4), (1.0, 0), (0.0, 2), (-0.0, 3), (-3.0, 1)]);
    assert!(rows[0][5..].iter().all(|(_, id)| *id == u32::MAX));
}
