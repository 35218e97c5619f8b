//! `cargo xtask journal-bench`: what the journal on disk costs.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use serde_json::json;

use crate::server::{self, Server};

/// Measure decoding with and without the journal, pair by pair, on the release build.
///
/// Two servers of the same model, one with a journal, stream the same answers in turn, each time the other one first; the
/// streams can be resumed from both. Build first: cargo build --release.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// GGUF file to serve; without, the demo model, whose tokens cost least and come most often
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Folder for the journal, on the disk that is asked about; without, the system's for temporary files
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Tokens of an answer
    #[arg(long, default_value_t = 512)]
    tokens: usize,
    /// Answers at a time
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Pairs
    #[arg(long, default_value_t = 21)]
    pairs: usize,
    /// Compute threads
    #[arg(long, short)]
    threads: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(arguments.run())
}

/// What answers took.
#[derive(Clone, Copy)]
struct Took {
    /// Until the first event of all of them.
    first: Duration,
    /// From there to the last one's end.
    rest: Duration,
}

impl Arguments {
    async fn run(&self) -> Result<()> {
        ensure!(self.tokens > 1 && self.streams > 0 && self.pairs > 0, "there is nothing to measure");
        let folder = match &self.journal {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        };
        let folder = folder.context("no folder for the journal")?;
        let mut with = self.command()?;
        with.arg("--journal").arg(folder.path().join("journal"));
        let servers = [Server::start(self.command()?)?, Server::start(with)?];
        for server in &servers {
            self.answers(server).await?;
        }
        let mut pairs = Vec::with_capacity(self.pairs);
        for number in 0..self.pairs {
            let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
            let mut pair = [None; 2];
            for at in order {
                pair[at] = Some(self.answers(&servers[at]).await?);
            }
            let [Some(without), Some(with)] = pair else { continue };
            pairs.push((without, with));
        }
        self.print(&pairs);
        Ok(())
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(Server::program()?);
        let context = (self.tokens + 64).to_string();
        command.args(["serve", "--context", &context, "--parallel", &self.streams.to_string()]);
        command.args(["--threads", &server::threads(self.threads).to_string(), "--log", "error"]);
        if let Some(model) = &self.model {
            command.arg("--model").arg(model);
        }
        Ok(command)
    }

    async fn answers(&self, server: &Server) -> Result<Took> {
        let body = json!({
            "prompt": (0..16).map(|i| 100 + i * 37).collect::<Vec<usize>>(),
            "max_tokens": self.tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
        });
        let asked = Instant::now();
        let answer = || async {
            let mut stream = server.kept_completion(&body, Some(1)).await?.into_body();
            let mut first = None;
            while let Some(frame) = stream.frame().await {
                frame?;
                first.get_or_insert_with(Instant::now);
            }
            first.context("an answer without an event")
        };
        let firsts = futures::future::try_join_all((0..self.streams).map(|_| answer())).await?;
        let first = firsts.into_iter().max().context("no answer")?;
        Ok(Took { first: first - asked, rest: first.elapsed() })
    }

    fn print(&self, pairs: &[(Took, Took)]) {
        let rate = |took: &Took| (self.tokens - 1) as f64 * self.streams as f64 / took.rest.as_secs_f64();
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            (values[values.len() / 4], values[values.len() / 2], values[values.len() * 3 / 4])
        };
        let without = middle(pairs.iter().map(|(without, _)| rate(without)).collect());
        let with = middle(pairs.iter().map(|(_, with)| rate(with)).collect());
        let cost = middle(pairs.iter().map(|(without, with)| 1.0 - rate(with) / rate(without)).collect());
        let first = |took: &Took| took.first.as_secs_f64() * 1e3;
        let first = middle(pairs.iter().map(|(without, with)| first(with) - first(without)).collect());
        println!("{} pairs of {} streams of {} tokens", pairs.len(), self.streams, self.tokens);
        println!("without the journal {:.1} tokens/s, with it {:.1} (medians)", without.1, with.1);
        let percent = |share: f64| share * 100.0;
        println!(
            "cost, pair by pair: median {:.2} %, half of the pairs from {:.2} to {:.2} %",
            percent(cost.1),
            percent(cost.0),
            percent(cost.2)
        );
        println!("first event later by {:.2} ms (median), for the sync of the admission", first.1);
    }
}
