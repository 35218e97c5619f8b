//! Layers on GPUs: what fits, what was asked for, what is told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{GIB, QWEN3_30B, Shape, machine, measured, sum};
use proptest::prelude::*;
use unfazed_formats::BlockFormat;
use unfazed_plan::machine::Gpu;
use unfazed_plan::predict::Bound;
use unfazed_plan::refusal::Suggestion;
use unfazed_plan::{
    Bytes, CpuMoe, GpuLayers, GpuPlan, GpuSettings, HostCopy, Machine, PAGE_TOKENS, Plan, Refusal, Settings,
    StreamExperts, Tokens, plan,
};
use unfazed_wire::Place;

const DENSE: Shape = Shape { layers: 16, context: 8192, experts: None, ..QWEN3_30B };

fn ask(shape: &Shape, machine: &Machine, settings: &Settings) -> Result<Plan, Refusal> {
    plan(&shape.config(), &shape.weights(), machine, settings)
}

fn gpu(free: u64) -> Gpu {
    let bytes = Some(Bytes(free));
    Gpu { name: "A GPU".to_owned(), total: bytes, free: bytes, ..Gpu::default() }
}

fn with(machine: Machine, gpus: &[Gpu]) -> Machine {
    Machine { gpus: gpus.to_vec(), ..machine }
}

fn settings(gpu: GpuSettings) -> Settings {
    Settings { gpu, ..Settings::default() }
}

fn layers(layers: usize) -> Settings {
    settings(GpuSettings { layers: GpuLayers::Count(layers), ..GpuSettings::default() })
}

fn rungs(plan: &GpuPlan) -> Vec<&str> {
    plan.rungs.iter().map(|rung| rung.name.as_str()).collect()
}

#[test]
fn a_model_that_fits_is_on_the_gpu_as_a_whole_and_the_ladder_ends_on_the_processor() {
    let plan = ask(&QWEN3_30B, &with(machine(64 * GIB), &[gpu(80 * GIB)]), &Settings::default()).unwrap();
    let gpu = plan.gpu.as_ref().unwrap();
    assert_eq!(rungs(gpu), ["gpu:48", "gpu:24", "cpu"]);
    let placement = gpu.placement().unwrap();
    assert_eq!(
        (placement.engine(), placement.output, placement.embedding),
        ("gpu", Place::Gpu(0), Place::Cpu)
    );
    assert_eq!((gpu.budget_ms, gpu.host_copy, plan.notes.len()), (50, true, 0), "{:?}", plan.notes);
    let (half, cpu) = (&gpu.rungs[1].placement, &gpu.rungs[2].placement);
    assert!(half.layers[..24].iter().all(|layer| !layer.uses_gpu()) && cpu.is_cpu_alone());
}

#[test]
fn layers_are_counted_from_the_last_one_and_one_more_is_the_output() {
    let machine = with(machine(64 * GIB), &[gpu(80 * GIB)]);
    let placed = |count| ask(&DENSE, &machine, &layers(count)).unwrap().gpu.unwrap();
    let ten = placed(10);
    let placement = ten.placement().unwrap();
    let on_gpu: Vec<bool> = placement.layers.iter().map(|layer| layer.is_on_gpu()).collect();
    assert_eq!(on_gpu, [[false; 6].as_slice(), &[true; 10]].concat());
    assert!(!placement.output.is_gpu() && placement.engine() == "gpu+cpu");
    assert!(!placed(16).placement().unwrap().output.is_gpu());
    assert!(placed(17).placement().unwrap().output.is_gpu());
    assert_eq!(rungs(&placed(1)), ["gpu:1", "cpu"]);
    assert_eq!(ask(&DENSE, &machine, &layers(0)).unwrap().gpu, None);
}

