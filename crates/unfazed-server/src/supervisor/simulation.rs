//! Requests that kill engines among requests that do not, in simulated engines: who is failed, who is not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, mpsc};

use proptest::prelude::*;
use unfazed_wire::{FinishReason, RequestId, Sampling, Submit, Timings, ToEngine, ToFront, TokenEvent};

use super::cause::Cause;
use super::{Engine, Exit, Sequence};
use crate::http::metrics::Metrics;

const KILLED_FROM_OUTSIDE: Cause = Cause::Signal(9);

/// When a request kills its engine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kill {
    Never,
    /// When it is handed over.
    OnArrival,
    /// After so many of its steps in that engine.
    AfterSteps(usize),
    /// Before this step, counted over all engines.
    AtPosition(usize),
}

/// A request: prompt steps, then a step for each token.
#[derive(Clone, Copy, Debug)]
struct Request {
    prompt: usize,
    tokens: usize,
    kill: Kill,
    cause: Cause,
    /// Every other death looks different.
    fickle: bool,
    /// In steps from the start.
    arrival: usize,
}

impl Request {
    /// Whether it never gets beyond some position, given whether engines leave their KV pages.
    fn is_hopeless(&self, keeps_pages: bool) -> bool {
        match self.kill {
            Kill::Never => false,
            Kill::OnArrival => true,
            // Without its pages it does its prompt again each time, and never gets to its first token.
            Kill::AfterSteps(steps) => steps == 0 || (!keeps_pages && steps <= self.prompt),
            Kill::AtPosition(position) => position < self.prompt + self.tokens,
        }
    }
}

/// A request in an engine.
struct Running {
    request: RequestId,
    /// Steps in this engine.
    steps: usize,
    /// Prompt steps done.
    prefilled: usize,
    tokens: usize,
}

#[derive(Clone, Debug)]
struct World {
    requests: Vec<Request>,
    places: usize,
    keeps_pages: bool,
    /// Steps at which somebody outside kills the engine.
    outside: BTreeSet<usize>,
}

/// The front's real state over simulated engines.
struct Simulation<'a> {
    world: &'a World,
    engine: Engine,
    sequences: Vec<Sequence>,
    /// By request: prompt steps done by the engine that got furthest.
    prefilled: BTreeMap<RequestId, usize>,
    finished: BTreeSet<usize>,
    failed: BTreeSet<usize>,
    step: usize,
    deaths: usize,
}

/// The front's side of an engine, for so many requests.
pub(super) fn engine(capacity: usize) -> Engine {
    Engine::new(capacity, Arc::new(Metrics::new().unwrap()), Arc::new(|_| {}))
}

/// A request with a prompt of one token.
pub(super) fn submit(request: u64, tokens: usize) -> Submit {
    Submit {
        request: RequestId(request),
        prompt: vec![1],
        max_tokens: tokens,
        sampling: Sampling::default(),
        stop_tokens: Vec::new(),
        repeat_stop_tokens: 0,
        logprobs: None,
        prompt_logprobs: None,
        resumed: None,
    }
}

impl<'a> Simulation<'a> {
    fn new(world: &'a World) -> Simulation<'a> {
        Simulation {
            world,
            engine: engine(world.requests.len()),
            sequences: Vec::new(),
            prefilled: BTreeMap::new(),
            finished: BTreeSet::new(),
            failed: BTreeSet::new(),
            step: 0,
            deaths: 0,
        }
    }

    fn of(&self, request: RequestId) -> &'a Request {
        &self.world.requests[request.0 as usize]
    }

    fn all_ended(&self) -> bool {
        self.finished.len() + self.failed.len() == self.world.requests.len()
    }

    /// Runs engines until every request has ended.
    fn run(&mut self) {
        while !self.all_ended() {
            assert!(self.deaths < 1000, "no end: {:?} of {:?}", self.finished, self.world);
            let (link, inbox) = mpsc::channel();
            self.engine.shared.engine_ready(link);
            let Some(cause) = self.live(&inbox) else { return };
            self.deaths += 1;
            let aftermath = self.engine.shared.engine_died(cause, Exit::default());
            let ended = aftermath.ended.iter().map(|(record, _)| record.submit.request.0 as usize);
            self.failed.extend(ended);
        }
    }

    /// One engine; `None` once all requests have ended.
    fn live(&mut self, inbox: &mpsc::Receiver<ToEngine>) -> Option<Cause> {
        let (mut queue, mut running) = (VecDeque::new(), Vec::new());
        while !self.all_ended() {
            self.step += 1;
            self.arrive();
            for message in inbox.try_iter() {
                let ToEngine::Submit(submit) = message else { continue };
                if self.of(submit.request).kill == Kill::OnArrival {
                    return Some(self.cause(submit.request));
                }
                queue.push_back(submit);
            }
            while running.len() < self.world.places
                && let Some(submit) = queue.pop_front()
            {
                running.push(self.admit(&submit));
            }
            let waits = self.sequences.len() < self.world.requests.len();
            assert!(!running.is_empty() || waits, "an engine has nothing to do, and requests wait");
            if self.world.outside.contains(&self.step) {
                return Some(KILLED_FROM_OUTSIDE);
            }
            if let Some(killer) = running.iter().find(|running| self.kills(running)) {
                return Some(self.cause(killer.request));
            }
            running.retain_mut(|running| self.advance(running));
        }
        None
    }

