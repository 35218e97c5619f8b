//! An engine that gives its memory up while it answers says the same tokens.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic)] // A test may.

use std::path::Path;

use unfazed_engine::local::{self, Local};
use unfazed_engine::pressure::give_up;
use unfazed_formats::Checkpoint;
use unfazed_plan::machine::Pool;
use unfazed_plan::settings::{ExpertCache, Settings, StreamExperts};
use unfazed_plan::{Bytes, Machine, Plan, Tokens, Weights, plan};
use unfazed_wire::{RequestId, Sampling, Submit, Threads, ToEngine, ToFront};

/// The demo model with experts that are streamed, in slots for half of them.
fn engine() -> (Local, Plan) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-moe-29m-Q4_0.gguf");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let experts = checkpoint.config.experts.unwrap();
    let settings = Settings {
        context: Some(Tokens(256)),
        parallel: Some(4),
        expert_cache: Some(ExpertCache::Slots(checkpoint.config.layers * experts.count / 2)),
        stream_experts: StreamExperts::On,
        ..Settings::default()
    };
    let free = Bytes(2 << 30);
    let memory = Pool { total: free, free, ..Pool::default() };
    let machine = Machine { memory, cores: 2, most_threads: 2, ..Machine::default() };
    let weights = Weights::of(&checkpoint.config, checkpoint.tensors.values());
    let plan = plan(&checkpoint.config, &weights, &machine, &settings).unwrap();
    let engine = local::load(&checkpoint, &plan, &Threads::from(2), None, &|_, _| ()).unwrap();
    (engine, plan)
}

fn submit(id: u64) -> ToEngine {
    ToEngine::Submit(Box::new(Submit {
        request: RequestId(id),
        prompt: vec![1, 4093, 198, 6403, 1980, 253],
        max_tokens: 40,
        sampling: Sampling { seed: id, ..Sampling::default() },
        stop_tokens: Vec::new(),
        repeat_stop_tokens: 0,
        logprobs: Some(3),
        prompt_logprobs: None,
        resumed: None,
    }))
}

/// Tokens and log probabilities of requests that are computed side by side, when this is done after each step.
fn answers(
    local: &mut Local,
    requests: std::ops::Range<u64>,
    mut after: impl FnMut(&mut Local, usize),
) -> Vec<String> {
    requests.for_each(|id| local.engine.handle(submit(id)));
    let (mut tokens, mut step) = (Vec::new(), 0);
    while !local.engine.idle() {
        for message in local.engine.step() {
            match message {
                ToFront::Tokens(events) => tokens.extend(events.iter().map(|event| format!("{event:?}"))),
                ToFront::Failed { failure, .. } => panic!("{failure:?}"),
                _ => {}
            }
        }
        after(local, step);
        step += 1;
    }
    tokens.sort();
    tokens
}

#[test]
fn answers_are_the_same_to_the_last_bit_while_memory_is_given_up_and_taken_again() {
    let (mut local, plan) = engine();
    let experts = plan.experts.as_ref().unwrap();
    let undisturbed = answers(&mut local, 1..4, |_, _| ());
    assert_eq!(undisturbed.len(), 3 * 40);

    let store = local.experts.clone().unwrap();
    let slots = store.open_slots();
    assert!(slots > experts.least(), "{slots}");
    let first = give_up(&mut local.engine, Some(&store), 1);
    assert!(first.page_bytes > 0 && first.slots == 0, "free pages cost nothing: {first:?}");
    let mut given = 0;
    let disturbed = answers(&mut local, 1..4, |local, step| {
        if step % 3 == 0 {
            given += give_up(&mut local.engine, Some(&store), 200_000 * step as u64).bytes();
        } else if step % 5 == 0 {
            store.open_up(7);
        }
    });
    assert!(given > 0 && disturbed == undisturbed, "{given}");

    let rest = give_up(&mut local.engine, Some(&store), u64::MAX);
    assert_eq!(store.open_slots(), experts.least(), "what a token needs stays: {rest:?}");
    assert_eq!(give_up(&mut local.engine, Some(&store), u64::MAX).bytes(), 0);
    assert_eq!(answers(&mut local, 1..4, |_, _| ()), undisturbed);
    let counts = store.counts();
    assert_eq!(counts.closed as usize, slots - experts.least());
    assert!(counts.given_up >= counts.closed && counts.given_up_bytes > 0);
}
