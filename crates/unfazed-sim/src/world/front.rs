//! What a front does, in a few lines, and what a client checks: every request ends once, with the tokens of an undisturbed
//! run.

use std::collections::BTreeMap;

use unfazed_fault::{Class, Origin};
use unfazed_wire::{Progress, RequestId, Submit, ToEngine, ToFront};

/// A request and what its client has seen of it.
#[derive(Debug)]
struct Client {
    submit: Submit,
    tokens: Vec<u32>,
    begun: bool,
    ended: bool,
}

/// All requests.
#[derive(Debug)]
pub(super) struct Front {
    clients: BTreeMap<RequestId, Client>,
    /// What clients must see, once it is known.
    expected: Option<BTreeMap<RequestId, Vec<u32>>>,
    /// Faults that the engine's device has not overcome.
    pub(super) troubles: Vec<(Class, u32)>,
}

impl Front {
    pub(super) fn new(submits: Vec<Submit>, expected: Option<BTreeMap<RequestId, Vec<u32>>>) -> Front {
        let client = |submit: Submit| {
            (submit.request, Client { submit, tokens: Vec::new(), begun: false, ended: false })
        };
        let clients = submits.into_iter().map(client).collect();
        Front { clients, expected, troubles: Vec::new() }
    }

    /// What an engine that begins must know: all that has not ended.
    pub(super) fn hand_over(&self) -> Vec<ToEngine> {
        let unfinished = self.clients.values().filter(|client| !client.ended);
        let submit = |client: &Client| {
            let progress = || Progress { tokens: client.tokens.clone(), prompt_logprobs: 0 };
            let resumed = client.begun.then(progress);
            ToEngine::Submit(Box::new(Submit { resumed, ..client.submit.clone() }))
        };
        unfinished.map(submit).collect()
    }

    /// Every request has ended.
    pub(super) fn is_done(&self) -> bool {
        self.clients.values().all(|client| client.ended)
    }

    /// What clients saw.
    pub(super) fn answers(self) -> BTreeMap<RequestId, Vec<u32>> {
        self.clients.into_iter().map(|(request, client)| (request, client.tokens)).collect()
    }

    /// Takes a message in; what it breaks of the promise.
    pub(super) fn hear(&mut self, message: &ToFront) -> Result<(), String> {
        match message {
            ToFront::Admitted { request, .. } => self.client(*request)?.begun = true,
            ToFront::Tokens(tokens) => {
                for event in tokens {
                    self.token(event.request, event.token)?;
                }
            }
            ToFront::Finished { request, .. } => {
                self.client(*request)?.ended = true;
                self.check_end(*request)?;
            }
            ToFront::Failed { request, failure } => {
                return Err(format!("request {} failed: {}", request.0, failure.message));
            }
            ToFront::Fault(report) if report.class.origin() == Origin::Device => {
                self.troubles.retain(|(class, _)| *class != report.class);
                self.troubles.push((report.class, report.attempt));
            }
            _ => {}
        }
        Ok(())
    }

    fn token(&mut self, request: RequestId, token: u32) -> Result<(), String> {
        let client = self.client(request)?;
        let at = client.tokens.len();
        client.tokens.push(token);
        let expected = self.expected.as_ref().and_then(|all| all.get(&request));
        match expected.map(|tokens| tokens.get(at)) {
            None => Ok(()),
            Some(Some(&right)) if right == token => Ok(()),
            Some(right) => Err(format!("request {}: token {at} is {token} instead of {right:?}", request.0)),
        }
    }

    fn check_end(&self, request: RequestId) -> Result<(), String> {
        let Some(expected) = self.expected.as_ref().and_then(|all| all.get(&request)) else { return Ok(()) };
        let got = self.clients.get(&request).map_or(0, |client| client.tokens.len());
        match got == expected.len() {
            true => Ok(()),
            false => Err(format!("request {}: ended after {got} of {} tokens", request.0, expected.len())),
        }
    }

    /// A request that has not ended.
    fn client(&mut self, request: RequestId) -> Result<&mut Client, String> {
        let client = self.clients.get_mut(&request).filter(|client| !client.ended);
        client.ok_or_else(|| format!("request {}: news after its end", request.0))
    }
}
