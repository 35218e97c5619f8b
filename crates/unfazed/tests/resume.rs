//! The engine dies and hangs again and again under many streams, and no client can tell.
//!
//! `UNFAZED_RESUME_SEED` repeats a run's moments (but for the machine's own timing).

#![cfg(target_os = "linux")]
// A test ends by panicking; clippy's exemption covers test functions only, not what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "program/processes.rs"]
mod processes;
#[path = "program/streams.rs"]
mod streams;
#[path = "program/support.rs"]
mod support;

use std::collections::BTreeMap;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use unfazed_testkit::rng::Rng;

use processes::{children, runs, signal_to};
use streams::{Answer, Count, Stream, Tally};
use support::{PATIENCE, Server, until};

/// Small chunks make prefill last for many steps.
const SERVER: [&str; 8] =
    ["--context", "1024", "--parallel", "20", "--prefill-chunk", "32", "--stall-ms", "1500"];
/// Streams that begin while others run, with long prompts, each just before a kill.
const LATE: usize = 8;
const TOKENS: usize = 200;
/// Most blows before the engine has made a token again.
const BETWEEN_TOKENS: usize = 4;

/// What engines are killed by, in turn: the first says nothing about any request.
const SIGNALS: [Signal; 3] = [Signal::KILL, Signal::SEGV, Signal::ABORT];

/// How an engine ended, where that may speak against its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Signal(i32),
    Stalled,
}

/// When a blow is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// While tokens flow.
    Decode,
    /// After a stream with a long prompt was begun.
    Prefill,
    /// Once the engine's process is there.
    Loading,
    /// Once the engine is ready and has got all unfinished requests.
    Resuming,
    /// While tokens flow, by a signal that stops it: it hangs.
    Hang,
}

/// Blows of each kind: 50 kills and 10 hangs.
const BLOWS: [(Moment, usize); 5] = [
    (Moment::Decode, 20),
    (Moment::Prefill, LATE),
    (Moment::Loading, 14),
    (Moment::Resuming, 8),
    (Moment::Hang, 10),
];

#[test]
fn streams_whose_engine_is_killed_fifty_times_and_hangs_ten_times_equal_undisturbed_ones() {
    let seed =
        std::env::var("UNFAZED_RESUME_SEED").map_or_else(|_| random_seed(), |seed| seed.parse().unwrap());
    println!("UNFAZED_RESUME_SEED={seed}");
    let requests = requests(&mut Rng::new(seed, "requests", 0));

    let tally = Tally::default();
    let mut undisturbed_for = Duration::ZERO;
    let undisturbed = {
        let server = Server::start(&SERVER);
        thread::scope(|scope| {
            let start = Instant::now();
            let streams: Vec<_> =
                requests.iter().map(|request| request.follow(scope, &server, &tally)).collect();
            let answers = answers(streams);
            undisturbed_for = start.elapsed();
            answers
        })
    };
    for (answer, request) in undisturbed.iter().zip(&requests) {
        assert_eq!(answer.error, Value::Null, "{}", request.name);
        assert!(answer.choices.values().all(|choice| choice.finish_reason == "length"), "{}", request.name);
        assert_eq!(answer.usage["completion_tokens"], answer.choices.len() * TOKENS, "{}", request.name);
    }

    let count = tally.count();
    let server = Server::start(&SERVER);
    let disturbed = disturb(&server, &requests, &count, undisturbed_for, &mut Rng::new(seed, "blows", 0));
    for ((answer, expected), request) in disturbed.iter().zip(&undisturbed).zip(&requests) {
        answer.assert_equals(expected, &request.name);
    }
}

fn random_seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Something to ask for.
struct Request {
    name: String,
    path: &'static str,
    body: Value,
    /// What the server numbers its first choice, if requests are sent in their order.
    number: u64,
}

/// Sixteen chats, an `n` of 2 and an echoed completion. The last [`LATE`] have long prompts.
fn requests(rng: &mut Rng) -> Vec<Request> {
    let mut requests = vec![
        request(
            "a completion",
            "/v1/completions",
            json!({"prompt": words(rng, 100), "echo": true, "logprobs": 2}),
        ),
        request("two choices", "/v1/chat/completions", chat(&words(rng, 10), 2)),
    ];
    for at in 0..16 {
        let long = at >= 16 - LATE || at % 4 == 3;
        let count = if long { 300 + below(rng, 200) } else { 5 + below(rng, 20) };
        let prompt = words(rng, count);
        requests.push(request(&format!("chat {at}"), "/v1/chat/completions", chat(&prompt, 1)));
    }
    let mut number = 0;
    for request in &mut requests {
        request.number = number;
        number += request.body["n"].as_u64().unwrap_or(1);
        let body = request.body.as_object_mut().unwrap();
        body.insert("seed".to_owned(), json!(rng.word() >> 1));
        body.insert("temperature".to_owned(), json!(0.8));
        body.insert("max_tokens".to_owned(), json!(TOKENS));
        body.insert("ignore_eos".to_owned(), json!(true));
    }
    requests
}

