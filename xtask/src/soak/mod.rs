//! `cargo xtask soak`: the real program under load and faults, judged from outside (docs/reliability.md).
//!
//! | module | what |
//! |---|---|
//! | [`run`] | a run: undisturbed answers, clients and faults side by side, the end |
//! | [`setup`] | what a run needs, and what of it cannot be had here |
//! | [`draw`] | choices drawn from a seed |
//! | [`request`] | the pool of requests |
//! | [`visit`] | a client's way with one request |
//! | [`raw`], [`openai`] | clients of plain HTTP, and those that use the OpenAI package |
//! | [`sse`] | events of streams, and which of a resumable one have come |
//! | [`answer`] | an answer put together from what a client got |
//! | [`verdict`] | whether it is the undisturbed one |
//! | [`faults`] | the fault atlas: which faults there are, and when each comes |
//! | [`striker`] | strikes them, and waits for the next token |
//! | [`exit`], [`ballast`], [`memory_group`], [`storage`], [`device`] | what faults are made with |
//! | [`program`], [`processes`] | the server under test, and processes as Linux shows them |
//! | [`board`] | what all clients together have got and have open |
//! | [`sampler`], [`census`], [`ending`] | what the server holds: meanwhile, before and after |
//! | [`report`], [`progress`] | what people see |

mod answer;
pub(crate) mod ballast;
mod board;
mod census;
mod device;
mod draw;
mod ending;
mod exit;
mod faults;
mod memory_group;
mod openai;
mod processes;
mod program;
mod progress;
mod raw;
mod report;
mod request;
mod run;
mod sampler;
mod setup;
mod sse;
mod storage;
mod striker;
mod verdict;
mod visit;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use report::Report;

use crate::simulate::Planted;
use setup::Setup;

/// Serve requests while engines are killed, memory runs out and storage fails, and compare every answer with the undisturbed
/// one.
///
/// One seed gives the same requests and the same faults, each so many tokens after the one before. Ends with 1 if anything was
/// lost. docs/reliability.md tells what is checked. Examples:
///   cargo xtask soak --seed 1 --minutes 30 --report soak.json
///   cargo xtask soak --seed 7 --minutes 5 --faults engine,unmount
///   cargo xtask soak --seed 1 --minutes 2 --faults device --plant commit-before-verdict
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What requests, clients and faults are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long faults fall; what runs then is waited for
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Faults: kill, segv, abort, bus, stop, exit (together: engine), squeeze, out-of-memory (memory), slow, stall, read-errors,
    /// unmount (storage), device, all
    #[arg(long, value_name = "LIST", default_value = "all")]
    faults: String,
    /// Plant a bug in the device layer, to see it found
    #[arg(long, value_name = "BUG")]
    plant: Option<Planted>,
    /// Clients that ask side by side
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// So many of them use the OpenAI Python package; 0 needs no Python [default: a quarter]
    #[arg(long, value_name = "N")]
    openai_clients: Option<usize>,
    /// Distinct requests
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,
    /// GGUF file to serve [default: the demo model of this repository]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Program to test [default: the release build, made with the feature fault-plan]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Python that has the OpenAI package [default: one in a virtual environment that is made for it]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Write all figures as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl Arguments {
    fn openai_clients(&self) -> usize {
        self.openai_clients.unwrap_or(self.clients / 4).min(self.clients)
    }

    /// Where logs go: beside this program.
    fn folder(&self) -> Result<PathBuf> {
        let program = std::env::current_exe()?;
        let target = program.ancestors().nth(2).context("this program is in no folder")?;
        Ok(target.join("soak").join(format!("seed-{}-{}", self.seed, std::process::id())))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let folder = arguments.folder()?;
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(async {
        // Whatever is dropped ends what it started.
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            report = arguments.soak(&folder) => report,
            _ = interrupt.recv() => bail!("ended by Ctrl-C"),
            _ = terminate.recv() => bail!("ended by SIGTERM"),
        }
    });
    let report = report.with_context(|| format!("seed {}, logs in {}", arguments.seed, folder.display()))?;
    println!("{}", report.text());
    if let Some(path) = &arguments.report {
        report.write(path)?;
    }
    let losses = &report.tally.losses;
    if losses.is_empty() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        return Ok(());
    }
    for loss in losses {
        println!("LOST after {} faults: {}: {}", loss.after_faults, loss.what, loss.how);
    }
    bail!(
        "{} lost, with seed {} and {} faults: logs are in {}",
        losses.len(),
        report.seed,
        report.faults(),
        folder.display()
    )
}

impl Arguments {
    async fn soak(&self, folder: &std::path::Path) -> Result<Report> {
        let setup = Setup::new(self, folder).await?;
        run::run(self, &setup).await
    }
}
