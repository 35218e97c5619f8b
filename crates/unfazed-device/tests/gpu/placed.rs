//! Models whose layers are on the processor and on a GPU, against the processor alone.

use std::time::Duration;

use crate::common::{Formats, Model, PAGES, Running, bits, config, scattered, tokens};
use crate::support::{difference, fresh, gpu};
use unfazed_device::gpu::{Budget, GpuConfig, GpuDevice, Opener};
use unfazed_device::{Batch, BatchRow, CpuDevice, Device, PageId, PlacedConfig, PlacedDevice};
use unfazed_formats::BlockFormat::{Q4_0, Q4_K, Q6_K};
use unfazed_formats::config::ExpertConfig;
use unfazed_kernels::Isa;
use unfazed_wire::{LayerPlace, Place, Placement};

const MANY: ExpertConfig = ExpertConfig { count: 9, used: 3, feed_forward: 512, normalised: true };
const ROWS: usize = 96;

/// Few formats: a software device takes seconds to compile a kernel. `all`: every row uses all experts.
pub(crate) fn models(all: bool) -> Vec<Model> {
    let used =
        |experts: ExpertConfig| if all { ExpertConfig { used: experts.count, ..experts } } else { experts };
    vec![
        Model::new(config(256, [4, 2, 64], 0, Some(used(MANY))), Formats(Q4_K, Q4_K, Q6_K, Q4_K)),
        Model::new(config(96, [4, 2, 32], 352, None), Formats(Q4_0, Q4_0, Q4_0, Q4_0)),
    ]
}

/// A model, placed; `None` without a GPU.
fn placed(model: &Model, placement: Placement) -> Option<Running<'_, PlacedDevice>> {
    gpu()?;
    // A software device compiles a kernel when it runs first.
    Some(placed_on(model, placement, Box::new(|| Ok(fresh().unwrap())), Duration::from_secs(600)))
}

/// A model, on what `open` opens.
pub(crate) fn placed_on(
    model: &Model,
    placement: Placement,
    open: Opener,
    patience: Duration,
) -> Running<'_, PlacedDevice> {
    let cpu = CpuDevice::new(model.cpu_config(Isa::best(), 2, ROWS, false)).unwrap();
    let kv = model.kv(PAGES);
    let layers = placement.layers.iter().enumerate();
    let layers = layers.filter(|(_, place)| place.attention.is_gpu()).map(|(layer, _)| layer).collect();
    let device = GpuDevice::new(GpuConfig {
        open,
        model: &model.config,
        kv,
        layers,
        max_rows: ROWS,
        max_logit_rows: ROWS,
        limit: u64::MAX,
        threads: 2,
        budget: Budget::default(),
        patience: Box::new(move |_| patience),
    });
    let config = PlacedConfig { cpu, gpus: vec![device.unwrap()], placement, kv };
    Running::new(model, PlacedDevice::new(config).unwrap())
}

pub(crate) fn whole(layers: usize) -> Placement {
    let place = Place::Gpu(0);
    Placement { embedding: Place::Cpu, layers: vec![LayerPlace::whole(place); layers], output: place }
}

fn placements(layers: usize) -> Vec<Placement> {
    let whole = whole(layers);
    let mut last = whole.clone();
    last.layers[0] = LayerPlace::whole(Place::Cpu);
    let mut cpu_moe = whole.clone();
    cpu_moe.layers.iter_mut().for_each(|layer| layer.feed_forward = Place::Cpu);
    let mut without_output = whole.clone();
    without_output.output = Place::Cpu;
    vec![whole, last, cpu_moe, without_output, Placement::cpu(layers)]
}

/// The logits of all positions of a prompt in two chunks and of an answer after it.
fn run<D: Device>(device: &mut Running<'_, D>, tokens: &[u32], prompt: usize) -> Vec<f32> {
    let pages = vec![scattered()];
    let row = |position: usize| BatchRow {
        token: tokens[position],
        sequence: 0,
        position,
        logits: true,
        generated: position >= prompt,
    };
    let chunks = [0..prompt * 2 / 3, prompt * 2 / 3..prompt];
    let steps = chunks.into_iter().chain((prompt..tokens.len()).map(|position| position..position + 1));
    steps
        .flat_map(|rows| device.step(&Batch { rows: rows.map(row).collect(), sequences: pages.clone() }))
        .collect()
}