fn request(name: &str, path: &'static str, body: Value) -> Request {
    Request { name: name.to_owned(), path, body, number: 0 }
}

fn chat(question: &str, choices: usize) -> Value {
    json!({
        "messages": [{"role": "user", "content": question}],
        "n": choices,
        "logprobs": true,
        "top_logprobs": 3,
    })
}

fn words(rng: &mut Rng, count: usize) -> String {
    const WORDS: [&str; 12] =
        ["rain", "a", "small", "cat", "runs", "over", "the", "old", "green", "hill", "and", "sleeps"];
    (0..count).map(|_| WORDS[below(rng, WORDS.len())]).collect::<Vec<_>>().join(" ")
}

fn below(rng: &mut Rng, end: usize) -> usize {
    (rng.word() % end as u64) as usize
}

fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for at in (1..items.len()).rev() {
        items.swap(at, below(rng, at + 1));
    }
}

impl Request {
    /// Begins the stream and has a thread follow it.
    fn follow<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        server: &Server,
        tally: &'scope Tally,
    ) -> ScopedJoinHandle<'scope, Answer> {
        let (stream, number) = (Stream::open(server, self.path, &self.body), self.number);
        scope.spawn(move || tally.follow(stream, number))
    }
}

fn answers(streams: Vec<ScopedJoinHandle<'_, Answer>>) -> Vec<Answer> {
    streams.into_iter().map(|stream| stream.join().unwrap()).collect()
}

/// The order of the blows. Late streams begin in the first half, so that they are there for the second.
fn plan(rng: &mut Rng) -> Vec<Moment> {
    let all = BLOWS.iter().flat_map(|(moment, count)| std::iter::repeat_n(*moment, *count));
    let (mut hasty, mut patient): (Vec<_>, Vec<_>) =
        all.partition(|moment| matches!(moment, Moment::Loading | Moment::Resuming));
    shuffle(rng, &mut hasty);
    let half = patient.len() / 2;
    patient.sort_by_key(|moment| *moment != Moment::Prefill);
    shuffle(rng, &mut patient[LATE..]);
    shuffle(rng, &mut patient[..half]);
    let mut runs: Vec<Vec<Moment>> = patient.into_iter().map(|moment| vec![moment]).collect();
    for moment in hasty {
        let mut open: Vec<_> = runs.iter_mut().filter(|run| run.len() < BETWEEN_TOKENS).collect();
        let at = below(rng, open.len());
        open[at].push(moment);
    }
    runs.concat()
}

/// Runs all requests, whose answers have the tokens of `whole` and take `undisturbed_for` by themselves, under all blows.
fn disturb(
    server: &Server,
    requests: &[Request],
    whole: &Count,
    undisturbed_for: Duration,
    rng: &mut Rng,
) -> Vec<Answer> {
    let tally = Tally::default();
    thread::scope(|scope| {
        let (early, late) = requests.split_at(requests.len() - LATE);
        let mut streams: Vec<_> = early.iter().map(|request| request.follow(scope, server, &tally)).collect();
        let begun = late[0].number;
        let mut late = late.iter();
        let mut disturber = Disturber::new(server, &tally, whole);
        disturber.begun = begun;
        let plan = plan(rng);
        // However fast the machine is, the streams outlast the blows: all delays together take half of their time.
        let share = undisturbed_for.as_micros() as usize / plan.len();
        for (at, moment) in plan.iter().enumerate() {
            // The streams have a quarter of their tokens before them at the last blow.
            let tokens = whole.tokens * 3 / 4 * at / plan.len();
            match moment {
                Moment::Loading => disturber.wait_for_process(),
                Moment::Resuming => disturber.wait_until_ready(),
                Moment::Decode | Moment::Prefill | Moment::Hang => {
                    disturber.wait_for_next_token();
                    tally.wait_for_tokens(tokens);
                }
            }
            if *moment == Moment::Prefill {
                let request = late.next().unwrap();
                streams.push(request.follow(scope, server, &tally));
                disturber.begun = request.number + 1;
            }
            let most = match moment {
                Moment::Loading => 5_000,
                Moment::Resuming => 15_000,
                Moment::Decode | Moment::Hang => 40_000,
                Moment::Prefill => 80_000,
            };
            thread::sleep(Duration::from_micros(below(rng, most.min(share).max(1)) as u64));
            assert!(tally.count().ended < requests.len(), "all streams had ended before blow {at}");
            disturber.strike(*moment);
        }
        disturber.wait_for_next_token();
        let answers = answers(streams);
        disturber.report(tally.count().tokens);
        answers
    })
}

