//! What was said about each request, without times.

use std::collections::BTreeMap;

use unfazed_device::Class;
use unfazed_wire::{FailureKind, FinishReason, RequestId, ToFront, TokenLogprobs};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<TokenLogprobs>,
    pub prompt_logprobs: Vec<TokenLogprobs>,
    pub prefilled: usize,
    /// Positions found in an earlier engine's pages.
    pub kept: usize,
    pub end: Option<Result<FinishReason, FailureKind>>,
}

/// Sorts messages by request; panics if anything is said after a request's end or progress goes back.
pub fn transcripts(messages: &[ToFront]) -> BTreeMap<RequestId, Transcript> {
    let mut all: BTreeMap<RequestId, Transcript> = BTreeMap::new();
    let mut of = |request: RequestId, change: &dyn Fn(&mut Transcript)| {
        let transcript = all.entry(request).or_default();
        assert_eq!(transcript.end, None, "something was said about {request:?} after its end");
        change(transcript);
    };
    for message in messages {
        match message {
            ToFront::Admitted { request, kept, .. } => of(*request, &|t| t.kept = *kept),
            ToFront::Prefill { request, done, .. } => of(*request, &|t| {
                assert!(*done > t.prefilled);
                t.prefilled = *done;
            }),
            ToFront::PromptLogprobs { request, tokens } => {
                of(*request, &|t| t.prompt_logprobs.extend(tokens.clone()));
            }
            ToFront::Tokens(events) => {
                for event in events {
                    of(event.request, &|t| {
                        t.tokens.push(event.token);
                        t.logprobs.extend(event.logprobs.clone());
                    });
                }
            }
            ToFront::Finished { request, reason, .. } => of(*request, &|t| t.end = Some(Ok(*reason))),
            ToFront::Failed { request, failure } => of(*request, &|t| t.end = Some(Err(failure.kind))),
            // Results that are not finite are computed twice.
            ToFront::Fault(report) if report.class == Class::NonFinite => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    all
}
