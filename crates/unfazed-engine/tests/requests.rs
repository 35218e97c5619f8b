//! What a single request gets, and how requests share steps.

#![allow(clippy::unwrap_used, clippy::panic)] // A test may.

mod common;

use common::transcript::transcripts;
use common::{BREAKS, LOST, POISON, VOCAB, drain, engine, limits, logits_after, send, submit};
use unfazed_engine::Limits;
use unfazed_wire::{FailureKind, FinishReason, Penalties, RequestId, Sampling, Submit, ToEngine, ToFront};

const GREEDY: Sampling = Sampling {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    penalties: Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 },
    logit_bias: Vec::new(),
    seed: 0,
    choice: 0,
};

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().copied().fold(f32::MIN, f32::max);
    logits.iter().position(|&logit| logit == best).unwrap() as u32
}

fn greedy(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        tokens.push(argmax(&logits_after(&tokens)));
    }
    tokens.split_off(prompt.len())
}

fn failure(messages: &[ToFront]) -> (FailureKind, String) {
    let messages = messages.iter().filter(|message| !matches!(message, ToFront::Admitted { .. }));
    match &messages.collect::<Vec<_>>()[..] {
        [ToFront::Failed { failure, .. }] => (failure.kind, failure.message.clone()),
        other => panic!("{other:?} is not one failure"),
    }
}

#[test]
fn a_greedy_answer_is_the_chain_of_most_likely_tokens() {
    let (mut engine, _) = engine(limits());
    send(&mut engine, Submit { sampling: GREEDY, ..submit(1, &[3, 1, 4, 1, 5], 9) });
    let all = transcripts(&drain(&mut engine));
    assert_eq!(all[&RequestId(1)].tokens, greedy(&[3, 1, 4, 1, 5], 9));
    assert_eq!(all[&RequestId(1)].end, Some(Ok(FinishReason::Length)));
}

#[test]
fn a_stop_token_ends_the_answer_and_is_not_part_of_it() {
    let chain = greedy(&[9], 6);
    let (mut engine, _) = engine(limits());
    let at = (1..6).find(|&i| !chain[..i].contains(&chain[i])).unwrap();
    send(&mut engine, Submit { sampling: GREEDY, stop_tokens: vec![chain[at]], ..submit(1, &[9], 6) });
    let all = transcripts(&drain(&mut engine));
    assert_eq!(all[&RequestId(1)].tokens, chain[..at]);
    assert_eq!(all[&RequestId(1)].end, Some(Ok(FinishReason::Stop)));
}

/// A token that is chosen whatever comes before it.
fn always(token: u32) -> Sampling {
    Sampling { logit_bias: vec![(token, 100.0)], ..GREEDY }
}

#[test]
fn an_answer_that_says_the_same_again_and_again_ends_with_a_reason_of_its_own() {
    let (mut engine, _) = engine(limits());
    let submit = |id, prompt: &[u32], max_tokens, repeat_stop_tokens| Submit {
        sampling: always(4),
        repeat_stop_tokens,
        ..submit(id, prompt, max_tokens)
    };
    // What the prompt repeats does not count.
    send(&mut engine, submit(1, &[4; 12], 20, 9));
    send(&mut engine, submit(2, &[1], 20, 0));
    send(&mut engine, submit(3, &[1], 9, 9));
    send(&mut engine, submit(4, &[1], 8, 9));
    let all = transcripts(&drain(&mut engine));
    let ends = [1, 2, 3, 4].map(|id| {
        let transcript = &all[&RequestId(id)];
        (transcript.tokens.len(), transcript.end.unwrap().unwrap())
    });
    let (repetition, length) = (FinishReason::Repetition, FinishReason::Length);
    assert_eq!(ends, [(9, repetition), (20, length), (9, repetition), (8, length)]);
}

#[test]
fn max_tokens_zero_computes_the_prompt_and_no_logits() {
    let (mut engine, log) = engine(limits());
    send(&mut engine, submit(1, &[1, 2, 3], 0));
    let all = transcripts(&drain(&mut engine));
    assert!(all[&RequestId(1)].tokens.is_empty());
    assert_eq!(all[&RequestId(1)].prefilled, 3);
    assert_eq!(all[&RequestId(1)].end, Some(Ok(FinishReason::Length)));
    assert!(log.borrow().iter().flat_map(|batch| &batch.rows).all(|row| !row.logits));
}