#[test]
fn more_layers_than_there_are_or_fit_are_lowered_with_one_line_or_refused_with_the_number_that_passes() {
    let large = with(machine(64 * GIB), &[gpu(80 * GIB)]);
    let plan = ask(&DENSE, &large, &layers(99)).unwrap();
    assert_eq!(plan.notes, ["--gpu-layers lowered from 99 to 17: the model has 16 layers and its output"]);

    let small = with(machine(64 * GIB), &[gpu(GIB)]);
    let plan = ask(&DENSE, &small, &layers(17)).unwrap();
    let on_gpu = plan.gpu.as_ref().unwrap().placement().unwrap().gpu_layers();
    assert!((1..16).contains(&on_gpu));
    assert_eq!(plan.notes.len(), 1, "{:?}", plan.notes);
    let begins = format!("--gpu-layers lowered from 17 to {on_gpu}: 608 MiB of A GPU may be used");
    assert!(plan.notes[0].starts_with(&begins), "{}", plan.notes[0]);

    let strict = Settings { strict: true, ..layers(17) };
    let refusal = ask(&DENSE, &small, &strict).unwrap_err();
    assert!(refusal.to_string().ends_with(&format!("; --gpu-layers {on_gpu} would pass")), "{refusal}");
    let accepted = ask(&DENSE, &small, refusal.suggestion.settings()).unwrap();
    assert_eq!(accepted.gpu.unwrap().placement().unwrap().gpu_layers(), on_gpu);
}

#[test]
fn without_a_gpu_layers_that_were_asked_for_are_told_with_the_reason_and_nothing_else_changes() {
    let cpu = ask(&DENSE, &machine(64 * GIB), &Settings::default()).unwrap();
    let none = Machine { no_gpu: Some("--gpu off".to_owned()), ..machine(64 * GIB) };
    assert_eq!(ask(&DENSE, &none, &Settings::default()).unwrap(), cpu);
    let asked = ask(&DENSE, &none, &layers(20)).unwrap();
    assert_eq!(asked.notes, ["--gpu-layers lowered from 20 to 0: --gpu off"]);
    assert_eq!(Plan { notes: Vec::new(), ..asked }, cpu);
    let all = settings(GpuSettings { layers: GpuLayers::All, ..GpuSettings::default() });
    let refusal = ask(&DENSE, &machine(64 * GIB), &Settings { strict: true, ..all }).unwrap_err();
    assert!(refusal.to_string().contains("changed from all to 0: no GPU was found"), "{refusal}");
}

#[test]
fn experts_stay_with_the_processor_where_that_was_asked_for() {
    let small = with(machine(64 * GIB), &[gpu(8 * GIB)]);
    let placed = |cpu_moe| {
        let plan =
            ask(&QWEN3_30B, &small, &settings(GpuSettings { cpu_moe, ..GpuSettings::default() })).unwrap();
        (plan.gpu.unwrap().placement().unwrap().clone(), plan.notes)
    };
    let (all, notes) = placed(CpuMoe::All);
    assert_eq!((all.gpu_layers(), all.split_layers(), notes.len()), (48, 48, 0), "{notes:?}");
    let (some, _) = placed(CpuMoe::First(40));
    assert_eq!((some.gpu_layers(), some.split_layers()), (48, 40));
    assert!(some.layers[39].feed_forward == Place::Cpu && some.layers[40].is_on_gpu());
    let (none, notes) = placed(CpuMoe::No);
    assert!((8..30).contains(&none.gpu_layers()) && none.split_layers() == 0);
    let left = notes.last().unwrap();
    let left_to_cpu =
        format!("the processor computes the experts of {} of 48 layers", 48 - none.gpu_layers());
    assert!(left.starts_with(&left_to_cpu) && left.contains("--stream-experts on"), "{left}");
    assert!(left.contains("no rate can be predicted"), "{left}");
}

#[test]
fn experts_that_are_left_to_the_processor_are_told_with_a_rate() {
    let note = |gpu: Gpu| {
        let plan =
            ask(&QWEN3_30B, &with(measured(64 * GIB, 20, 250, 2), &[gpu]), &Settings::default()).unwrap();
        (plan.notes.last().unwrap().clone(), plan.decode)
    };
    let (unknown, decode) = note(gpu(8 * GIB));
    assert!(
        unknown.contains("tokens/s are predicted for one answer at most;") && decode.is_none(),
        "{unknown}"
    );
    let (known, decode) = note(Gpu { read_per_second: Some(Bytes(300_000_000_000)), ..gpu(8 * GIB) });
    let rate = format!("{:.1} tokens/s are predicted for one answer;", decode.unwrap().tokens_per_second);
    assert!(known.contains(&rate), "{known}");
}

