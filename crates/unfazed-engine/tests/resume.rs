//! An engine may end at any moment: the next one goes on with what was told and with the pages that are good, and a
//! request's output is that of an undisturbed run.

#![allow(clippy::unwrap_used, clippy::panic)] // A test may.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::any::{any_limits, request};
use common::transcript::{Transcript, transcripts};
use common::{FakeDevice, Log, PAGE_BYTES, Pages, drain, engine, engine_on, limits, send, submit};
use proptest::prelude::*;
use unfazed_engine::kept::KeptPages;
use unfazed_engine::{Engine, Limits};
use unfazed_wire::memory::{Access, KvSegment, Mapping, Segment};
use unfazed_wire::{Progress, RequestId, Submit, ToFront};

/// What outlives an engine.
struct Memory {
    limits: Limits,
    pages: Pages,
    sizes: KvSegment,
    mapping: Arc<Mapping>,
    log: Log,
}

impl Memory {
    fn new(limits: Limits) -> Memory {
        let sizes = KvSegment { pages: limits.pages, page_bytes: 8 };
        let segment = Segment::create("a test", sizes.bytes().unwrap() as u64).unwrap();
        let mapping = Arc::new(Mapping::new(&segment, Access::Write).unwrap());
        Memory { limits, pages: FakeDevice::pages(limits), sizes, mapping, log: Log::default() }
    }

    fn engine(&self) -> Engine<FakeDevice> {
        let device = FakeDevice::over(self.limits, self.log.clone(), self.pages.clone());
        let kept = KeptPages::new(Arc::clone(&self.mapping), self.sizes, self.limits.page_tokens);
        engine_on(self.limits, device).with_kept_pages(kept)
    }

    /// Rows that were computed since the last call.
    fn rows(&self) -> usize {
        self.log.borrow_mut().drain(..).map(|batch| batch.rows.len()).sum()
    }
}

/// How an engine ends.
#[derive(Clone, Debug)]
struct Death {
    steps: usize,
    /// Messages of the last step that never arrive.
    lost: usize,
    /// After which step free pages are given up, and how many bytes of them.
    gives_up: Option<(usize, u64)>,
    /// A token of a page that is changed afterwards, and a word among the records.
    scribbled: Option<(prop::sample::Index, prop::sample::Index)>,
}

fn death() -> impl Strategy<Value = Death> {
    let index = any::<prop::sample::Index>;
    let scribbled = prop::option::weighted(0.3, (index(), index()));
    let gives_up = prop::option::weighted(0.5, (0usize..12, 0..10 * PAGE_BYTES as u64));
    (0usize..12, 0usize..4, gives_up, scribbled).prop_map(|(steps, lost, gives_up, scribbled)| Death {
        steps,
        lost,
        gives_up,
        scribbled,
    })
}

fn scribble(memory: &Memory, page: prop::sample::Index, word: prop::sample::Index) {
    let mut pages = memory.pages.borrow_mut();
    let page = page.get_mut(&mut pages);
    page[0] = page[0].wrapping_add(1);
    let words = memory.mapping.atomics_to_write(0, memory.limits.pages * 4).unwrap();
    word.get(words).fetch_xor(1 << 7, Ordering::Relaxed);
}

/// Merges what one engine said into what is known.
fn merge(known: &mut BTreeMap<RequestId, Transcript>, said: &[ToFront]) {
    for (request, new) in transcripts(said) {
        let all = known.entry(request).or_default();
        assert_eq!(all.end, None, "{request:?} ends twice");
        all.tokens.extend(new.tokens);
        all.logprobs.extend(new.logprobs);
        all.prompt_logprobs.extend(new.prompt_logprobs);
        all.end = new.end;
    }
}