#[test]
fn prompt_logprobs_are_of_each_token_but_the_first_in_order_with_chunks_of_any_size() {
    let prompt: Vec<u32> = (0..30).map(|i| i * 7 % 31).collect();
    for (chunk, logit_rows) in [(1, 1), (7, 3), (64, 8), (64, 64)] {
        let (mut engine, _) = engine(Limits { chunk, logit_rows, ..limits() });
        send(&mut engine, Submit { prompt_logprobs: Some(2), ..submit(1, &prompt, 0) });
        let all = transcripts(&drain(&mut engine));
        let got = &all[&RequestId(1)].prompt_logprobs;
        assert_eq!(got.iter().map(|l| l.token).collect::<Vec<_>>(), prompt[1..]);
        for (position, logprobs) in got.iter().enumerate() {
            let logits = logits_after(&prompt[..=position]);
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let expected = f64::from(logits[logprobs.token as usize]) - total.ln();
            assert!((f64::from(logprobs.logprob) - expected).abs() < 1e-5);
            assert_eq!(logprobs.top[0].0, argmax(&logits));
            assert_eq!(logprobs.top.len(), 2);
        }
    }
}

#[test]
fn the_context_ends_an_answer_with_length() {
    let (mut engine, _) = engine(Limits { context: 10, ..limits() });
    send(&mut engine, submit(1, &[1; 6], 100));
    send(&mut engine, submit(2, &[1; 10], 100));
    let all = transcripts(&drain(&mut engine));
    for (id, count) in [(1, 4), (2, 0)] {
        let transcript = &all[&RequestId(id)];
        assert_eq!((transcript.tokens.len(), transcript.end), (count, Some(Ok(FinishReason::Length))));
    }
}

#[test]
fn requests_that_cannot_be_served_are_refused_by_name() {
    let refused = |submit: Submit| {
        let (mut engine, log) = engine(Limits { pages: 5, ..limits() });
        send(&mut engine, submit);
        let (kind, message) = failure(&drain(&mut engine));
        assert_eq!(kind, FailureKind::InvalidRequest);
        assert!(log.borrow().is_empty());
        message
    };
    assert!(refused(submit(1, &[], 5)).contains("prompt is empty"));
    assert!(refused(submit(1, &[3, VOCAB as u32], 5)).contains("token 40 at position 1"));
    assert!(refused(submit(1, &[1; 65], 5)).contains("65 tokens, the context holds 64"));
    assert!(refused(submit(1, &[1; 15], 7)).contains("21 positions need 6 KV pages and there are 5"));
    assert!(refused(Submit { logprobs: Some(5000), ..submit(1, &[1], 1) }).contains("logprobs is 5000"));
    let sampling = Sampling { top_p: f32::NAN, ..Sampling::default() };
    assert!(refused(Submit { sampling, ..submit(1, &[1], 1) }).contains("top_p is NaN"));
}

#[test]
fn a_number_in_use_is_refused_and_its_owner_goes_on() {
    let (mut engine, _) = engine(limits());
    send(&mut engine, Submit { sampling: GREEDY, ..submit(1, &[5], 4) });
    let mut said = engine.step();
    send(&mut engine, submit(1, &[6], 1));
    let refusal = engine.step();
    assert!(matches!(&refusal[0], ToFront::Failed { failure, .. } if failure.message.contains("request 1")));
    said.extend_from_slice(&refusal[1..]);
    said.extend(drain(&mut engine));
    assert_eq!(transcripts(&said)[&RequestId(1)].tokens, greedy(&[5], 4));
}

