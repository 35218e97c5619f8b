//! What a plan promises, over many models, machines and settings.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{GIB, Shape, assert_every_chunk_has_its_places, machine, measured, sum};
use proptest::prelude::*;
use unfazed_formats::{BlockFormat, KvType, KvTypes};
use unfazed_plan::refusal::{Condition, Suggestion};
use unfazed_plan::{
    Bytes, ExpertCache, GpuSettings, Machine, PAGE_TOKENS, Plan, Prediction, Settings, StreamExperts, Tokens,
    needs, plan,
};

prop_compose! {
    fn any_shape()(
        layers in 1usize..64,
        hidden in 1usize..32,
        [kv_heads, head_dim] in [1usize..16, 1usize..9],
        context in 1usize..1 << 19,
        experts in prop::option::weighted(0.9, (1usize..600, 1usize..20, 1usize..16)),
        format in prop::sample::select(vec![BlockFormat::Q4_0, BlockFormat::Q8_0, BlockFormat::Q3_K, BlockFormat::IQ2_XXS]),
    ) -> Shape {
        let experts = experts.map(|(count, used, width)| (count, used.min(count), width * 256));
        Shape { layers, hidden: hidden * 256, kv_heads, head_dim: head_dim * 32, context, experts, format }
    }
}

prop_compose! {
    fn any_settings()(
        context in prop::option::of(0usize..1 << 20),
        parallel in prop::option::of(0usize..1000),
        chunk in prop::option::of(0usize..20_000),
        [threads, batch_threads] in [prop::option::of(0usize..100), prop::option::of(0usize..100)],
        keys in prop::sample::select(&KvType::ALL[..]),
        values in prop::sample::select(&KvType::ALL[..]),
        memory in prop::option::weighted(0.3, (0u64..1 << 38).prop_map(Bytes)),
        expert_cache in prop::option::weighted(0.4, prop_oneof![
            (0usize..40_000).prop_map(ExpertCache::Slots),
            (0u64..1 << 38).prop_map(|bytes| ExpertCache::Bytes(Bytes(bytes))),
        ]),
        stream_experts in prop::sample::select(&StreamExperts::ALL[..]),
        strict in prop::bool::weighted(0.3),
    ) -> Settings {
        let cache = KvTypes { keys, values };
        let (context, chunk) = (context.map(Tokens), chunk.map(Tokens));
        Settings {
            context, parallel, chunk, threads, batch_threads, cache, memory, expert_cache, stream_experts, strict, gpu: GpuSettings::default(),
        }
    }
}

prop_compose! {
    /// From a laptop to a server, as a power of two so that small ones are as frequent as large ones.
    fn any_machine()(
        (bits, rest) in (26u32..40, 0.0f64..1.0),
        rates in prop::option::weighted(0.8, (1u64..1000, 1u64..100_000, 1u64..50)),
    ) -> Machine {
        let free = ((1u64 << bits) as f64 * (1.0 + rest)) as u64;
        match rates {
            Some((read, macs, disk)) => measured(free, read, macs, disk),
            None => machine(free),
        }
    }
}

fn check_accepted(shape: &Shape, machine: &Machine, settings: &Settings, plan: &Plan) {
    assert!(sum(plan) <= plan.budget.0 && plan.budget <= machine.memory.free, "{plan:?}");
    assert!(settings.memory.is_none_or(|memory| plan.budget <= memory));
    assert!(plan.pages * PAGE_TOKENS >= plan.context.0, "{plan:?}");
    assert_eq!(plan.kv_bytes, needs::page(&shape.config(), settings.cache) * plan.pages as u64);
    assert!((1..=shape.context).contains(&plan.context.0), "{plan:?}");
    assert!(plan.chunk.0 >= plan.parallel, "{plan:?}");
    assert_eq!(plan.threads, settings.threads.unwrap_or(4).min(8));
    assert_eq!(plan.batch_threads, settings.batch_threads.unwrap_or(plan.threads).min(8));
    assert_eq!(plan.experts.is_some(), shape.experts.is_some());
    let Some(experts) = &plan.experts else { return };
    let (count, used, _) = shape.experts.unwrap();
    let least = if experts.streaming { used } else { count };
    assert_eq!(experts.layers.len(), shape.layers);
    for layer in &experts.layers {
        assert!((least..=count).contains(&layer.slots), "{layer:?}");
        assert!(layer.slot_bytes <= experts.ring_slot_bytes || !experts.streaming);
    }
    if experts.streaming {
        assert!(experts.ring_slots >= 2 && experts.staging_bytes >= experts.layers[0].file_bytes);
        assert_eq!(plan.weight_bytes, shape.weights().dense);
        assert_ne!(settings.stream_experts, StreamExperts::Off);
    } else {
        assert_eq!(plan.weight_bytes, shape.weights().all);
        assert_ne!(settings.stream_experts, StreamExperts::On);
    }
}