/// Kills engines and watches what becomes of it.
struct Disturber<'a> {
    server: &'a Server,
    tally: &'a Tally,
    /// Tokens of whole answers.
    whole: &'a Count,
    engine: u32,
    /// When the last blow fell, and whether a token has come since.
    struck: Option<Instant>,
    /// Kills by each of [`SIGNALS`].
    kills: [usize; 3],
    hangs: usize,
    /// Choices with lower numbers have begun.
    begun: u64,
    /// For each choice, ends of ready engines in a row that may speak against it. The front sees progress in prompts too,
    /// so it never counts more.
    blame: BTreeMap<u64, Vec<Cause>>,
    /// Times from a kill to the next token.
    waits: Vec<Duration>,
    /// How often each event came.
    events: BTreeMap<String, usize>,
    /// Requests that this engine goes on with, and the tokens that they had.
    resumed: BTreeMap<u64, usize>,
    /// How often one was resumed before its first token.
    resumed_in_prefill: usize,
    ready: bool,
}

impl<'a> Disturber<'a> {
    fn new(server: &'a Server, tally: &'a Tally, whole: &'a Count) -> Disturber<'a> {
        Disturber {
            server,
            tally,
            whole,
            engine: server.engine(),
            struck: None,
            kills: [0; 3],
            hangs: 0,
            begun: 0,
            blame: BTreeMap::new(),
            waits: Vec::new(),
            events: BTreeMap::new(),
            resumed: BTreeMap::new(),
            resumed_in_prefill: 0,
            ready: true,
        }
    }

    /// Waits until the engine after the last one is there.
    fn wait_for_process(&mut self) {
        self.wait_for_event("engine_restart");
        let (front, dead) = (self.server.child.id(), self.engine);
        let next = || children(front).into_iter().find(|pid| *pid != dead);
        until("another engine is started", || next().is_some());
        self.engine = next().unwrap();
    }

    fn wait_until_ready(&mut self) {
        if !self.ready {
            self.wait_for_event("engine_ready");
        }
    }

    /// Waits for a token of the engine after the last one. Those that the last one had made may come later still.
    fn wait_for_next_token(&mut self) {
        self.wait_until_ready();
        let Some(struck) = self.struck.take() else { return };
        until("an engine makes tokens again", || {
            for event in self.server.past_events() {
                self.note(&event);
            }
            let count = self.tally.count();
            assert_eq!(count.failed, 0, "streams ended with errors");
            self.resumed.keys().any(|choice| self.gained(*choice, &count))
        });
        self.waits.push(struck.elapsed());
    }

    /// Whether this engine has given the choice a token.
    fn gained(&self, choice: u64, count: &Count) -> bool {
        // An echoed prompt is counted with the answer.
        let prompt = self.whole.of_choice[&choice] - TOKENS;
        let made = count.of_choice.get(&choice).map_or(0, |tokens| tokens.saturating_sub(prompt));
        self.resumed.get(&choice).is_some_and(|had| made > *had)
    }

    /// Whether no choice is a suspect after one more end like this: more in a row could be a request's own doing.
    fn is_harmless(&self, cause: Cause) -> bool {
        let count = self.tally.count();
        let unfinished = |choice: &u64| count.of_choice.get(choice) != self.whole.of_choice.get(choice);
        self.blame
            .iter()
            .filter(|(choice, _)| unfinished(choice) && !self.gained(**choice, &count))
            .all(|(_, causes)| causes.len() < 2 && causes.last() != Some(&cause))
    }

    /// Notes an engine's end.
    fn blame(&mut self, cause: Cause) {
        let count = self.tally.count();
        for choice in self.whole.of_choice.keys().filter(|choice| **choice < self.begun) {
            let gained = self.gained(*choice, &count);
            let causes = self.blame.entry(*choice).or_default();
            if gained {
                causes.clear();
            } else if self.ready && cause != Cause::Signal(Signal::KILL.as_raw()) {
                causes.push(cause);
            }
        }
    }

    fn strike(&mut self, moment: Moment) {
        self.find_engine();
        if moment == Moment::Hang {
            until("a hang is harmless", || {
                for event in self.server.past_events() {
                    self.note(&event);
                }
                self.is_harmless(Cause::Stalled)
            });
            self.hangs += 1;
            signal_to(self.engine, Signal::STOP);
            let exit = self.wait_for_event("engine_exit");
            assert_eq!(exit["cause"], "stalled", "{exit}");
            self.struck = Some(Instant::now());
            return;
        }
        let next = self.kills.iter().sum::<usize>() % SIGNALS.len();
        let harmless = next == 0 || self.is_harmless(Cause::Signal(SIGNALS[next].as_raw()));
        let next = if harmless { next } else { 0 };
        self.kills[next] += 1;
        let signal = SIGNALS[next];
        loop {
            self.struck = Some(Instant::now());
            // The first SIGSEGV only takes away the handler that looks for stack overflows, so there are several.
            while runs(self.engine) {
                signal_to(self.engine, signal);
                thread::sleep(Duration::from_millis(1));
            }
            let exit = self.wait_for_event("engine_exit");
            if exit["cause"] != "stalled" {
                assert_eq!(exit["signal"], signal.as_raw(), "{exit}");
                return;
            }
            // A machine that is busy enough was faster.
            self.wait_until_ready();
            self.find_engine();
        }
    }

    /// If none runs, the last one's end is on its way to us.
    fn find_engine(&mut self) {
        if let Some(engine) = children(self.server.child.id()).into_iter().find(|pid| runs(*pid)) {
            self.engine = engine;
        }
    }

    fn wait_for_event(&mut self, name: &str) -> Value {
        loop {
            let event = self.server.next_event();
            let event = event.unwrap_or_else(|| panic!("no event {name} within {PATIENCE:?}"));
            self.note(&event);
            if event["event"] == name {
                return event;
            }
        }
    }

    fn note(&mut self, event: &Value) {
        let name = event["event"].as_str().unwrap();
        *self.events.entry(name.to_owned()).or_default() += 1;
        if name == "request_resumed" {
            let number = |key: &str| event[key].as_u64().unwrap();
            let (request, tokens) = (number("request"), number("tokens") as usize);
            self.resumed_in_prefill += usize::from(tokens == 0);
            self.resumed.insert(request, tokens);
        } else if name == "engine_exit" {
            self.blame(match event["signal"].as_i64() {
                Some(signal) if event["cause"] != "stalled" => Cause::Signal(signal as i32),
                _ => Cause::Stalled,
            });
            self.resumed.clear();
            self.ready = false;
        } else if name == "engine_ready" {
            self.ready = true;
        }
    }

    /// Prints what happened. Times are for reading; they decide nothing.
    fn report(mut self, tokens: usize) {
        for event in self.server.past_events() {
            self.note(&event);
        }
        self.waits.sort();
        let events = |name: &str| self.events.get(name).copied().unwrap_or_default();
        let metric = |name: &str| self.server.metric(name);
        let (resumed, kept) =
            (metric("unfazed_requests_resumed_total"), metric("unfazed_positions_kept_total"));
        let kills: usize = self.kills.iter().sum();
        println!(
            "{kills} kills {:?} and {} hangs survived, {tokens} tokens streamed",
            self.kills, self.hangs
        );
        println!(
            "from the kill (or the end of a hang) to the next token of any stream: median {:?}, worst {:?}, of {}",
            self.waits[self.waits.len() / 2],
            self.waits[self.waits.len() - 1],
            self.waits.len(),
        );
        println!(
            "{resumed} times a request was resumed, {} of them before its first token; {kept} positions kept, {} \
             computed again",
            self.resumed_in_prefill,
            metric("unfazed_positions_recomputed_total"),
        );
        println!("engines became ready {} times", events("engine_ready"));
        assert_eq!((kills, self.hangs), (50, 10));
        assert!(!self.kills.contains(&0), "every signal was sent");
        assert_eq!(metric("unfazed_requests_quarantined_total"), 0.0, "outside kills are no request's fault");
        assert_eq!(events("request_suspected"), 0, "nobody was put into quarantine");
        assert!(resumed > 0.0 && kept > 0.0, "engines go on from what earlier ones left");
    }
}
