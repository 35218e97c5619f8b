//! Choice of experts, and their lists.

use unfazed_device::gpu::kernels::routing::{GroupScalars, TopK, group_rows, top_k};
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_kernels::Isa;
use unfazed_kernels::vector::{Choice, choose_experts};

use crate::support::{bytes, floats, gpu, words};
use crate::translate::translates;
use crate::weights::Random;

/// Ids and weights of rows of logits.
fn choose(what: &TopK, logits: &[f32]) -> Option<(Vec<u32>, Vec<f32>)> {
    let gpu = gpu()?;
    let rows = logits.len() / what.experts;
    let places = vec![0xee; rows * what.used * 4];
    let buffers: [&[u8]; 3] = [&bytes(logits), &places, &places];
    let trial = Trial { buffers: &buffers, immediates: &[], grid: [rows as u32, 1, 1] };
    let got = once(gpu, &top_k(what), &trial).unwrap();
    Some((words(&got[1]), floats(&got[2])))
}

fn check(what: &TopK, logits: &[f32]) {
    let Some((ids, weights)) = choose(what, logits) else { return };
    for (row, logits) in logits.chunks(what.experts).enumerate() {
        let mut expected = vec![Choice::default(); what.used];
        choose_experts(Isa::best(), &mut logits.to_vec(), what.normalised, &mut expected);
        for (slot, expected) in expected.iter().enumerate() {
            let at = row * what.used + slot;
            assert_eq!(ids[at], expected.expert, "{what:?} row {row} slot {slot}");
            let off = (weights[at] - expected.weight).abs();
            assert!(off <= expected.weight * 2e-5, "{what:?}: {} not {}", weights[at], expected.weight);
        }
    }
}

#[test]
fn the_chosen_experts_and_their_weights_are_the_cpus() {
    let shapes =
        [(128, 8, true), (64, 6, false), (512, 10, true), (60, 4, true), (1, 1, true), (8, 8, false)];
    for (experts, used, normalised) in shapes {
        let mut random = Random(experts as u64);
        let logits: Vec<f32> = (0..9 * experts).map(|_| random.float() * 8.0).collect();
        check(&TopK { experts, used, normalised }, &logits);
    }
}

#[test]
fn of_equal_logits_the_lower_index_is_taken() {
    let mut random = Random(2);
    let what = TopK { experts: 96, used: 8, normalised: true };
    // Few values, zeros of both signs among them.
    let logits: Vec<f32> = (0..8 * what.experts).map(|_| [0.0, -0.0, 1.0, -1.0][random.below(4)]).collect();
    check(&what, &logits);
    check(&what, &vec![0.25; what.experts]);
}

#[test]
fn a_spoilt_row_has_weights_that_are_no_numbers_and_experts_that_exist() {
    let what = TopK { experts: 40, used: 4, normalised: true };
    for (spoilt, at) in [(f32::NAN, 3), (-f32::NAN, 30), (f32::INFINITY, 39)] {
        let mut logits: Vec<f32> = (0..120).map(|i| (i % 7) as f32).collect();
        logits[40 + at] = spoilt;
        let Some((ids, weights)) = choose(&what, &logits) else { return };
        assert!(weights[4..8].iter().all(|weight| weight.is_nan()), "{weights:?}");
        assert!(weights[..4].iter().chain(&weights[8..]).all(|weight| weight.is_finite()));
        assert!(ids.chunks(4).all(|ids| ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| *id < 40)));
    }
}

#[test]
fn the_same_row_alone_and_among_others_has_the_same_bits() {
    let what = TopK { experts: 128, used: 8, normalised: true };
    let mut random = Random(3);
    let logits: Vec<f32> = (0..7 * 128).map(|_| random.float() * 4.0).collect();
    let Some(together) = choose(&what, &logits) else { return };
    for row in 0..7 {
        let alone = choose(&what, &logits[row * 128..][..128]).unwrap();
        assert_eq!(alone.0, together.0[row * 8..][..8]);
        assert_eq!(bytes(&alone.1), bytes(&together.1[row * 8..][..8]));
    }
}

#[test]
fn each_expert_has_its_entries_in_order() {
    let Some(gpu) = gpu() else { return };
    for (rows, used, experts) in [(1, 2, 5), (63, 4, 9), (300, 8, 40), (1, 1, 1)] {
        let mut random = Random(rows as u64);
        let ids: Vec<u32> = (0..rows)
            .flat_map(|_| {
                let mut row: Vec<u32> = (0..experts as u32).collect();
                while row.len() > used {
                    // The last expert has no rows, unless all are used.
                    row.remove(if row.len() == experts { experts - 1 } else { random.below(row.len()) });
                }
                row
            })
            .collect();
        let stride = rows + 3;
        let scalars = GroupScalars { entries: ids.len() as u32, stride: stride as u32 };
        let buffers: [&[u8]; 3] = [&bytes(&ids), &vec![0xee; experts * stride * 4], &vec![0xee; experts * 4]];
        let trial = Trial { buffers: &buffers, immediates: &scalars.bytes(), grid: [experts as u32, 1, 1] };
        let got = once(gpu, &group_rows(), &trial).unwrap();
        let (lists, counts) = (words(&got[1]), words(&got[2]));
        for expert in 0..experts {
            let expected: Vec<u32> =
                (0u32..).zip(&ids).filter(|e| *e.1 == expert as u32).map(|e| e.0).collect();
            assert_eq!(counts[expert] as usize, expected.len());
            let list = &lists[expert * stride..][..stride];
            assert_eq!(list[..expected.len()], expected);
            assert!(list[expected.len()..].iter().all(|place| *place == 0xeeee_eeee));
        }
    }
}

#[test]
fn both_kernels_translate_for_vulkan_and_metal() {
    translates(&top_k(&TopK { experts: 512, used: 10, normalised: true })).everywhere();
    translates(&group_rows()).everywhere();
}
