//! The CPU device on small models: right within tolerance, and the same bits however the work is divided.

mod common;

use std::sync::Arc;

use common::{Formats, Model, PAGES, bits, config, rows, scattered, tokens};
use unfazed_device::{Batch, BatchRow, CpuConfig, CpuDevice, Device, DeviceError, PageId, arena_bytes};
use unfazed_formats::BlockFormat::{BF16, F16, F32, Q4_0, Q4_K, Q5_0, Q5_1, Q6_K, Q8_0};
use unfazed_formats::config::ExpertConfig;
use unfazed_formats::{BlockFormat, Extent, FileId, KvType, KvTypes, TensorInfo};
use unfazed_kernels::Isa;
use unfazed_kernels::attention::KvLayout;
use unfazed_kernels::panel::PanelLayout;
use unfazed_plan::needs::{packed_weights, page, scratch};
use unfazed_plan::{PAGE_TOKENS, Tokens};
use unfazed_testkit::shape::Preset;

const EXPERTS: ExpertConfig = ExpertConfig { count: 9, used: 3, feed_forward: 512, normalised: true };
const NARROW: ExpertConfig = ExpertConfig { count: 5, used: 2, feed_forward: 96, normalised: false };

fn models() -> Vec<Model> {
    vec![
        Model::new(config(256, [4, 2, 64], 0, Some(EXPERTS)), Formats(Q4_K, Q4_0, Q6_K, Q8_0)),
        Model::new(config(96, [4, 2, 24], 0, Some(NARROW)), Formats(Q8_0, Q5_0, Q5_1, F16)),
        Model::new(config(256, [3, 3, 32], 512, None), Formats(F32, Q4_K, Q4_0, BF16)),
        Model::new(config(64, [2, 1, 32], 352, None), Formats(Q4_0, F16, Q8_0, Q4_0)),
    ]
}

fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available()).collect()
}

/// Root mean square of the difference, over that of the truth.
fn error(got: &[f32], truth: &[Vec<f64>]) -> f64 {
    let truth: Vec<f64> = truth.iter().flatten().copied().collect();
    assert_eq!(got.len(), truth.len());
    let difference: f64 = got.iter().zip(&truth).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (difference / truth.iter().map(|b| b * b).sum::<f64>()).sqrt()
}

#[test]
fn float_activations_agree_with_plain_f64() {
    for model in models() {
        let tokens = tokens(50, 0);
        let truth = model.plain(&tokens);
        for isa in isas() {
            let got = model.device(isa, 2, 50, true).sequence(&tokens, 50, &scattered());
            let error = error(&got, &truth);
            assert!(error < 1e-4, "{:?} {error}", model.config);
        }
    }
}

#[test]
fn rounded_activations_stay_near_plain_f64() {
    // A rounded activation may tip the choice of an expert, so these have none, or use all.
    let all = ExpertConfig { used: 5, ..NARROW };
    for model in [
        Model::new(config(96, [4, 2, 24], 0, Some(all)), Formats(Q8_0, Q5_0, Q5_1, F16)),
        Model::new(config(256, [4, 2, 64], 512, None), Formats(Q4_K, Q4_0, Q6_K, Q8_0)),
    ] {
        let tokens = tokens(70, 0);
        let got = model.device(Isa::best(), 2, 70, false).sequence(&tokens, 70, &scattered());
        let error = error(&got, &model.plain(&tokens));
        assert!(error < 0.05, "{:?} {error}", model.config);
    }
}

#[test]
fn bits_do_not_depend_on_instruction_set_threads_or_chunk() {
    for model in models() {
        let tokens = tokens(75, 0);
        let expected = model.device(Isa::Reference, 1, 75, false).sequence(&tokens, 75, &scattered());
        assert!(expected.iter().all(|x| x.is_finite()));
        for isa in isas() {
            // The reference is slow.
            let divisions: &[(usize, usize)] = match isa {
                Isa::Reference => &[(3, 5)],
                _ => &[(1, 7), (2, 1), (2, 64), (3, 75), (3, 5)],
            };
            for (threads, chunk) in divisions {
                let mut device = model.device(isa, *threads, *chunk, false);
                let order: Vec<PageId> = scattered().into_iter().rev().collect();
                let got = device.sequence(&tokens, *chunk, &order);
                assert!(bits(&got) == bits(&expected), "{} {threads} {chunk}", isa.name());
            }
        }
    }
}