/// What the front hands to the next engine.
fn resumed(submit: &Submit, known: &BTreeMap<RequestId, Transcript>) -> Submit {
    let known = known.get(&submit.request).cloned().unwrap_or_default();
    let prompt_logprobs = known.prompt_logprobs.len();
    Submit { resumed: Some(Progress { tokens: known.tokens, prompt_logprobs }), ..submit.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_ends_engines_the_output_is_that_of_an_undisturbed_run(
        limits in any_limits(),
        requests in prop::collection::vec(request(), 1..8),
        deaths in prop::collection::vec(death(), 1..8),
    ) {
        let memory = Memory::new(limits);
        let requests = (1..).zip(requests).map(|(id, submit)| Submit { request: RequestId(id), ..submit });
        let requests: Vec<Submit> = requests.collect();
        let mut known: BTreeMap<RequestId, Transcript> = BTreeMap::new();
        let open = |known: &BTreeMap<RequestId, Transcript>| -> Vec<Submit> {
            let ended = |id| known.get(id).is_some_and(|transcript: &Transcript| transcript.end.is_some());
            requests.iter().filter(|submit| !ended(&submit.request)).cloned().collect()
        };
        for (number, death) in deaths.iter().enumerate() {
            let mut engine = memory.engine();
            for submit in open(&known) {
                send(&mut engine, if number == 0 { submit } else { resumed(&submit, &known) });
            }
            let mut said = Vec::new();
            for step in 0..death.steps {
                let mut messages = engine.step();
                if step + 1 == death.steps {
                    messages.truncate(messages.len().saturating_sub(death.lost));
                }
                said.extend(messages);
                if let Some((_, bytes)) = death.gives_up.filter(|(after, _)| *after == step) {
                    engine.give_up_free_pages(bytes);
                }
            }
            merge(&mut known, &said);
            drop(engine);
            if let Some((page, word)) = death.scribbled {
                scribble(&memory, page, word);
            }
        }
        let mut last = memory.engine();
        open(&known).iter().for_each(|submit| send(&mut last, resumed(submit, &known)));
        merge(&mut known, &drain(&mut last));
        prop_assert_eq!(last.free_pages(), limits.pages);
        for request in &requests {
            let (mut alone, _) = engine(Limits { parallel: 1, chunk: 100, logit_rows: 100, ..limits });
            send(&mut alone, request.clone());
            let expected = &transcripts(&drain(&mut alone))[&request.request];
            let found = &known[&request.request];
            prop_assert_eq!(
                (&found.tokens, &found.logprobs, &found.end),
                (&expected.tokens, &expected.logprobs, &expected.end)
            );
            if found.end.is_some_and(|end| end.is_ok()) {
                prop_assert_eq!(&found.prompt_logprobs, &expected.prompt_logprobs);
            }
        }
    }
}

/// A request of 30 prompt tokens that has 10 of its 20.
fn half_done(memory: &Memory) -> (Submit, Vec<u32>) {
    let prompt: Vec<u32> = (0..30).collect();
    let submit = submit(1, &prompt, 20);
    let mut engine = memory.engine();
    send(&mut engine, submit.clone());
    let mut said = Vec::new();
    while transcripts(&said).get(&RequestId(1)).is_none_or(|transcript| transcript.tokens.len() < 10) {
        said.extend(engine.step());
    }
    let tokens = transcripts(&said)[&RequestId(1)].tokens.clone();
    memory.rows();
    (submit, tokens)
}

fn go_on(memory: &Memory, submit: &Submit, tokens: &[u32]) -> Transcript {
    let mut engine = memory.engine();
    let progress = Progress { tokens: tokens.to_vec(), prompt_logprobs: 0 };
    send(&mut engine, Submit { resumed: Some(progress), ..submit.clone() });
    let said = drain(&mut engine);
    transcripts(&said)[&submit.request].clone()
}

#[test]
fn what_is_in_the_pages_is_not_computed_again() {
    let memory = Memory::new(limits());
    let (submit, tokens) = half_done(&memory);
    let rest = go_on(&memory, &submit, &tokens);
    // Of 40 tokens the last has no keys and values yet.
    assert_eq!((rest.kept, rest.tokens.len()), (39, 10));
    assert_eq!(memory.rows(), 10);
}

#[test]
fn a_page_that_was_changed_is_computed_again_and_the_pages_before_it_are_not() {
    let memory = Memory::new(limits());
    let (submit, tokens) = half_done(&memory);
    let undisturbed = go_on(&Memory::new(limits()), &submit, &tokens);
    // Pages have 4 positions and are given out in order.
    memory.pages.borrow_mut()[3][1] += 1;
    let rest = go_on(&memory, &submit, &tokens);
    assert_eq!(rest.kept, 12);
    assert_eq!(rest.tokens, undisturbed.tokens);
}

#[test]
fn pages_are_of_no_use_to_a_request_with_other_tokens_or_to_one_that_is_new() {
    let memory = Memory::new(limits());
    let (submit, tokens) = half_done(&memory);
    let mut other = submit.clone();
    other.prompt[0] = 31;
    assert_eq!(go_on(&memory, &other, &tokens).kept, 0);
    let memory = Memory::new(limits());
    let (submit, _) = half_done(&memory);
    let mut engine = memory.engine();
    send(&mut engine, submit);
    assert_eq!(transcripts(&drain(&mut engine))[&RequestId(1)].kept, 0);
}

#[test]
fn free_pages_that_are_given_up_are_forgotten_and_those_of_sequences_stay() {
    let memory = Memory::new(limits());
    let mut engine = memory.engine();
    let ended = submit(1, &(0..20).rev().collect::<Vec<_>>(), 3);
    send(&mut engine, ended.clone());
    drain(&mut engine);
    let (submit, tokens) = half_done(&memory);
    let undisturbed = go_on(&Memory::new(limits()), &submit, &tokens);

    let mut engine = memory.engine();
    let resumed = |submit: &Submit, tokens: &[u32]| Submit {
        resumed: Some(Progress { tokens: tokens.to_vec(), prompt_logprobs: 0 }),
        ..submit.clone()
    };
    send(&mut engine, resumed(&submit, &tokens));
    let empty = |page: &Vec<u32>| page.iter().all(|token| *token == u32::MAX);
    let before = memory.pages.borrow().iter().filter(|page| !empty(page)).count();
    assert_eq!(engine.give_up_free_pages(u64::MAX), 0, "one waits that may find its own among them");
    let mut said = engine.step();
    let given = engine.give_up_free_pages(u64::MAX);
    assert_eq!(engine.give_up_free_pages(u64::MAX), 0);
    let left = memory.pages.borrow().iter().filter(|page| !empty(page)).count();
    // 41 positions at most of the one that runs, four to a page.
    assert_eq!((left, given), (10, ((before - left) * PAGE_BYTES) as u64));
    said.extend(drain(&mut engine));
    let rest = &transcripts(&said)[&submit.request];
    assert_eq!((rest.kept, &rest.tokens), (39, &undisturbed.tokens));
    // The other one finds nothing in the next engine, and says the same.
    let mut next = memory.engine();
    send(&mut next, resumed(&ended, &[]));
    assert_eq!(transcripts(&drain(&mut next))[&RequestId(1)].kept, 0);
}

#[test]
fn an_answer_that_had_come_to_repeat_itself_ends_without_a_step() {
    let memory = Memory::new(limits());
    let submit = Submit { repeat_stop_tokens: 6, ..submit(1, &[1, 2, 3], 20) };
    let rest = go_on(&memory, &submit, &[9, 5, 6, 5, 6, 5, 6]);
    assert!(rest.tokens.is_empty() && rest.end == Some(Ok(unfazed_wire::FinishReason::Repetition)));
    assert_eq!(memory.rows(), 0);
}

#[test]
fn a_request_that_was_complete_ends_without_a_step() {
    let memory = Memory::new(limits());
    let (submit, tokens) = half_done(&memory);
    let submit = Submit { max_tokens: 10, ..submit };
    let rest = go_on(&memory, &submit, &tokens);
    assert!(rest.tokens.is_empty() && rest.end == Some(Ok(unfazed_wire::FinishReason::Length)));
    assert_eq!(memory.rows(), 0);
}
