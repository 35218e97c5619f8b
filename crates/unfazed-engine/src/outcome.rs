//! What a step has to tell: messages in the order that the front relies on (progress, tokens, ends).

use unfazed_wire::{
    Failure, FailureKind, FaultReport, FinishReason, RequestId, Timings, ToFront, TokenEvent, TokenLogprobs,
};

/// The messages of one step, and who ended in it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    progress: Vec<ToFront>,
    tokens: Vec<TokenEvent>,
    ends: Vec<ToFront>,
    ended: Vec<RequestId>,
}

impl Outcome {
    pub(crate) fn prefill(&mut self, request: RequestId, done: usize, total: usize) {
        self.progress.push(ToFront::Prefill { request, done, total });
    }

    pub(crate) fn prompt_logprobs(&mut self, request: RequestId, tokens: Vec<TokenLogprobs>) {
        if !tokens.is_empty() {
            self.progress.push(ToFront::PromptLogprobs { request, tokens });
        }
    }

    pub(crate) fn token(&mut self, event: TokenEvent) {
        self.tokens.push(event);
    }

    pub(crate) fn finish(&mut self, request: RequestId, reason: FinishReason, timings: Timings) {
        self.ends.push(ToFront::Finished { request, reason, timings });
        self.ended.push(request);
    }

    pub(crate) fn fail(&mut self, request: RequestId, kind: FailureKind, message: String) {
        self.ends.push(ToFront::Failed { request, failure: Failure { kind, message } });
        self.ended.push(request);
    }

    pub(crate) fn fault(&mut self, report: FaultReport) {
        self.progress.push(ToFront::Fault(report));
    }

    pub(crate) fn ended(&self) -> &[RequestId] {
        &self.ended
    }

    pub(crate) fn append_to(self, out: &mut Vec<ToFront>) {
        out.extend(self.progress);
        if !self.tokens.is_empty() {
            out.push(ToFront::Tokens(self.tokens));
        }
        out.extend(self.ends);
    }
}
