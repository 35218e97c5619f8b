//! One engine in this process, and the time that its steps take.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use unfazed_device::PlacedDevice;
use unfazed_engine::Engine;
use unfazed_wire::memory::mix;
use unfazed_wire::{RequestId, Sampling, Submit, ToEngine, ToFront};

use super::workload::Workload;

/// A loaded model that is measured.
pub(super) struct Measured {
    engine: Engine<PlacedDevice>,
    vocab: usize,
    next: u64,
    temperature: f32,
}

/// Of answers whose tokens should be as various as can be.
const ANY_TOKEN: f32 = 1000.0;

/// What the requests of a test have come to.
#[derive(Default)]
struct Standing {
    /// Positions of prompts that are computed, of one sequence.
    prefilled: usize,
    /// For each request, whether it has a token.
    begun: Vec<RequestId>,
    finished: usize,
}

impl Measured {
    /// `streams`: experts are read when they are needed. Then it matters what answers say: as in llama-bench each token is
    /// any token, where the likeliest ones would soon repeat themselves and find all of their experts.
    pub(super) fn new(engine: Engine<PlacedDevice>, vocab: usize, streams: bool) -> Measured {
        Measured { engine, vocab, next: 0, temperature: if streams { ANY_TOKEN } else { 0.0 } }
    }

    /// Computes a test and returns the time of the steps that count. A step has up to `rows` rows.
    pub(super) fn run(&mut self, work: &Workload, rows: usize) -> anyhow::Result<Duration> {
        let rows = rows.max(work.parallel);
        match (work.prompt, work.generate) {
            (0, _) => self.generate(work, rows),
            (_, 0) => self.prompt(work, rows, 0),
            (_, generate) => self.prompt(work, rows, generate + 1),
        }
    }

    /// Prompts, and with `answer` tokens their answers too.
    fn prompt(&mut self, work: &Workload, rows: usize, answer: usize) -> anyhow::Result<Duration> {
        let mut standing = Standing::default();
        self.submit(work, answer);
        let mut time = Duration::ZERO;
        while standing.finished < work.parallel {
            // A step ends where the clock starts.
            let before = work.depth.saturating_sub(standing.prefilled);
            self.engine.limit_rows(if before > 0 { rows.min(before) } else { rows });
            let taken = self.step(&mut standing)?;
            if before == 0 {
                time += taken;
            }
        }
        Ok(time)
    }

    /// Answers alone: from when all sequences have begun.
    fn generate(&mut self, work: &Workload, rows: usize) -> anyhow::Result<Duration> {
        let mut standing = Standing::default();
        self.engine.limit_rows(rows);
        let requests = self.submit(work, work.answer(rows));
        while standing.begun.len() < work.parallel {
            self.step(&mut standing)?;
        }
        let mut time = Duration::ZERO;
        for _ in 0..work.generate {
            if standing.finished > 0 {
                bail!("{work}: an answer ended before all sequences had begun (a fault of this program)");
            }
            time += self.step(&mut standing)?;
        }
        for request in requests {
            self.engine.handle(ToEngine::Cancel(request));
        }
        Ok(time)
    }

    /// Submits a request for each sequence, with tokens of its own: what is in them does not matter.
    fn submit(&mut self, work: &Workload, answer: usize) -> Vec<RequestId> {
        let requests: Vec<RequestId> = (0..work.parallel as u64).map(|i| RequestId(self.next + i)).collect();
        self.next += requests.len() as u64;
        for &request in &requests {
            let token = |position| (mix([request.0, position]) % self.vocab.max(1) as u64) as u32;
            let submit = Submit {
                request,
                prompt: (0..work.start() as u64).map(token).collect(),
                max_tokens: answer,
                sampling: Sampling { temperature: self.temperature, seed: request.0, ..Sampling::default() },
                stop_tokens: Vec::new(),
                repeat_stop_tokens: 0,
                logprobs: None,
                prompt_logprobs: None,
                resumed: None,
            };
            self.engine.handle(ToEngine::Submit(Box::new(submit)));
        }
        requests
    }

    /// Computes a step and returns how long it took.
    fn step(&mut self, standing: &mut Standing) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let messages = self.engine.step();
        let taken = start.elapsed();
        if messages.is_empty() && self.engine.idle() {
            bail!("the engine has nothing to compute (a fault of this program)");
        }
        for message in messages {
            match message {
                ToFront::Prefill { done, .. } => standing.prefilled = done,
                ToFront::Tokens(tokens) => {
                    for token in tokens {
                        if !standing.begun.contains(&token.request) {
                            standing.begun.push(token.request);
                        }
                    }
                }
                ToFront::Finished { .. } => standing.finished += 1,
                ToFront::Failed { failure, .. } => {
                    return Err(anyhow::Error::msg(failure.message)).context("a request failed");
                }
                _ => {}
            }
        }
        Ok(taken)
    }
}
