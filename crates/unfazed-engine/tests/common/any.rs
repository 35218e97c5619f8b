//! Any request, any limits.

use proptest::prelude::*;
use unfazed_engine::Limits;
use unfazed_wire::{Penalties, Sampling, Submit};

use super::{POISON, VOCAB, limits, submit};

pub fn sampling() -> impl Strategy<Value = Sampling> {
    let cuts = (0u32..6, prop_oneof![Just(1.0f32), 0.3f32..1.0], prop_oneof![Just(0.0f32), 0.0f32..0.3]);
    let penalty = prop_oneof![Just(0.0f32), 0.0f32..1.5];
    (prop_oneof![Just(0.0f32), 0.3f32..2.0], cuts, (penalty.clone(), penalty), any::<u64>()).prop_map(
        |(temperature, (top_k, top_p, min_p), (presence, frequency), seed)| {
            let penalties = Penalties { repetition: 1.0 + frequency, presence, frequency };
            Sampling { temperature, top_k, top_p, min_p, penalties, seed, ..Sampling::default() }
        },
    )
}

pub fn request() -> impl Strategy<Value = Submit> {
    let prompt = prop::collection::vec(0..VOCAB as u32 - 2, 1..30);
    let logprobs = || prop::option::weighted(0.3, 0u32..4);
    let poisoned = prop::bool::weighted(0.05);
    let stops = prop::collection::vec(0u32..30, 0..3);
    // A bias makes answers repeat themselves.
    let repeats = prop_oneof![4 => Just((0usize, None)), 1 => (0usize..9, prop::option::of(3.0f32..9.0))];
    (prompt, 0usize..20, sampling(), stops, logprobs(), logprobs(), poisoned, repeats).prop_map(
        |(
            mut prompt,
            max_tokens,
            mut sampling,
            stop_tokens,
            logprobs,
            prompt_logprobs,
            poisoned,
            repeats,
        )| {
            let (repeat_stop_tokens, bias) = repeats;
            sampling.logit_bias.extend(bias.map(|bias| (5, bias)));
            if poisoned {
                prompt.push(POISON);
            }
            let base = submit(0, &prompt, max_tokens);
            Submit { sampling, stop_tokens, repeat_stop_tokens, logprobs, prompt_logprobs, ..base }
        },
    )
}

pub fn any_limits() -> impl Strategy<Value = Limits> {
    (1usize..6, 1usize..40, 1usize..8, 12usize..30).prop_map(|(parallel, chunk, logit_rows, pages)| Limits {
        parallel,
        chunk,
        logit_rows,
        pages,
        ..limits()
    })
}