/// Beyond the first span of positions, which decodes share out among threads.
#[test]
fn a_long_chunk_has_the_bits_of_short_ones_and_of_decodes_for_each_kv_type() {
    let mut model = Model::new(config(64, [2, 1, 32], 96, None), Formats(Q4_0, F16, Q8_0, Q4_0));
    let tokens = tokens(1100, 3);
    for (keys, values) in [
        (KvType::F16, KvType::F16),
        (KvType::BF16, KvType::BF16),
        (KvType::Q8_0, KvType::Q8_0),
        (KvType::Q4_0, KvType::F16),
    ] {
        model.types = KvTypes { keys, values };
        let expected = model.device(Isa::best(), 1, 64, false).sequence(&tokens, 64, &scattered());
        for (threads, chunk) in [(2, 512), (3, 1)] {
            let got = model.device(Isa::best(), threads, chunk, false).sequence(&tokens, chunk, &scattered());
            assert!(bits(&got) == bits(&expected), "{keys} {values} {threads} {chunk}");
        }
    }
}

#[test]
fn heads_that_are_not_whole_blocks_are_refused() {
    let mut model = Model::new(config(64, [4, 2, 24], 96, None), Formats(Q4_0, F16, Q8_0, Q4_0));
    model.types = KvTypes::both(KvType::Q8_0);
    let device = CpuDevice::new(model.cpu_config(Isa::best(), 1, 1, false));
    assert!(matches!(device, Err(DeviceError::Setup(_))));
}

/// Several sequences, prompts beside decodes, against each sequence alone.
#[test]
fn a_sequence_has_the_same_bits_alone_and_beside_others() {
    for model in models() {
        let lengths = [40, 33, 1, 17];
        let alone: Vec<Vec<f32>> = lengths
            .iter()
            .enumerate()
            .map(|(i, n)| {
                let mut device = model.device(Isa::best(), 1, 64, false);
                device.sequence(&tokens(*n, i as u32), 64, &scattered())
            })
            .collect();
        for threads in [1, 2, 3] {
            let mut device = model.device(Isa::best(), threads, 24, false);
            let page = |i: usize| PageId(((i * 29 + 5) % PAGES) as u32);
            let sequences: Vec<Vec<PageId>> =
                (0..4).map(|s| (0..4).map(|i| page(s * 4 + i)).collect()).collect();
            // Each turn takes a different number of rows from each sequence.
            let (mut done, mut got, mut turn) = ([0; 4], vec![Vec::new(); 4], 0);
            while done != lengths {
                let mut batch = Batch { rows: Vec::new(), sequences: sequences.clone() };
                for s in [2, 0, 3, 1] {
                    let n = [1, 9, 3, 11][(turn + s) % 4].min(lengths[s] - done[s]);
                    let tokens = &tokens(lengths[s], s as u32)[done[s]..done[s] + n];
                    batch.rows.extend(rows(s, done[s], tokens, true));
                    done[s] += n;
                }
                turn += 1;
                let logits = device.step(&batch);
                for (row, logits) in batch.rows.iter().zip(logits.chunks(model.config.vocab)) {
                    got[row.sequence].extend_from_slice(logits);
                }
            }
            for (got, alone) in got.iter().zip(&alone) {
                assert!(bits(got) == bits(alone), "{threads} threads");
            }
        }
    }
}

#[test]
fn decodes_of_many_sequences_have_the_bits_of_one() {
    let model = &models()[0];
    let prompts: Vec<Vec<u32>> = (0..16).map(|s| tokens(20 + s, s as u32)).collect();
    let sequences: Vec<Vec<PageId>> = (0..16).map(|s| (0..4).map(|i| PageId(s * 4 + i)).collect()).collect();
    let mut device = model.device(Isa::best(), 2, 64, false);
    let mut expected = Vec::new();
    for (s, prompt) in prompts.iter().enumerate() {
        expected.push(device.sequence(prompt, 64, &sequences[s]));
    }
    for step in 15..20 {
        let row = |s: usize| BatchRow {
            token: prompts[s][step],
            sequence: s,
            position: step,
            logits: s.is_multiple_of(3),
            generated: true,
        };
        let batch = Batch { rows: (0..16).map(row).collect(), sequences: sequences.clone() };
        let logits = device.step(&batch);
        let vocab = model.config.vocab;
        for (i, s) in (0..16).step_by(3).enumerate() {
            let expected = &expected[s][step * vocab..(step + 1) * vocab];
            assert!(bits(&logits[i * vocab..(i + 1) * vocab]) == bits(expected), "sequence {s} at {step}");
        }
    }
}