#[test]
fn times_of_the_gpu_and_of_the_processor_add_up() {
    let cpu = measured(64 * GIB, 20, 250, 2);
    let fast = Gpu { read_per_second: Some(Bytes(1_000_000_000_000)), ..gpu(80 * GIB) };
    let alone = ask(&DENSE, &cpu, &Settings::default()).unwrap().decode.unwrap();
    let decode =
        |count| ask(&DENSE, &with(cpu.clone(), std::slice::from_ref(&fast)), &layers(count)).unwrap().decode;
    let (half, whole) = (decode(8).unwrap(), decode(17).unwrap());
    assert!(
        alone.tokens_per_second < half.tokens_per_second && half.tokens_per_second < whole.tokens_per_second
    );
    assert_eq!((half.bound, whole.bound), (Bound::Memory, Bound::Gpu));
    let sum = half.memory_seconds + half.gpu_seconds;
    assert!((half.tokens_per_second * sum - 1.0).abs() < 1e-9, "{half:?}");
    // A prompt is bound by arithmetic, which nobody knows of this GPU.
    let plan = ask(&DENSE, &with(cpu.clone(), std::slice::from_ref(&fast)), &layers(8)).unwrap();
    assert!(plan.prefill.is_none());
}

#[test]
fn layers_come_before_pages_of_a_context_that_nobody_asked_for() {
    let machine = with(machine(128 * GIB), &[gpu(24 * GIB)]);
    let free = ask(&QWEN3_30B, &machine, &Settings::default()).unwrap();
    assert_eq!(free.gpu.as_ref().unwrap().placement().unwrap().engine(), "gpu");
    assert!(free.context.0 >= 8192 && free.pages * PAGE_TOKENS >= free.context.0);
    let asked = Settings { context: Some(Tokens(40_960)), parallel: Some(1), ..Settings::default() };
    let plan = ask(&QWEN3_30B, &machine, &asked).unwrap();
    assert_eq!(plan.context, Tokens(40_960));
    let smaller = with(common::machine(128 * GIB), &[gpu(18 * GIB)]);
    let short = ask(&QWEN3_30B, &smaller, &Settings::default()).unwrap();
    let long = ask(&QWEN3_30B, &smaller, &asked).unwrap();
    let on_gpu = |plan: &Plan| plan.gpu.as_ref().unwrap().placement().unwrap().gpu_layers();
    assert!(long.context == Tokens(40_960) && on_gpu(&long) < on_gpu(&short), "{:?}", long.notes);
}

#[test]
fn shares_divide_layers_among_gpus_in_order() {
    let gpus = [gpu(40 * GIB), Gpu { number: 1, ..gpu(20 * GIB) }];
    let machine = with(machine(64 * GIB), &gpus);
    let counts = |split: Option<&str>| {
        let split = split.map(|split| split.parse().unwrap());
        let plan =
            ask(&QWEN3_30B, &machine, &settings(GpuSettings { split, ..GpuSettings::default() })).unwrap();
        plan.gpu.unwrap().pools.iter().map(|pool| pool.layers).collect::<Vec<_>>()
    };
    assert_eq!(counts(Some("3,1")), [36, 12]);
    assert_eq!(counts(Some("0,1")), [0, 48]);
    assert_eq!(counts(None), [32, 16]);
    let split = settings(GpuSettings { split: Some("1,1,2".parse().unwrap()), ..GpuSettings::default() });
    let plan = ask(&QWEN3_30B, &machine, &split).unwrap();
    assert_eq!(plan.notes, ["--split changed from 1,1,2 to 1,1: layers are shared by 2 GPUs"]);
}

#[test]
fn of_a_gpu_that_does_not_tell_its_memory_nothing_is_taken_unasked() {
    let machine = with(machine(64 * GIB), &[Gpu { free: None, total: None, ..gpu(0) }]);
    let auto = ask(&DENSE, &machine, &Settings::default()).unwrap();
    assert!(
        auto.gpu.is_none() && auto.notes[0].contains("A GPU does not tell what memory it has"),
        "{:?}",
        auto.notes
    );
    let asked = ask(&DENSE, &machine, &layers(4)).unwrap();
    assert_eq!(asked.gpu.unwrap().placement().unwrap().gpu_layers(), 4);
}

