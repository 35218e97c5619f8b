//! Whatever comes in whatever order: each request ends once, no page is lost, and a request's output is that of the
//! same request alone.

#![allow(clippy::unwrap_used, clippy::panic)] // A test may.

mod common;

use std::collections::BTreeSet;

use common::any::{any_limits, request};
use common::transcript::transcripts;
use common::{drain, engine, send};
use proptest::prelude::*;
use unfazed_engine::Limits;
use unfazed_wire::{FailureKind, RequestId, Submit, ToEngine};

#[derive(Clone, Debug)]
enum Action {
    Submit(Submit),
    /// Cancels one of the requests so far.
    Cancel(prop::sample::Index),
    Steps(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => request().prop_map(Action::Submit),
        1 => any::<prop::sample::Index>().prop_map(Action::Cancel),
        3 => (1usize..6).prop_map(Action::Steps),
    ]
}

fn numbered(actions: Vec<Action>) -> Vec<Action> {
    let mut next = 0;
    let mut number = |action| match action {
        Action::Submit(submit) => {
            next += 1;
            Action::Submit(Submit { request: RequestId(next), ..submit })
        }
        other => other,
    };
    actions.into_iter().map(&mut number).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn each_request_ends_once_with_the_output_it_has_alone_and_no_page_is_lost(
        limits in any_limits(),
        actions in prop::collection::vec(action(), 1..25).prop_map(numbered),
    ) {
        let (mut shared, _) = engine(limits);
        let (mut said, mut submits, mut cancelled) = (Vec::new(), Vec::new(), BTreeSet::new());
        for action in actions {
            match action {
                Action::Submit(request) => {
                    submits.push(request.clone());
                    send(&mut shared, request);
                }
                Action::Cancel(index) if !submits.is_empty() => {
                    let request = index.get(&submits).request;
                    let known = transcripts(&said);
                    let ended = known.get(&request).is_some_and(|transcript| transcript.end.is_some());
                    shared.handle(ToEngine::Cancel(request));
                    if !ended {
                        cancelled.insert(request);
                    }
                }
                Action::Cancel(_) => {}
                Action::Steps(count) => (0..count).for_each(|_| said.extend(shared.step())),
            }
        }
        said.extend(drain(&mut shared));
        prop_assert_eq!(shared.free_pages(), limits.pages);
        let shared = transcripts(&said);
        for request in &submits {
            let (mut alone, _) = engine(Limits { parallel: 1, chunk: 100, logit_rows: 100, ..limits });
            send(&mut alone, request.clone());
            let alone = transcripts(&drain(&mut alone));
            let expected = &alone[&request.request];
            prop_assert!(expected.end.is_some());
            match shared.get(&request.request) {
                Some(found) if !cancelled.contains(&request.request) => prop_assert_eq!(
                    (&found.tokens, &found.logprobs, &found.end),
                    (&expected.tokens, &expected.logprobs, &expected.end)
                ),
                Some(found) => {
                    prop_assert_eq!(found.end, None);
                    prop_assert!(expected.tokens.starts_with(&found.tokens));
                }
                None => prop_assert!(cancelled.contains(&request.request)),
            }
            if let Some(found) = shared.get(&request.request) {
                prop_assert!(
                    expected.prompt_logprobs.starts_with(&found.prompt_logprobs)
                        || matches!(
                            expected.end,
                            Some(Err(FailureKind::NonfiniteLogits | FailureKind::Storage))
                        )
                );
                if found.end.is_some_and(|end| end.is_ok()) {
                    prop_assert_eq!(&found.prompt_logprobs, &expected.prompt_logprobs);
                    prop_assert_eq!(found.prefilled, request.prompt.len());
                }
            }
        }
    }
}