#[test]
fn batches_that_the_device_was_not_laid_out_for_are_refused() {
    let model = &models()[3];
    let mut device = model.device(Isa::best(), 1, 20, false).device;
    let pages = |pages: &[u32]| pages.iter().map(|page| PageId(*page)).collect::<Vec<_>>();
    let refused = |device: &mut CpuDevice, rows: Vec<BatchRow>, sequences: &[Vec<PageId>], why: &str| {
        match device.begin(&Batch { rows, sequences: sequences.to_vec() }) {
            Err(DeviceError::Batch(text)) => assert!(text.contains(why), "{text}"),
            other => panic!("{why}: {other:?}"),
        }
        assert!(device.finish().unwrap().logits.is_empty());
    };
    let one = [pages(&[3, 4])];
    refused(&mut device, rows(0, 0, &tokens(21, 0), true), &one, "21 rows, at most 20");
    refused(&mut device, rows(0, 0, &[83], true), &one, "token 83");
    refused(&mut device, rows(1, 0, &[1], true), &one, "sequence 1 of 1");
    refused(&mut device, rows(0, 32, &[1], true), &one, "has 2 pages, 3 are needed");
    refused(&mut device, rows(0, usize::MAX, &[1], true), &one, "position");
    refused(&mut device, rows(0, 0, &[1], true), &[pages(&[PAGES as u32])], "page 80 of 80");
    let gap = [rows(0, 0, &[1], true), rows(0, 2, &[1], true)].concat();
    refused(&mut device, gap, &one, "from position 0 to 2");
    let apart = [rows(0, 0, &[1], true), rows(1, 0, &[1], true), rows(0, 1, &[1], true)].concat();
    refused(&mut device, apart, &[pages(&[1]), pages(&[2])], "written twice");
    let both = [rows(0, 0, &[1], true), rows(1, 20, &[1], true)].concat();
    refused(&mut device, both, &[pages(&[1]), pages(&[1, 2])], "written and shared");
    refused(&mut device, rows(0, 20, &[1], true), &[pages(&[6, 6])], "written and shared");
    device.begin(&Batch { rows: rows(0, 16, &[1], true), sequences: one.to_vec() }).unwrap();
}

#[test]
fn a_prefix_may_be_shared_by_sequences_that_go_on_apart() {
    let model = &models()[0];
    let prompt = tokens(32, 1);
    let mut device = model.device(Isa::best(), 2, 64, false);
    let pages = |last: u32| vec![PageId(5), PageId(2), PageId(last)];
    device.sequence(&prompt, 64, &pages(9));
    let batch = Batch {
        rows: [rows(0, 32, &[7], true), rows(1, 32, &[8], true)].concat(),
        sequences: vec![pages(9), pages(11)],
    };
    let both = device.step(&batch);
    for (i, token) in [7, 8].into_iter().enumerate() {
        let alone = model.device(Isa::best(), 1, 64, false).sequence(
            &[&prompt[..], &[token]].concat(),
            64,
            &scattered(),
        );
        let vocab = model.config.vocab;
        assert!(bits(&both[i * vocab..(i + 1) * vocab]) == bits(&alone[32 * vocab..]));
    }
}