#[test]
fn shared_memory_counts_once_and_the_second_copy_costs_layers() {
    let shared = Gpu { unified: true, ..gpu(64 * GIB) };
    let layers = |free| {
        let plan =
            ask(&QWEN3_30B, &with(machine(free * GIB), std::slice::from_ref(&shared)), &Settings::default());
        let gpu = plan.unwrap().gpu.unwrap();
        assert!(gpu.host_copy);
        gpu.placement().unwrap().gpu_layers()
    };
    assert_eq!(layers(64), 48);
    assert!(layers(24) < 48);
}

#[test]
fn the_processors_copy_cannot_be_left_out_yet_and_a_line_says_so() {
    let machine = with(machine(64 * GIB), &[gpu(80 * GIB)]);
    let off = GpuSettings { host_copy: HostCopy::Off, ..GpuSettings::default() };
    let plan = ask(&QWEN3_30B, &machine, &settings(off)).unwrap();
    assert!(plan.gpu.unwrap().host_copy && plan.notes[0].contains("gpu-host-copy"), "{:?}", plan.notes);
}

#[test]
fn experts_that_are_streamed_on_purpose_are_on_no_gpu() {
    let machine = with(machine(64 * GIB), &[gpu(80 * GIB)]);
    let stream = Settings { stream_experts: StreamExperts::On, ..Settings::default() };
    let plan = ask(&QWEN3_30B, &machine, &stream).unwrap();
    assert!(plan.streams() && plan.notes.is_empty(), "{:?}", plan.notes);
    assert_eq!(plan.gpu.unwrap().placement().unwrap().split_layers(), 48);
}

prop_compose! {
    fn any_shape()(
        layers in 1usize..64,
        hidden in 1usize..16,
        context in 1usize..1 << 17,
        experts in prop::option::weighted(0.7, (1usize..200, 1usize..20, 1usize..8)),
        format in prop::sample::select(vec![BlockFormat::Q4_0, BlockFormat::Q8_0, BlockFormat::Q3_K]),
    ) -> Shape {
        let experts = experts.map(|(count, used, width)| (count, used.min(count), width * 256));
        Shape { layers, hidden: hidden * 256, kv_heads: 4, head_dim: 128, context, experts, format }
    }
}

prop_compose! {
    fn any_gpu()(
        free in prop::option::weighted(0.9, 20u32..38),
        part in 0.5f64..1.0,
        unified in prop::bool::weighted(0.3),
    ) -> Gpu {
        let total = free.map(|bits| Bytes(1 << bits));
        let free = total.map(|total| Bytes((total.0 as f64 * part) as u64));
        Gpu { name: "A GPU".to_owned(), total, free, unified, ..Gpu::default() }
    }
}

prop_compose! {
    fn any_settings()(
        context in prop::option::of(0usize..1 << 18),
        parallel in prop::option::of(1usize..64),
        layers in prop_oneof![
            Just(GpuLayers::Auto), Just(GpuLayers::All), (0usize..100).prop_map(GpuLayers::Count),
        ],
        cpu_moe in prop_oneof![Just(CpuMoe::No), Just(CpuMoe::All), (0usize..100).prop_map(CpuMoe::First)],
        shares in prop::option::of(prop::collection::vec(0u32..5, 1..5)),
        host_copy in prop::sample::select(&HostCopy::ALL[..]),
        stream_experts in prop::sample::select(&StreamExperts::ALL[..]),
        strict in prop::bool::weighted(0.3),
    ) -> Settings {
        let split = shares.and_then(|shares| unfazed_plan::Split::new(&shares));
        let gpu = GpuSettings { layers, cpu_moe, split, host_copy, ..GpuSettings::default() };
        Settings { context: context.map(Tokens), parallel, gpu, stream_experts, strict, ..Settings::default() }
    }
}

prop_compose! {
    fn any_machine()(
        bits in 26u32..40,
        rest in 0.0f64..1.0,
        gpus in prop::collection::vec(any_gpu(), 0..4),
    ) -> Machine {
        with(machine(((1u64 << bits) as f64 * (1.0 + rest)) as u64), &gpus)
    }
}