/// What was asked for is what there is.
fn check_unchanged(shape: &Shape, settings: &Settings, plan: &Plan) {
    assert!(settings.context.is_none_or(|context| context == plan.context));
    assert!(settings.parallel.is_none_or(|parallel| parallel == plan.parallel));
    assert!(settings.chunk.is_none_or(|chunk| chunk == plan.chunk));
    assert!(settings.memory.is_none_or(|memory| memory == plan.budget));
    if let (Some(ExpertCache::Slots(slots)), Some(experts)) = (settings.expert_cache, &plan.experts) {
        assert_eq!(slots, experts.slots(), "{shape:?}");
    }
}

fn rate(prediction: Option<Prediction>) -> Option<f64> {
    prediction.map(|prediction| prediction.tokens_per_second)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn an_accepted_plan_stays_within_its_budget_and_has_a_place_for_every_step(
        shape in any_shape(), machine in any_machine(), settings in any_settings(),
    ) {
        if let Ok(plan) = plan(&shape.config(), &shape.weights(), &machine, &settings) {
            check_accepted(&shape, &machine, &settings, &plan);
            if settings.strict {
                check_unchanged(&shape, &settings, &plan);
            }
            // A prompt of any length is so many steps of the largest size and one of any smaller size.
            assert_every_chunk_has_its_places(&plan, plan.chunk.0);
        }
    }

    #[test]
    fn more_memory_never_makes_a_plan_slower(
        shape in any_shape(),
        machine in any_machine(),
        settings in any_settings(),
        (more, by_setting) in (1.0f64..8.0, any::<bool>()),
    ) {
        let (config, weights) = (shape.config(), shape.weights());
        let settings = Settings { memory: None, strict: false, ..settings };
        let larger = (machine.memory.free.0 as f64 * more) as u64;
        let mut bigger = machine.clone();
        bigger.memory.free = Bytes(larger);
        let less = if by_setting {
            plan(&config, &weights, &bigger, &Settings { memory: Some(machine.memory.free), ..settings })
        } else {
            plan(&config, &weights, &machine, &settings)
        };
        if let Ok(less) = less {
            let more = plan(&config, &weights, &bigger, &settings).unwrap();
            for (less, more) in [(rate(less.prefill), rate(more.prefill)), (rate(less.decode), rate(more.decode))] {
                prop_assert_eq!(less.is_some(), more.is_some());
                prop_assert!(more.unwrap_or(0.0) >= less.unwrap_or(0.0) * 0.999, "{:?} to {:?}", less, more);
            }
        }
    }

    #[test]
    fn what_a_refusal_suggests_passes(
        shape in any_shape(), machine in any_machine(), settings in any_settings(),
    ) {
        let (config, weights) = (shape.config(), shape.weights());
        let (mut machine, mut settings) = (machine, settings);
        let mut failed = Vec::new();
        while let Err(refusal) = plan(&config, &weights, &machine, &settings) {
            let (name, setting) = match &refusal.condition {
                Condition::TooSmall { setting, .. }
                | Condition::Cache { setting, .. } => (refusal.condition.name(), *setting),
                // The reason counts: a context may be longer than the model's, and then longer than what fits.
                Condition::Changed { setting, note } => (note.rsplit(": ").next().unwrap(), *setting),
                other => (other.name(), ""),
            };
            let condition = (name.split([' ', ',']).take(3).map(str::to_owned).collect::<Vec<_>>(), setting);
            prop_assert!(!failed.contains(&condition), "{:?} comes again after {:?}: {}", condition, failed, refusal);
            failed.push(condition);
            settings = *refusal.suggestion.settings();
            if let Suggestion::Free { bytes, .. } = refusal.suggestion {
                prop_assert!(bytes > machine.memory.free, "{}", refusal);
                machine.memory.free = bytes;
            }
        }
    }

    #[test]
    fn experts_stay_in_memory_where_all_of_them_fit(shape in any_shape(), spare in 0u64..64 * GIB) {
        let (config, weights) = (shape.config(), shape.weights());
        let off = Settings { stream_experts: StreamExperts::Off, context: Some(Tokens(32)), ..Settings::default() };
        let off = Settings { context: off.context.filter(|_| shape.context >= 32), ..off };
        let need = match plan(&config, &weights, &machine(0), &off).unwrap_err().suggestion {
            Suggestion::Free { bytes, .. } => bytes.0,
            other => panic!("{other}"),
        };
        // Beside the least chunk there must be room for the usual one.
        let usual = needs::scratch(&config, Tokens(512), 8).0;
        let auto = Settings { stream_experts: StreamExperts::Auto, ..off };
        let accepted = plan(&config, &weights, &machine(need + usual + usual / 64 + spare), &auto).unwrap();
        prop_assert!(!accepted.streams(), "{:?}", accepted.parts());
    }
}