#[test]
fn a_prompt_and_its_answer_are_as_near_the_truth_as_those_of_the_processor() {
    // A rounded activation may tip the choice of an expert, so these have none, or use all.
    for model in models(true) {
        let tokens = tokens(70, 3);
        let truth = model.plain(&tokens).into_iter().flatten().map(|x| x as f32).collect::<Vec<f32>>();
        let cpu = difference(&run(&mut model.device(Isa::best(), 2, ROWS, false), &tokens, 61), &truth);
        for placement in placements(model.config.layers) {
            let Some(mut device) = placed(&model, placement.clone()) else { return };
            let error = difference(&run(&mut device, &tokens, 61), &truth);
            println!(
                "{:?} {}: {error:.2e}, the processor alone {cpu:.2e}",
                model.config.family,
                placement.engine()
            );
            assert!(error < 1.2 * cpu + 1e-3, "{:?} in {placement:?}: {error}, {cpu}", model.config);
        }
    }
}

fn rows_have_the_same_bits_alone_and_beside_others(model: &Model) {
    let Some(mut device) = placed(model, whole(model.config.layers)) else { return };
    let sequences: Vec<Vec<PageId>> = (0..13).map(|s| (0..4).map(|i| PageId(s * 4 + i)).collect()).collect();
    let row = |s: usize, position: usize, generated: bool| BatchRow {
        token: (s * 31 + position * 7) as u32 % 83,
        sequence: s,
        position,
        logits: generated,
        generated,
    };
    let mut alone = Vec::new();
    for s in 0..13 {
        let rows = (0..17 + s % 3).map(|position| row(s, position, false)).collect();
        device.step(&Batch { rows, sequences: sequences.clone() });
        for position in 17 + s % 3..22 {
            let rows = vec![row(s, position, true)];
            alone.push((s, position, device.step(&Batch { rows, sequences: sequences.clone() })));
        }
    }
    for count in [2, 8, 13] {
        for position in 19..22 {
            let rows = (0..count).map(|s| row(s, position, true)).collect();
            let logits = device.step(&Batch { rows, sequences: sequences.clone() });
            let vocab = model.config.vocab;
            for (s, own) in logits.chunks_exact(vocab).enumerate() {
                let (.., expected) = alone.iter().find(|(t, p, _)| (*t, *p) == (s, position)).unwrap();
                assert!(bits(own) == bits(expected), "sequence {s} of {count} at {position}");
            }
        }
    }
}

#[test]
fn a_row_of_an_answer_has_the_same_bits_alone_and_beside_others() {
    rows_have_the_same_bits_alone_and_beside_others(&models(false)[1]);
}

#[test]
#[ignore = "a software device compiles its kernels for minutes"]
fn a_row_of_a_mixtures_answer_has_the_same_bits_alone_and_beside_others() {
    rows_have_the_same_bits_alone_and_beside_others(&models(false)[0]);
}

#[test]
fn generated_positions_computed_again_have_the_same_bits() {
    let model = &models(false)[0];
    let Some(mut device) = placed(model, whole(model.config.layers)) else { return };
    let all = tokens(60, 9);
    let pages = vec![scattered()];
    let row = |position: usize| BatchRow {
        token: all[position],
        sequence: 0,
        position,
        logits: position + 1 >= 40,
        generated: position >= 40,
    };
    device.step(&Batch { rows: (0..40).map(row).collect(), sequences: pages.clone() });
    let mut expected = Vec::new();
    for position in 40..60 {
        expected.extend(device.step(&Batch { rows: vec![row(position)], sequences: pages.clone() }));
    }
    // All at once, in other chunks, with a part of the prompt before them.
    let mut again = device.step(&Batch { rows: (0..33).map(row).collect(), sequences: pages.clone() });
    again.extend(device.step(&Batch { rows: (33..51).map(row).collect(), sequences: pages.clone() }));
    again.extend(device.step(&Batch { rows: (51..60).map(row).collect(), sequences: pages.clone() }));
    let vocab = model.config.vocab;
    assert!(bits(&again[vocab..]) == bits(&expected));
}
