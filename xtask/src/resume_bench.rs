//! `cargo xtask resume-bench`: how long a stream stands still when its engine is killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use unfazed_testkit::rng::Rng;

use crate::server::{self, Server};

/// Most tokens between an engine's first one and the next kill.
const GAP: usize = 12;
/// The kill falls within so many microseconds of a token.
const MOST_DELAY: u64 = 50_000;

/// Measure how long a stream stands still when its engine is killed, on the release build.
///
/// One answer to a long prompt is streamed twice: once undisturbed, once while its engine is killed again and again at
/// seeded moments. Both must be the same. Build first: cargo build --release.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// GGUF file to serve
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Prompt tokens
    #[arg(long, default_value_t = 1000)]
    prompt_tokens: usize,
    /// Kills by each signal
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// Kill by SIGSEGV too, with core dumps enabled
    #[arg(long)]
    core_dumps: bool,
    /// Seconds of rest before the first request, in which the engine may gather its weights into huge pages
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    rest: u64,
    /// What moments are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Compute threads
    #[arg(long, short)]
    threads: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(arguments.run())
}

/// What came of a request.
struct Answer {
    tokens: Vec<String>,
    /// From the request to its first token.
    first: Duration,
    /// From the first token to the last one.
    rest: Duration,
    stops: Vec<Stop>,
}

/// What one kill took.
struct Stop {
    signal: Signal,
    /// Until the engine had ended.
    exit: Duration,
    /// Until the next engine was ready.
    ready: Duration,
    /// Until the next token.
    token: Duration,
}

/// A kill after which no token came yet.
struct Kill {
    signal: Signal,
    struck: Instant,
    /// When the engine had ended.
    exit: Option<Instant>,
    /// When the next engine was ready.
    ready: Option<Instant>,
}

impl Arguments {
    async fn run(&self) -> Result<()> {
        // Where an engine that dumps its core does so.
        let folder = tempfile::tempdir()?;
        let server = Server::start(self.command(folder.path())?)?;
        tokio::time::sleep(Duration::from_secs(self.rest)).await;
        let undisturbed = self.stream(&server, &[]).await?;
        let disturbed = self.stream(&server, &self.signals()).await?;
        ensure!(undisturbed.tokens == disturbed.tokens, "the disturbed answer is another one");
        let tokens = disturbed.tokens.len();
        println!(
            "{} prompt tokens, {tokens} generated, the same with {} kills as without",
            self.prompt_tokens,
            disturbed.stops.len()
        );
        println!(
            "undisturbed: {:.2} s to the first token, then {:.1} ms a token",
            undisturbed.first.as_secs_f64(),
            undisturbed.rest.as_secs_f64() * 1e3 / (tokens - 1).max(1) as f64
        );
        print_stops("SIGKILL", &disturbed.stops, Signal::KILL);
        if self.core_dumps {
            print_stops("SIGSEGV with a core dump", &disturbed.stops, Signal::SEGV);
            println!("largest core file: {} bytes", largest_core(folder.path())?);
        }
        for (name, text) in [
            ("unfazed_weights_read_bytes_total", "bytes of weights read from files, by all engines"),
            ("unfazed_weights_kept_bytes_total", "bytes of weights found in memory"),
            ("unfazed_positions_kept_total", "positions found in memory"),
            ("unfazed_positions_recomputed_total", "positions computed before the next token"),
        ] {
            println!("{:>14} {text}", server.metric(name).await?);
        }
        Ok(())
    }

    /// The signals of the kills, in their order.
    fn signals(&self) -> Vec<Signal> {
        let mut signals = vec![Signal::KILL; self.kills];
        if self.core_dumps {
            signals.extend(vec![Signal::SEGV; self.kills]);
        }
        signals
    }

    /// Enough for all kills to fall before the answer ends.
    fn generated_tokens(&self) -> usize {
        (self.signals().len() + 2) * (GAP + 4)
    }

    fn command(&self, folder: &Path) -> Result<Command> {
        let program = Server::program()?;
        let mut command = if self.core_dumps {
            let mut command = Command::new("sh");
            command.args(["-c", "ulimit -c unlimited && exec \"$0\" \"$@\""]).arg(program);
            command
        } else {
            Command::new(program)
        };
        let context = self.prompt_tokens + self.generated_tokens();
        command.arg("serve").args(["--context", &context.to_string(), "--parallel", "1"]);
        command.args(["--threads", &server::threads(self.threads).to_string(), "--log", "error"]);
        command.arg("--model").arg(self.model.canonicalize()?).current_dir(folder);
        Ok(command)
    }

