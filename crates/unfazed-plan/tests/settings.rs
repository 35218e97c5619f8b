//! Settings one by one: what is refused, what is changed, and what is said.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{GIB, QWEN3_30B, Shape, machine, measured, sum};
use unfazed_formats::{KvType, KvTypes};
use unfazed_plan::predict::Bound;
use unfazed_plan::refusal::{Condition, PartName};
use unfazed_plan::{Bytes, ExpertCache, Machine, Plan, Refusal, Settings, StreamExperts, Tokens, plan};

/// A dense model of 32 MiB of keys and values for 1,024 tokens.
const DENSE: Shape = Shape { layers: 16, kv_heads: 4, context: 8192, experts: None, ..QWEN3_30B };

fn ask(shape: &Shape, machine: &Machine, settings: &Settings) -> Result<Plan, Refusal> {
    plan(&shape.config(), &shape.weights(), machine, settings)
}

#[test]
fn a_setting_of_nothing_is_refused_with_the_number_that_would_pass() {
    let refused = |settings| ask(&DENSE, &machine(64 * GIB), &settings).unwrap_err().to_string();
    let settings = Settings::default();
    assert_eq!(
        refused(Settings { context: Some(Tokens(0)), ..settings }),
        "--context 0 is too small; --context 32 would pass"
    );
    assert_eq!(
        refused(Settings { parallel: Some(0), ..settings }),
        "--parallel 0 is too small; --parallel 1 would pass"
    );
    assert_eq!(
        refused(Settings { chunk: Some(Tokens(0)), ..settings }),
        "--prefill-chunk 0 is too small; --prefill-chunk 1 would pass"
    );
}

#[test]
fn blocks_that_cut_a_head_are_refused_and_smaller_types_hold_longer_contexts() {
    let with = |head_dim, keys, values| {
        let settings = Settings { cache: KvTypes { keys, values }, ..Settings::default() };
        ask(&Shape { head_dim, context: 1 << 20, ..DENSE }, &machine(8 * GIB), &settings)
    };
    assert_eq!(
        with(80, KvType::BF16, KvType::Q8_0).unwrap_err().to_string(),
        "--cache-type-v q8_0: heads of 80 are not whole blocks of 32; --cache-type-v f16 would pass"
    );
    let context = |kind| with(128, kind, kind).unwrap().context;
    let longer = KvType::ALL.map(context);
    assert!(longer.is_sorted() && longer[4].0 > 3 * longer[1].0, "{longer:?}");
}

#[test]
fn a_context_beyond_the_model_or_the_memory_is_lowered_with_one_line() {
    let settings = Settings { context: Some(Tokens(100_000)), ..Settings::default() };
    let beyond_model = ask(&DENSE, &machine(64 * GIB), &settings).unwrap();
    assert_eq!(beyond_model.context, Tokens(8192));
    assert_eq!(
        beyond_model.notes,
        ["--context lowered from 100000 to 8192: the model was trained for no longer one"]
    );

    let settings = Settings { context: Some(Tokens(8192)), ..Settings::default() };
    let free = ask(&DENSE, &machine(0), &settings).unwrap_err();
    let Condition::Memory { need, .. } = free.condition else { panic!("{free}") };
    let beyond_memory = ask(&DENSE, &machine(need.0 + (300 << 20)), &settings).unwrap();
    assert!(beyond_memory.context < Tokens(8192));
    assert_eq!(beyond_memory.notes.len(), 1, "{:?}", beyond_memory.notes);
    assert!(beyond_memory.notes[0].starts_with("--context lowered from 8192 to "));
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_the_bytes_by_part_and_the_memory_that_would_do() {
    let settings = Settings { stream_experts: StreamExperts::Off, ..Settings::default() };
    let refusal = ask(&QWEN3_30B, &machine(8 * GIB), &settings).unwrap_err();
    let text = refusal.to_string();
    assert!(text.contains("weights 15.") && text.contains("8.00 GiB are free for it"), "{text}");
    assert!(text.ends_with("; --stream-experts auto would pass"), "{text}");
    let Condition::Memory { need, have, parts } = refusal.condition else { panic!("{text}") };
    assert_eq!(have, Bytes(8 * GIB));
    let sum: u64 = parts.iter().map(|part| part.bytes.0).sum();
    assert!(sum <= need.0 && need.0 - sum < 2 << 20, "{text}");

    let tiny = ask(&QWEN3_30B, &machine(GIB), &Settings::default()).unwrap_err().to_string();
    assert!(tiny.contains("expert slots") && tiny.contains("it would pass with "), "{tiny}");
    let settings = Settings { memory: Some(Bytes(GIB)), ..Settings::default() };
    let little = ask(&QWEN3_30B, &machine(8 * GIB), &settings).unwrap_err().to_string();
    assert!(little.contains("; --memory ") && little.ends_with("MiB would pass"), "{little}");
}

#[test]
fn a_chunk_smaller_than_the_sequences_is_raised_with_one_line() {
    let settings = Settings { chunk: Some(Tokens(7)), parallel: Some(16), ..Settings::default() };
    let plan = ask(&DENSE, &machine(64 * GIB), &settings).unwrap();
    assert_eq!(plan.chunk, Tokens(16));
    assert_eq!(
        plan.notes,
        ["--prefill-chunk raised from 7 to 16: a step holds a row of each of 16 sequences"]
    );
}

#[test]
fn strict_refuses_what_would_be_changed_and_takes_what_it_would_be_changed_to() {
    let settings = Settings { context: Some(Tokens(100_000)), strict: true, ..Settings::default() };
    let refusal = ask(&DENSE, &machine(64 * GIB), &settings).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "--strict refuses what would be changed: --context lowered from 100000 to 8192: the model was trained for no \
         longer one; --context 8192 would pass"
    );
    let plan = ask(&DENSE, &machine(64 * GIB), refusal.suggestion.settings()).unwrap();
    assert_eq!((plan.context, plan.notes.len()), (Tokens(8192), 0));
}