#[test]
fn logits_that_are_not_finite_fail_their_request_alone() {
    let (mut engine, _) = engine(limits());
    send(&mut engine, Submit { sampling: GREEDY, ..submit(1, &[5, 6], 4) });
    send(&mut engine, submit(2, &[5, POISON], 4));
    let said = drain(&mut engine);
    let all = transcripts(&said);
    assert_eq!(all[&RequestId(2)].end, Some(Err(FailureKind::NonfiniteLogits)));
    assert_eq!(all[&RequestId(1)].tokens, greedy(&[5, 6], 4));
    assert_eq!(engine.free_pages(), limits().pages);
}

#[test]
fn weights_that_cannot_be_read_fail_the_request_that_needs_them_alone_and_leave_nothing_behind() {
    let (mut engine, log) = engine(limits());
    send(&mut engine, Submit { sampling: GREEDY, ..submit(1, &[5, 6], 4) });
    send(&mut engine, submit(2, &[5, LOST, 7], 4));
    send(&mut engine, Submit { sampling: GREEDY, ..submit(3, &[8, 9], 4) });
    let said = drain(&mut engine);
    assert!(log.borrow().iter().any(|step| step.sequences.len() == 3), "they shared a step");
    let message = said.iter().find_map(|message| match message {
        ToFront::Failed { request: RequestId(2), failure } => Some(failure.message.as_str()),
        _ => None,
    });
    assert_eq!(message, Some("model.gguf: lost by the test"));
    let all = transcripts(&said);
    assert_eq!(all[&RequestId(2)].end, Some(Err(FailureKind::Storage)));
    assert!(all[&RequestId(2)].tokens.is_empty());
    assert_eq!(all[&RequestId(1)].tokens, greedy(&[5, 6], 4));
    assert_eq!(all[&RequestId(3)].tokens, greedy(&[8, 9], 4));
    assert_eq!(engine.free_pages(), limits().pages);
}

#[test]
fn a_step_that_fails_fails_its_requests_and_the_engine_goes_on() {
    let (mut engine, _) = engine(limits());
    send(&mut engine, submit(1, &[5, BREAKS], 4));
    let (kind, message) = failure(&drain(&mut engine));
    assert_eq!(kind, FailureKind::Engine);
    assert!(message.contains("broken by the test"));
    send(&mut engine, Submit { sampling: GREEDY, ..submit(2, &[5], 2) });
    assert_eq!(transcripts(&drain(&mut engine))[&RequestId(2)].tokens, greedy(&[5], 2));
    assert_eq!(engine.free_pages(), limits().pages);
}

#[test]
fn a_long_prompt_stalls_neither_answers_nor_short_prompts() {
    let limits = Limits { context: 2000, chunk: 64, pages: 1000, ..limits() };
    let (mut engine, log) = engine(limits);
    send(&mut engine, submit(1, &[1], 30));
    engine.step();
    send(&mut engine, submit(2, &[2; 1000], 1));
    for _ in 0..5 {
        let said = engine.step();
        assert!(
            said.iter().any(|m| matches!(m, ToFront::Tokens(events) if events[0].request == RequestId(1)))
        );
    }
    send(&mut engine, submit(3, &[3; 12], 1));
    let said = engine.step();
    let done = |m: &ToFront| matches!(m, ToFront::Finished { request: RequestId(3), .. });
    assert!(said.iter().any(done), "the short prompt was not computed beside the long one: {said:?}");
    for batch in &log.borrow()[1..] {
        assert!((2..=33).contains(&batch.rows.len()), "{} rows beside an answer", batch.rows.len());
    }
}

#[test]
fn a_prompt_alone_gets_the_whole_chunk() {
    let (mut engine, log) = engine(limits());
    send(&mut engine, submit(1, &[2; 40], 1));
    drain(&mut engine);
    let rows: Vec<usize> = log.borrow().iter().map(|batch| batch.rows.len()).collect();
    assert_eq!(rows, [16, 16, 8]);
}

#[test]
fn several_short_prompts_share_a_step() {
    let (mut engine, log) = engine(limits());
    for id in 0..4 {
        send(&mut engine, submit(id, &[id as u32; 4], 1));
    }
    drain(&mut engine);
    assert_eq!(log.borrow().len(), 1);
    assert_eq!(log.borrow()[0].sequences.len(), 4);
}