    /// Streams the answer and kills its engine once by each signal.
    async fn stream(&self, server: &Server, signals: &[Signal]) -> Result<Answer> {
        let prompt: Vec<usize> = (0..self.prompt_tokens).map(|i| 100 + i * 37 % 5000).collect();
        let body = json!({
            "prompt": prompt,
            "max_tokens": self.generated_tokens(),
            "temperature": 0,
            "ignore_eos": true,
            "logprobs": 0,
            "stream": true,
        });
        let mut rng = Rng::new(self.seed, "kills", 0);
        let mut gap = || 1 + rng.word() as usize % GAP;
        let mut delay = Rng::new(self.seed, "delays", 0);
        let mut signals = signals.iter();
        let (mut tokens, mut stops) = (Vec::new(), Vec::new());
        let (mut kill, mut next) = (None::<Kill>, gap());
        let asked = Instant::now();
        let (mut first, mut last) = (None, asked);
        let mut stream = Stream::new(server.completion(&body).await?.into_body());
        while let Some(chunk) = stream.next().await? {
            let now = Instant::now();
            let new = chunk["choices"][0]["logprobs"]["tokens"].as_array().map_or(&[][..], Vec::as_slice);
            if new.is_empty() {
                continue;
            }
            tokens.extend(new.iter().map(Value::to_string));
            first.get_or_insert(now);
            last = now;
            if let Some(pending) = &mut kill {
                // Tokens of the killed engine may be on their way still.
                if let Some(stop) = pending.stop(server, now) {
                    stops.push(stop);
                    kill = None;
                    next = tokens.len() + gap();
                }
            } else if tokens.len() >= next
                && let Some(signal) = signals.next()
            {
                tokio::time::sleep(Duration::from_micros(delay.word() % MOST_DELAY)).await;
                kill = Some(Kill::strike(server, *signal)?);
            }
        }
        ensure!(signals.next().is_none() && kill.is_none(), "the answer ended before the last kill was over");
        let first = first.context("no token came")?;
        Ok(Answer { tokens, first: first - asked, rest: last - first, stops })
    }
}

impl Kill {
    fn strike(server: &Server, signal: Signal) -> Result<Kill> {
        let engine = server.engine()?;
        let struck = Instant::now();
        kill_process(engine, signal)?;
        // The first SIGSEGV only takes away the handler that looks for stack overflows, so there are several.
        std::thread::spawn(move || {
            while kill_process(engine, signal).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Ok(Kill { signal, struck, exit: None, ready: None })
    }

    /// What it took, if the token that came `now` is of the next engine.
    fn stop(&mut self, server: &Server, now: Instant) -> Option<Stop> {
        for (came, event) in server.past_events() {
            if event["event"] == "engine_exit" {
                self.exit.get_or_insert(came);
            } else if event["event"] == "engine_ready" {
                self.ready.get_or_insert(came);
            }
        }
        let (exit, ready) = (self.exit?, self.ready.filter(|ready| *ready <= now)?);
        let after = |moment: Instant| moment - self.struck;
        Some(Stop { signal: self.signal, exit: after(exit), ready: after(ready), token: after(now) })
    }
}

/// Server-sent events out of a body.
struct Stream {
    body: Incoming,
    text: Vec<u8>,
}

impl Stream {
    fn new(body: Incoming) -> Stream {
        Stream { body, text: Vec::new() }
    }

    /// The next event's JSON, `None` at the end.
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                match std::str::from_utf8(&line)?.trim_end().strip_prefix("data: ") {
                    None => {}
                    Some("[DONE]") => return Ok(None),
                    Some(data) => {
                        let chunk: Value = serde_json::from_str(data)?;
                        ensure!(chunk["error"].is_null(), "the server answered {chunk}");
                        return Ok(Some(chunk));
                    }
                }
            }
            let frame = self.body.frame().await.context("the stream ended without [DONE]")??;
            self.text.extend(frame.into_data().unwrap_or_default());
        }
    }
}

fn print_stops(name: &str, stops: &[Stop], signal: Signal) {
    let times = |of: fn(&Stop) -> Duration| {
        let mut times: Vec<_> = stops.iter().filter(|stop| stop.signal == signal).map(of).collect();
        times.sort();
        let at = |at: usize| times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        format!("median {:.0} ms, worst {:.0} ms", at(times.len() / 2), at(times.len().saturating_sub(1)))
    };
    println!("{name}, to the engine's end: {}", times(|stop| stop.exit));
    println!("{name}, to the next ready engine: {}", times(|stop| stop.ready));
    println!("{name}, to the next token: {}", times(|stop| stop.token));
}

/// 0 if there is none, as where the system gives core dumps to another program.
fn largest_core(folder: &Path) -> Result<u64> {
    let mut largest = 0;
    for entry in std::fs::read_dir(folder)? {
        largest = largest.max(entry?.metadata()?.len());
    }
    Ok(largest)
}