#[test]
fn a_model_larger_than_memory_is_streamed_and_memory_goes_to_slots() {
    for limit in [6, 8, 12] {
        let plan = ask(&QWEN3_30B, &machine(limit * GIB), &Settings::default()).unwrap();
        let experts = plan.experts.as_ref().unwrap();
        assert!(plan.streams() && sum(&plan) <= limit * GIB);
        // What no part could use is less than one slot.
        assert!(limit * GIB - sum(&plan) < experts.ring_slot_bytes.0, "{:?}", plan.parts());
        let slots: Vec<usize> = experts.layers.iter().map(|layer| layer.slots).collect();
        assert!(slots.iter().max().unwrap() - slots.iter().min().unwrap() <= 1, "{slots:?}");
        assert!(plan.context.0 >= 8192 && plan.chunk.0 >= 512, "{plan:?}");
    }
    let all = ask(&QWEN3_30B, &machine(32 * GIB), &Settings::default()).unwrap();
    assert!(!all.streams() && all.experts.unwrap().slots() == 48 * 128);
}

#[test]
fn slots_may_be_given_as_a_number_or_as_bytes() {
    let with = |cache| {
        let settings = Settings { expert_cache: Some(cache), ..Settings::default() };
        ask(&QWEN3_30B, &machine(32 * GIB), &settings).unwrap()
    };
    let number = with(ExpertCache::Slots(2000));
    let experts = number.experts.as_ref().unwrap();
    assert!(number.streams() && experts.slots() == 2000 && number.notes.is_empty(), "{:?}", number.notes);
    let bytes = with(ExpertCache::Bytes(experts.slot_bytes()));
    assert_eq!(bytes.experts.as_ref().unwrap().slots(), 2000);
    let less = with(ExpertCache::Bytes(experts.slot_bytes() - Bytes(1)));
    assert_eq!(less.experts.unwrap().slots(), 1999);
    let plenty = with(ExpertCache::Bytes(Bytes(1 << 40)));
    assert!(!plenty.streams() && plenty.notes.is_empty());
}

#[test]
fn experts_on_disk_and_all_of_them_in_memory_contradict_each_other() {
    let cache = Some(ExpertCache::Slots(1000));
    let settings =
        Settings { expert_cache: cache, stream_experts: StreamExperts::Off, ..Settings::default() };
    assert_eq!(
        ask(&QWEN3_30B, &machine(64 * GIB), &settings).unwrap_err().to_string(),
        "--stream-experts off keeps all 6144 experts in memory, and --expert-cache asks for 1000; --stream-experts auto \
         would pass"
    );
}

#[test]
fn settings_of_experts_do_nothing_for_a_dense_model_and_it_says_so() {
    let settings = Settings {
        expert_cache: Some(ExpertCache::Slots(64)),
        stream_experts: StreamExperts::On,
        ..Settings::default()
    };
    let plan = ask(&DENSE, &machine(64 * GIB), &settings).unwrap();
    assert!(plan.experts.is_none() && !plan.streams());
    assert_eq!(
        plan.notes,
        [
            "--stream-experts changed from on to auto: the model has no experts",
            "--expert-cache changed from 64 to auto: the model has no experts"
        ]
    );
}