#[test]
fn a_cancelled_request_frees_its_place_within_one_step_wherever_it_is() {
    // One place: the second request runs only once the first is gone.
    let limits = Limits { parallel: 1, chunk: 4, ..limits() };
    for steps_before in [0, 1, 6] {
        let (mut engine, log) = engine(limits);
        send(&mut engine, submit(1, &[1; 10], 20));
        send(&mut engine, submit(2, &[2; 3], 1));
        (0..steps_before).for_each(|_| drop(engine.step()));
        engine.handle(ToEngine::Cancel(RequestId(1)));
        let said = engine.step();
        assert!(said.iter().any(|m| matches!(m, ToFront::Finished { request: RequestId(2), .. })));
        assert_eq!(log.borrow().len(), steps_before + 1);
        assert!(engine.idle());
        assert_eq!(engine.free_pages(), limits.pages);
    }
    let (mut engine, _) = engine(limits);
    send(&mut engine, submit(1, &[1; 3], 2));
    send(&mut engine, submit(2, &[2; 3], 1));
    engine.step();
    engine.handle(ToEngine::Cancel(RequestId(2)));
    engine.handle(ToEngine::Cancel(RequestId(77)));
    assert_eq!(transcripts(&drain(&mut engine)).keys().collect::<Vec<_>>(), [&RequestId(1)]);
}

#[test]
fn a_request_that_needs_many_pages_is_not_overtaken() {
    let limits = Limits { pages: 10, ..limits() };
    let (mut engine, _) = engine(limits);
    send(&mut engine, submit(1, &[1; 20], 4));
    send(&mut engine, submit(2, &[2; 30], 1));
    send(&mut engine, submit(3, &[3; 4], 1));
    let said = drain(&mut engine);
    let ends: Vec<RequestId> = said
        .iter()
        .filter_map(|m| if let ToFront::Finished { request, .. } = m { Some(*request) } else { None })
        .collect();
    assert_eq!(ends[0], RequestId(1));
    assert_eq!(ends.len(), 3);
    let first = said.iter().position(|m| matches!(m, ToFront::Prefill { request: RequestId(2), .. }));
    let third = said.iter().position(|m| matches!(m, ToFront::Prefill { request: RequestId(3), .. }));
    assert!(first < third);
}

#[test]
fn timings_count_the_queue_the_prompt_and_the_answer() {
    let limits = Limits { parallel: 1, ..limits() };
    let (mut engine, _) = engine(limits);
    send(&mut engine, submit(1, &[1; 20], 3));
    send(&mut engine, submit(2, &[1; 5], 2));
    let timings: Vec<_> = drain(&mut engine)
        .into_iter()
        .filter_map(|m| if let ToFront::Finished { timings, .. } = m { Some(timings) } else { None })
        .collect();
    assert_eq!((timings[0].prompt_tokens, timings[0].predicted_tokens), (20, 3));
    assert_eq!((timings[1].prompt_tokens, timings[1].predicted_tokens), (5, 2));
    // Two prompt steps and two for the rest of the answer, two ticks each; the second waits for all of that.
    assert_eq!((timings[0].prompt_ms, timings[0].predicted_ms), (4.0, 4.0));
    assert_eq!((timings[0].queue_ms, timings[1].queue_ms), (2.0, 10.0));
}

#[test]
fn shutdown_lets_what_was_accepted_end_and_refuses_the_rest() {
    let (mut engine, _) = engine(Limits { parallel: 1, ..limits() });
    send(&mut engine, submit(1, &[1; 20], 3));
    send(&mut engine, submit(2, &[1; 20], 3));
    engine.step();
    engine.handle(ToEngine::Shutdown);
    send(&mut engine, submit(3, &[1], 1));
    assert!(!engine.finished());
    let all = transcripts(&drain(&mut engine));
    assert_eq!(all[&RequestId(1)].end, Some(Ok(FinishReason::Length)));
    assert_eq!(all[&RequestId(2)].end, Some(Ok(FinishReason::Length)));
    assert_eq!(all[&RequestId(3)].end, Some(Err(FailureKind::Engine)));
    assert!(engine.finished());
}
