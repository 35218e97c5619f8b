//! Reports of other systems' users, acted out against the plan.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{GIB, QWEN3_30B, STRATA, Shape, assert_places, machine, sum};
use unfazed_plan::machine::PoolKind;
use unfazed_plan::{Bytes, ExpertCache, Machine, PAGE_TOKENS, Plan, Settings, Tokens, plan};

fn accept(shape: &Shape, machine: &Machine, settings: &Settings) -> Plan {
    plan(&shape.config(), &shape.weights(), machine, settings).unwrap()
}

/// Asserts that a prompt can be computed: each of its steps has its places, and its keys and values their pages.
fn assert_served(plan: &Plan, prompt: usize) {
    let (steps, rest) = (prompt / plan.chunk.0, prompt % plan.chunk.0);
    if steps > 0 {
        assert_places(plan, plan.chunk.0);
    }
    if rest > 0 {
        assert_places(plan, rest);
    }
    assert!(prompt.div_ceil(PAGE_TOKENS) <= plan.pages, "{prompt} tokens");
}

/// Strata 2671: a cache above the setup's default was accepted at start and killed the engine at the first prompt shorter
/// than a chunk, because the memory that it was to borrow from the cache had another layout.
#[test]
fn strata_2671() {
    let mut unified = machine(48 * GIB);
    unified.memory.kind = PoolKind::Unified;
    for machine in [unified, machine(24 * GIB)] {
        for cache in [64, 1024, 2048, 6144, 1 << 20] {
            for chunk in [None, Some(Tokens(2048)), Some(Tokens(5376))] {
                let settings = Settings {
                    context: Some(Tokens(32_768)),
                    chunk,
                    expert_cache: Some(ExpertCache::Slots(cache)),
                    ..Settings::default()
                };
                let plan = accept(&STRATA, &machine, &settings);
                assert!(sum(&plan) <= plan.budget.0);
                let slots = plan.experts.as_ref().unwrap().slots();
                match cache {
                    64 => assert_eq!(slots, 48 * 10, "a token's experts: {:?}", plan.notes),
                    1024..=6144 => assert_eq!(slots, cache),
                    _ => assert!(slots > 6144 && slots <= 48 * 512),
                }
                // One line for the cache, if it is another than what was asked for.
                let lines = plan.notes.iter().filter(|note| note.starts_with("--expert-cache ")).count();
                assert_eq!(lines, if slots == cache { 0 } else { lines.max(1) }, "{:?}", plan.notes);
                assert_eq!(plan.context, Tokens(32_768));

                let chunk = plan.chunk.0;
                let borders =
                    (0..=16_384 / chunk).flat_map(|n| (n * chunk).saturating_sub(2)..=n * chunk + 2);
                let reported = [1, 1900, 2400, 3000, 3800, 4800, 5120, 6000, 7140, 9000, 13_000, 16_384];
                for prompt in borders.chain(reported).filter(|prompt| (1..=16_384).contains(prompt)) {
                    assert_served(&plan, prompt);
                }
            }
        }
    }
}

/// Strata 2090: a chunk too large to be lent from a small cache. Here nothing is lent: ring and activations are there
/// beside the slots, whatever their number.
#[test]
fn strata_2090() {
    let with = |cache| {
        let settings = Settings {
            context: Some(Tokens(16_384)),
            chunk: Some(Tokens(8192)),
            expert_cache: Some(ExpertCache::Slots(cache)),
            ..Settings::default()
        };
        accept(&STRATA, &machine(32 * GIB), &settings)
    };
    let (small, large) = (with(480), with(12_000));
    assert_eq!((small.chunk, large.chunk), (Tokens(8192), Tokens(8192)));
    assert_eq!(small.arena, large.arena);
    let ring = |plan: &Plan| plan.experts.as_ref().unwrap().ring_bytes();
    assert!(ring(&small) == ring(&large) && ring(&small) > Bytes(0));
    for prompt in [1, 255, 256, 257, 4096, 8191, 8192, 8193, 16_384] {
        assert_served(&small, prompt);
        assert_served(&large, prompt);
    }
}

/// colibri 855: 220 GB for experts and 35.2 GB for the rest made 251 of 256 GB, and the setting for memory did nothing.
#[test]
fn colibri_855() {
    let giant = Shape {
        layers: 92,
        hidden: 8192,
        kv_heads: 32,
        head_dim: 256,
        experts: Some((256, 8, 2560)),
        context: 131_072,
        ..QWEN3_30B
    };
    assert!(giant.weights().dense.0 > 32 * GIB, "about as much as reported: {}", giant.weights().dense);
    let cache = Some(ExpertCache::Bytes(Bytes(220_000_000_000)));
    let machine = machine(240_000_000_000);
    let settings = Settings { expert_cache: cache, context: Some(Tokens(8192)), ..Settings::default() };
    let plan = accept(&giant, &machine, &settings);
    assert!(sum(&plan) <= machine.memory.free.0);
    assert!(plan.reserve_bytes.0 > GIB, "page tables of so much memory alone are half of it");
    assert!(plan.experts.as_ref().unwrap().slot_bytes() < Bytes(220_000_000_000));
    assert!(
        plan.notes.iter().any(|note| note.starts_with("--expert-cache lowered from 205 GiB to ")),
        "{:?}",
        plan.notes
    );

    let memory = Some(Bytes(100_000_000_000));
    let bounded = accept(&giant, &machine, &Settings { memory, ..settings });
    assert!(sum(&bounded) <= 100_000_000_000);
    assert!(bounded.experts.unwrap().slots() < plan.experts.unwrap().slots());
}

/// lumabri 107: two caches, each sized on the same free memory.
#[test]
fn lumabri_107() {
    let settings = Settings {
        context: Some(Tokens(40_960)),
        parallel: Some(16),
        expert_cache: Some(ExpertCache::Bytes(Bytes(14 * GIB))),
        ..Settings::default()
    };
    let plan = accept(&QWEN3_30B, &machine(16 * GIB), &settings);
    let slots = plan.experts.as_ref().unwrap().slot_bytes();
    assert!(plan.kv_bytes.0 >= 3 * GIB && slots.0 > 5 * GIB);
    assert!(sum(&plan) <= 16 * GIB, "{:?}", plan.parts());
}

/// Crow 86: 62 slots of 64 gave 15 tokens a second, all 64 gave 115.
#[test]
fn crow_86() {
    let shape = Shape { experts: Some((64, 8, 1024)), ..QWEN3_30B };
    let with = |slots: usize, free| {
        let cache = Some(ExpertCache::Slots(slots * 48));
        accept(&shape, &machine(free), &Settings { expert_cache: cache, ..Settings::default() })
    };
    let raised = with(62, 32 * GIB);
    assert!(!raised.streams());
    assert_eq!(
        raised.notes,
        ["--expert-cache raised from 2976 to 3072: all experts fit, and then none is read again"]
    );
    let far = with(60, 32 * GIB);
    assert!(far.streams() && far.experts.unwrap().slots() == 60 * 48);
    // Where not all of them fit the number stays.
    let slots = with(62, 11_980 << 20);
    assert!(slots.streams() && slots.experts.as_ref().unwrap().slots() == 62 * 48, "{:?}", slots.notes);
}