#[test]
fn settings_that_cannot_be_laid_out_are_refused() {
    let model = &models()[0];
    let try_with = |change: &dyn Fn(&mut CpuConfig<'_>)| {
        let mut config = CpuConfig {
            isa: Isa::best(),
            threads: 1.into(),
            model: &model.config,
            kv: model.kv(4),
            max_rows: 4,
            max_logit_rows: 4,
            float_activations: false,
            kv_memory: None,
            experts: None,
            trace: None,
            pulse: Arc::default(),
            loader: model.loader(),
        };
        change(&mut config);
        CpuDevice::new(config).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(try_with(&|_| {}), Ok(()));
    assert!(try_with(&|c| c.kv.page_tokens = 20).unwrap_err().contains("page_tokens: 20"));
    assert!(try_with(&|c| c.kv.layers = 3).unwrap_err().contains("not the model's shape"));
    assert!(try_with(&|c| c.kv.pages = usize::MAX / 4).unwrap_err().contains("KV pages"));
    assert!(try_with(&|c| c.max_rows = usize::MAX / 2).unwrap_err().contains("cannot allocate"));
}

/// A NaN in a row's weights must reach that row's logits and nobody else's.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    let model = &models()[0];
    let mut device = model.device(Isa::best(), 2, 8, false);
    let batch = Batch {
        rows: [rows(0, 0, &[5, 6], true), rows(1, 0, &[7], true)].concat(),
        sequences: vec![vec![PageId(0)], vec![PageId(1)]],
    };
    let good = device.step(&batch);
    let poisoned = device.step_poisoned(&batch, 1);
    let vocab = model.config.vocab;
    assert!(bits(&poisoned[..vocab]) == bits(&good[..vocab]));
    assert!(poisoned[vocab..2 * vocab].iter().all(|x| x.is_nan()));
    assert!(bits(&poisoned[2 * vocab..]) == bits(&good[2 * vocab..]));
}

#[test]
fn the_plan_knows_how_large_a_page_is() {
    for head_dim in [2, 8, 24, 64, 80, 100, 128] {
        let config = config(64, [4, 2, head_dim], 64, None);
        for (keys, values) in
            KvType::ALL.into_iter().flat_map(|keys| KvType::ALL.map(|values| (keys, values)))
        {
            let types = KvTypes { keys, values };
            let layout = KvLayout::new(config.layers, config.kv_heads, head_dim, PAGE_TOKENS, types);
            assert_eq!(layout.is_some(), keys.divides(head_dim) && values.divides(head_dim));
            let Some(layout) = layout else { continue };
            assert_eq!(page(&config, types).0, layout.page_bytes() as u64, "heads of {head_dim}, {types:?}");
        }
    }
}

#[test]
fn the_plan_holds_what_packed_weights_take() {
    for format in BlockFormat::all() {
        for (rows, blocks) in [(1, 1), (15, 2), (16, 3), (17, 64), (100, 1), (48, 64)] {
            let columns = blocks * format.block_weights();
            let layout = PanelLayout::new(format, rows, columns).unwrap();
            let extent = Extent { file: FileId(0), offset: 0, len: 0 };
            let shape = vec![3, rows as u64, columns as u64];
            let tensor = TensorInfo { name: "experts".into(), shape, format, extent };
            let planned = packed_weights([&tensor]).0;
            let packed = (3 * layout.bytes() as u64).next_multiple_of(64);
            assert!(packed <= planned, "{format:?} {rows} x {columns}: {packed} bytes, {planned} planned");
            // For the shapes of real models the bound is close.
            assert!(rows < 48 || blocks < 64 || planned <= packed + packed / 8, "{format:?} {rows}");
        }
    }
}

#[test]
fn the_plan_holds_what_the_arena_takes() {
    let shapes = [Preset::Olmoe7b, Preset::Qwen3A3b].map(|preset| preset.config(49152));
    for config in models().into_iter().map(|model| model.config).chain(shapes) {
        for (rows, logit_rows) in [(1, 1), (16, 16), (512, 64), (4096, 64)] {
            let planned = scratch(&config, Tokens(rows), rows.min(16)).0;
            // What a thread needs for itself does not grow with the step; the plan's reserve has room for it.
            let threads = arena_bytes(&config, 0, 0, 2);
            assert!(threads < 2 << 20);
            let arena = arena_bytes(&config, rows, logit_rows, 2) - threads;
            assert!(arena <= planned, "{config:?}: {arena} bytes for {rows} rows, {planned} planned");
        }
        assert_eq!(arena_bytes(&config, usize::MAX, 64, 2), u64::MAX);
    }
}