fn check_gpus(shape: &Shape, machine: &Machine, settings: &Settings, plan: &Plan, gpu: &GpuPlan) {
    let placement = gpu.placement().unwrap();
    assert!(gpu.rungs.len() >= 2 && gpu.rungs.last().unwrap().placement.is_cpu_alone());
    let counts: Vec<usize> = gpu.rungs.iter().map(|rung| rung.placement.gpu_layers()).collect();
    assert!(counts.is_sorted_by(|more, fewer| more > fewer), "{counts:?}");
    // The last ones, without a gap.
    assert!(placement.layers.is_sorted_by_key(|layer| layer.attention.is_gpu()));
    for (i, layer) in placement.layers.iter().enumerate() {
        assert!(layer.attention.is_gpu() || !layer.feed_forward.is_gpu());
        let stays = shape.experts.is_some() && settings.gpu.cpu_moe.keeps(i);
        assert!(!stays || !layer.feed_forward.is_gpu(), "layer {i}");
    }
    for (pool, adapter) in gpu.pools.iter().zip(&machine.gpus) {
        let sum: u64 = pool.parts.iter().map(|part| part.bytes.0).sum();
        assert!(adapter.free.is_none_or(|free| sum <= free.0), "{pool:?}");
    }
    if let GpuLayers::Count(count) = settings.gpu.layers {
        assert!(placement.gpu_layers() <= count);
        assert!(!settings.strict || placement.gpu_layers() == count.min(shape.layers));
    }
    assert!(plan.pages * PAGE_TOKENS >= plan.context.0);
    assert!(gpu.host_copy);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn an_accepted_plan_stays_within_every_pool(
        shape in any_shape(), machine in any_machine(), settings in any_settings(),
    ) {
        let Ok(plan) = ask(&shape, &machine, &settings) else { return Ok(()) };
        prop_assert!(sum(&plan) <= plan.budget.0);
        if let Some(gpu) = &plan.gpu {
            check_gpus(&shape, &machine, &settings, &plan, gpu);
        }
        if settings.strict {
            prop_assert!(settings.context.is_none_or(|context| context == plan.context));
        }
    }

    #[test]
    fn a_gpu_never_takes_what_the_processor_alone_would_serve(
        shape in any_shape(), machine in any_machine(), settings in any_settings(),
    ) {
        let settings = Settings { strict: false, ..settings };
        let cpu = Machine { gpus: Vec::new(), ..machine.clone() };
        match (ask(&shape, &cpu, &settings), ask(&shape, &machine, &settings)) {
            (Ok(alone), Ok(plan)) => {
                let asked = settings.context.map_or(8192, |context| context.0);
                prop_assert!(plan.context.0 >= alone.context.0.min(asked) || machine.gpus.iter().any(|gpu| gpu.unified));
            }
            (Err(_), Err(_)) => {}
            (alone, plan) => prop_assert!(false, "{:?} but {:?}", alone.is_ok(), plan.is_ok()),
        }
    }

    #[test]
    fn more_memory_of_a_gpu_never_holds_fewer_layers(
        shape in any_shape(), machine in any_machine(), gpu in any_gpu(), settings in any_settings(), more in 1.0f64..4.0,
    ) {
        let settings = Settings { strict: false, gpu: GpuSettings { split: None, ..settings.gpu }, ..settings };
        let larger = |bytes: Option<Bytes>| bytes.map(|bytes| Bytes((bytes.0 as f64 * more) as u64));
        let grown = Gpu { free: larger(gpu.free), total: larger(gpu.total), ..gpu.clone() };
        let layers = |gpu: Gpu| {
            let plan = ask(&shape, &with(machine.clone(), &[gpu]), &settings).ok()?;
            Some(plan.gpu.map_or(0, |gpu| gpu.placement().unwrap().gpu_layers()))
        };
        prop_assert!(layers(grown) >= layers(gpu));
    }

    #[test]
    fn what_a_refusal_suggests_passes_with_gpus_too(
        shape in any_shape(), machine in any_machine(), settings in any_settings(),
    ) {
        let (mut machine, mut settings) = (machine, settings);
        for _ in 0..12 {
            let Err(refusal) = ask(&shape, &machine, &settings) else { return Ok(()) };
            settings = *refusal.suggestion.settings();
            if let Suggestion::Free { bytes, .. } = refusal.suggestion {
                machine.memory.free = bytes;
            }
        }
        prop_assert!(false, "no end of refusals: {:?}", ask(&shape, &machine, &settings));
    }
}
