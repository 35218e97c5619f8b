//! What a plan promises, over many models, machines and settings.

use proptest::prelude::*;
use unfazed_formats::config::{ExpertConfig, Family, RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{KvType, KvTypes, ModelConfig};
use unfazed_plan::{Bytes, Machine, PAGE_TOKENS, Refusal, Settings, Tokens, needs, plan};

fn model(layers: usize, hidden: usize, kv_heads: usize, head_dim: usize, context: usize) -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3Moe,
        layers,
        hidden,
        heads: kv_heads * 4,
        kv_heads,
        head_dim,
        feed_forward: hidden * 4,
        experts: Some(ExpertConfig { count: 64, used: 8, feed_forward: hidden, normalised: true }),
        vocab: 50_000,
        context,
        norm_epsilon: 1e-6,
        rope: RopeConfig {
            base: 1e4,
            dimensions: head_dim,
            pairing: RopePairing::Halves,
            scaling: RopeScaling::None,
        },
        tied_embeddings: false,
    }
}

fn machine(available: u64) -> Machine {
    Machine { available: Bytes(available), cores: 4, most_threads: 8 }
}

prop_compose! {
    fn any_settings()(
        context in prop::option::of(0usize..1 << 20),
        parallel in prop::option::of(0usize..1000),
        chunk in prop::option::of(0usize..20_000),
        [threads, batch_threads] in [prop::option::of(0usize..100), prop::option::of(0usize..100)],
        keys in prop::sample::select(&KvType::ALL[..]),
        values in prop::sample::select(&KvType::ALL[..]),
    ) -> Settings {
        let cache = KvTypes { keys, values };
        Settings { context: context.map(Tokens), parallel, chunk: chunk.map(Tokens), threads, batch_threads, cache }
    }
}

proptest! {
    #[test]
    fn an_accepted_plan_serves_one_full_context_within_the_memory_it_was_given(
        settings in any_settings(),
        available in 0u64..1 << 40,
        weights in 0u64..1 << 40,
        (layers, hidden, kv_heads, head_dim, context) in
            (1usize..100, 1usize..16_384, 1usize..64, 1usize..256, 1usize..1 << 20),
    ) {
        let model = model(layers, hidden, kv_heads, head_dim, context);
        if let Ok(plan) = plan(&model, Bytes(weights), &machine(available), &settings) {
            let total = plan.weight_bytes.0 + plan.kv_bytes.0 + plan.scratch_bytes.0;
            prop_assert!(total <= available);
            prop_assert!(plan.pages * PAGE_TOKENS >= plan.context.0);
            prop_assert_eq!(plan.kv_bytes, needs::page(&model, settings.cache) * plan.pages as u64);
            prop_assert!(plan.context.0 <= context && plan.context.0 >= 1);
            prop_assert!(plan.chunk.0 >= plan.parallel);
            prop_assert_eq!(plan.threads, settings.threads.unwrap_or(4).min(8));
            prop_assert_eq!(plan.batch_threads, settings.batch_threads.unwrap_or(plan.threads).min(8));
        }
    }

    #[test]
    fn more_memory_never_makes_a_plan_worse(settings in any_settings(), available in 1u64 << 28..1 << 36) {
        let model = model(16, 2048, 16, 128, 8192);
        let (less, more) = (machine(available), machine(available * 2));
        if let Ok(small) = plan(&model, Bytes(4 << 30), &less, &settings) {
            let large = plan(&model, Bytes(4 << 30), &more, &settings).unwrap();
            prop_assert!(large.context >= small.context && large.pages >= small.pages);
        }
    }
}

#[test]
fn a_setting_of_nothing_is_refused_with_the_number_that_would_pass() {
    let model = model(16, 2048, 16, 128, 8192);
    let ask = |settings| plan(&model, Bytes(0), &machine(1 << 40), &settings).unwrap_err().to_string();
    assert_eq!(
        ask(Settings { context: Some(Tokens(0)), ..Settings::default() }),
        "--context 0: at least 32 is needed"
    );
    assert_eq!(
        ask(Settings { parallel: Some(0), ..Settings::default() }),
        "--parallel 0: at least 1 is needed"
    );
    assert_eq!(
        ask(Settings { chunk: Some(Tokens(0)), ..Settings::default() }),
        "--prefill-chunk 0: at least 1 is needed"
    );
}

#[test]
fn blocks_that_cut_a_head_are_refused_and_smaller_types_hold_longer_contexts() {
    let with = |head_dim, keys, values| {
        let settings = Settings { cache: KvTypes { keys, values }, ..Settings::default() };
        plan(&model(16, 2048, 16, head_dim, 1 << 20), Bytes(0), &machine(4 << 30), &settings)
    };
    assert_eq!(
        with(80, KvType::BF16, KvType::Q8_0).unwrap_err().to_string(),
        "--cache-type-v q8_0: heads of 80 are not whole blocks of 32: f32, f16 and bf16 pass"
    );
    let context = |kind| with(128, kind, kind).unwrap().context;
    let longer = KvType::ALL.map(context);
    assert!(longer.is_sorted() && longer[4].0 > 3 * longer[1].0, "{longer:?}");
}

#[test]
fn a_context_beyond_the_model_or_the_memory_is_lowered_with_one_line() {
    let model = model(16, 2048, 16, 128, 8192);
    let settings = Settings { context: Some(Tokens(100_000)), ..Settings::default() };
    let beyond_model = plan(&model, Bytes(0), &machine(1 << 40), &settings).unwrap();
    assert_eq!(beyond_model.context, Tokens(8192));
    assert_eq!(
        beyond_model.notes,
        ["--context lowered from 100000 to 8192: the model was trained for no longer one"]
    );

    let settings = Settings { context: Some(Tokens(8192)), ..Settings::default() };
    let beyond_memory = plan(&model, Bytes(0), &machine(1 << 30), &settings).unwrap();
    assert!(beyond_memory.context < Tokens(8192));
    assert_eq!(beyond_memory.notes.len(), 1);
    assert!(beyond_memory.notes[0].starts_with("--context lowered from 8192 to "));
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_the_bytes_by_part() {
    let model = model(16, 2048, 16, 128, 8192);
    let refusal = plan(&model, Bytes(8 << 30), &machine(4 << 30), &Settings::default()).unwrap_err();
    assert!(matches!(refusal, Refusal::Memory { .. }));
    let text = refusal.to_string();
    assert!(text.contains("weights 8.00 GiB") && text.contains("4.00 GiB are free"), "{text}");
}

#[test]
fn a_chunk_smaller_than_the_sequences_is_raised_with_one_line() {
    let model = model(16, 2048, 16, 128, 8192);
    let settings = Settings { chunk: Some(Tokens(7)), parallel: Some(16), ..Settings::default() };
    let plan = plan(&model, Bytes(0), &machine(1 << 40), &settings).unwrap();
    assert_eq!(plan.chunk, Tokens(16));
    assert_eq!(
        plan.notes,
        ["--prefill-chunk raised from 7 to 16: a step holds a row of each of 16 sequences"]
    );
}