    /// Submits the requests whose time has come, in order.
    fn arrive(&mut self) {
        while let Some(request) = self.world.requests.get(self.sequences.len())
            && request.arrival <= self.step
        {
            self.sequences.extend(self.engine.submit(vec![submit(0, request.tokens)]).unwrap());
        }
    }

    fn admit(&mut self, submit: &Submit) -> Running {
        let request = submit.request;
        self.engine.shared.dispatch(ToFront::Admitted { request, kept: 0, missing: 1 });
        let tokens = submit.resumed.as_ref().map_or(0, |progress| progress.tokens.len());
        let kept = self.prefilled.get(&request).copied().unwrap_or(0);
        let prefilled = if self.world.keeps_pages { kept } else { 0 };
        Running { request, steps: 0, prefilled, tokens }
    }

    fn kills(&self, running: &Running) -> bool {
        let position = running.prefilled
            + if running.prefilled < self.of(running.request).prompt { 0 } else { running.tokens };
        match self.of(running.request).kill {
            Kill::Never | Kill::OnArrival => false,
            Kill::AfterSteps(steps) => running.steps == steps,
            Kill::AtPosition(at) => position == at,
        }
    }

    fn cause(&self, request: RequestId) -> Cause {
        let request = self.of(request);
        if request.fickle && self.deaths.is_multiple_of(2) { Cause::Signal(4) } else { request.cause }
    }

    /// Does one step. False once the request has finished.
    fn advance(&mut self, running: &mut Running) -> bool {
        let (request, shared) = (running.request, &self.engine.shared);
        let Request { prompt, tokens, .. } = *self.of(request);
        running.steps += 1;
        if running.prefilled < prompt {
            running.prefilled += 1;
            let furthest = self.prefilled.entry(request).or_default();
            *furthest = running.prefilled.max(*furthest);
            shared.dispatch(ToFront::Prefill { request, done: running.prefilled, total: prompt });
            return true;
        }
        running.tokens += 1;
        shared.dispatch(ToFront::Tokens(vec![TokenEvent { request, token: 1, logprobs: None }]));
        if running.tokens < tokens {
            return true;
        }
        let timings = Timings::default();
        shared.dispatch(ToFront::Finished { request, reason: FinishReason::Length, timings });
        self.finished.insert(request.0 as usize);
        false
    }
}

fn request() -> impl Strategy<Value = Request> {
    let kill = prop_oneof![
        6 => Just(Kill::Never),
        1 => Just(Kill::OnArrival),
        2 => (0usize..4).prop_map(Kill::AfterSteps),
        2 => (0usize..6).prop_map(Kill::AtPosition),
    ];
    let cause = prop_oneof![Just(Cause::Signal(6)), Just(Cause::Code(1)), Just(Cause::Stalled)];
    (1usize..4, 1usize..6, kill, cause, prop::bool::weighted(0.2), 0usize..12).prop_map(
        |(prompt, tokens, kill, cause, fickle, arrival)| Request {
            prompt,
            tokens,
            kill,
            cause,
            fickle,
            arrival,
        },
    )
}

prop_compose! {
    fn world()(
        mut requests in prop::collection::vec(request(), 1..9),
        places in 1usize..5,
        keeps_pages in prop::bool::ANY,
        outside in prop::collection::btree_set(0usize..60, 0..12),
    ) -> World {
        requests.sort_by_key(|request| request.arrival);
        World { requests, places, keeps_pages, outside }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn requests_that_kill_engines_and_get_nowhere_are_failed_and_no_others(world in world()) {
        let mut simulation = Simulation::new(&world);
        simulation.run();
        for (number, request) in world.requests.iter().enumerate() {
            let failed = simulation.failed.contains(&number);
            prop_assert_eq!(failed, request.is_hopeless(world.keeps_pages), "request {}: {:?}", number, request);
            prop_assert_ne!(failed, simulation.finished.contains(&number));
        }
    }
}

#[test]
fn kills_from_outside_speak_against_nobody() {
    let innocent = Request {
        prompt: 1,
        tokens: 2,
        kill: Kill::Never,
        cause: Cause::Signal(6),
        fickle: false,
        arrival: 0,
    };
    let outside = (1..=100).collect();
    let world = World { requests: vec![innocent; 3], places: 2, keeps_pages: true, outside };
    let mut simulation = Simulation::new(&world);
    simulation.run();
    assert_eq!((simulation.finished.len(), simulation.deaths), (3, 100));
}