#[test]
fn memory_bounds_all_parts_together_and_no_more_is_taken_than_is_free() {
    let settings = Settings { memory: Some(Bytes(6 * GIB)), ..Settings::default() };
    let bounded = ask(&QWEN3_30B, &machine(64 * GIB), &settings).unwrap();
    assert!(bounded.streams() && bounded.budget == Bytes(6 * GIB) && sum(&bounded) <= 6 * GIB);
    let mut limited = machine(4 * GIB);
    limited.memory.bound = Some("the control group /job".to_owned());
    let plan = ask(&QWEN3_30B, &limited, &settings).unwrap();
    assert_eq!(
        plan.notes[0],
        "--memory lowered from 6.00 GiB to 4096MiB: no more is free under the control group /job"
    );
}

#[test]
fn sequences_that_were_asked_for_get_pages_before_experts_do() {
    let with = |parallel| {
        let settings = Settings { parallel, context: Some(Tokens(4096)), ..Settings::default() };
        ask(&QWEN3_30B, &machine(10 * GIB), &settings).unwrap()
    };
    assert_eq!(with(None).pages, 128);
    assert_eq!(with(Some(4)).pages, 4 * 64);
}

#[test]
fn a_prompt_that_streams_is_long_enough_to_hide_the_disk_and_no_longer() {
    let chunk = |disk, macs| {
        let machine = measured(12 * GIB, 100, macs, disk);
        let plan = ask(&QWEN3_30B, &machine, &Settings::default()).unwrap();
        assert!(plan.streams());
        (plan.chunk.0, plan.prefill.unwrap(), plan.decode.unwrap())
    };
    let (slow_disk, ..) = chunk(1, 3000);
    let (fast_disk, prefill, decode) = chunk(10, 3000);
    assert!(512 < fast_disk && fast_disk < slow_disk && slow_disk <= 8192, "{fast_disk}, {slow_disk}");
    assert_eq!((prefill.bound, decode.bound), (Bound::Compute, Bound::Disk));
    assert_eq!(prefill.rows, fast_disk);
    let (slow_processor, ..) = chunk(10, 100);
    assert_eq!(slow_processor, 512);
}

#[test]
fn predictions_are_those_of_plain_arithmetic() {
    let machine = measured(64 * GIB, 20, 250, 2);
    let whole = ask(&QWEN3_30B, &machine, &Settings::default()).unwrap();
    let (weights, decode) = (QWEN3_30B.weights(), whole.decode.unwrap());
    let expert = weights.layers[0].expert;
    let bytes = weights.body.packed.0 + 48 * 8 * expert.packed.0 + weights.output.packed.0;
    let expected = 20e9 * 0.9 / bytes as f64;
    assert!((decode.tokens_per_second - expected).abs() < 1e-6 * expected, "{decode:?}");
    assert_eq!((decode.bound, decode.disk_seconds), (Bound::Memory, 0.0));

    let half = Settings { expert_cache: Some(ExpertCache::Slots(48 * 64)), ..Settings::default() };
    let half = ask(&QWEN3_30B, &machine, &half).unwrap().decode.unwrap();
    let read = 48 * 8 * expert.file.0 / 2;
    assert!((half.disk_seconds - read as f64 / 2e9).abs() < 1e-9, "{half:?}");
    assert_eq!(half.bound, Bound::Disk);
    let unmeasured = Machine { disk_per_second: None, ..measured(12 * GIB, 20, 250, 2) };
    let blind = ask(&QWEN3_30B, &unmeasured, &Settings::default()).unwrap();
    assert!(blind.decode.is_none() && blind.prefill.is_none() && blind.chunk == Tokens(2048));
}

#[test]
fn parts_have_names_and_none_is_empty() {
    let plan = ask(&QWEN3_30B, &machine(8 * GIB), &Settings::default()).unwrap();
    let parts: Vec<PartName> = plan.parts().iter().map(|part| part.part).collect();
    use PartName::*;
    assert_eq!(parts, [Weights, ExpertSlots, Ring, Staging, KvPages, Scratch, Reserve]);
    let whole = ask(&QWEN3_30B, &machine(64 * GIB), &Settings::default()).unwrap();
    let parts: Vec<PartName> = whole.parts().iter().map(|part| part.part).collect();
    assert_eq!(parts, [Weights, KvPages, Scratch, Reserve]);
}
