//! Thousands of simulated worlds, and the shortest run that loses something.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use unfazed_sim::device::Bug;
use unfazed_sim::world::shrink::shrink;
use unfazed_sim::world::{Ground, Scenario};

/// Run whole worlds in one thread: engines over devices that fail, one after the other in the same memory
///
/// Each seed gives requests, faults of every class and the moments they come at. A seed whose clients get anything but the
/// tokens of an undisturbed run is cut down to the few faults that it takes, and printed.
#[derive(Args)]
pub(crate) struct Arguments {
    /// First seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,

    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    seeds: u64,

    /// Plant a bug in the device layer, to see it found
    #[arg(long, value_name = "BUG")]
    plant: Option<Planted>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Planted {
    /// What a driver reports done is committed without a receipt
    CommitBeforeVerdict,
    /// What a page held on an earlier device is taken for what it holds
    UseAfterGeneration,
}

impl From<Planted> for Bug {
    fn from(bug: Planted) -> Bug {
        match bug {
            Planted::CommitBeforeVerdict => Bug::CommitBeforeVerdict,
            Planted::UseAfterGeneration => Bug::UseAfterGeneration,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let ground = Ground::new().map_err(|error| anyhow!(error))?;
    let bar = ProgressBar::new(arguments.seeds)
        .with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} seeds, {per_sec}, {eta} left")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut steps, mut engines, mut tokens) = (0, 0, 0);
    for seed in arguments.from..arguments.from.saturating_add(arguments.seeds) {
        let scenario = Scenario::of_seed(seed, arguments.plant.map(Bug::from));
        let outcome = ground.run(&scenario).map_err(|error| anyhow!("seed {seed}: {error}"))?;
        if let Some(loss) = outcome.loss {
            bar.finish_and_clear();
            println!("seed {seed}: {loss}");
            if let Some((short, outcome)) = shrink(&ground, &scenario).map_err(|error| anyhow!(error))? {
                let loss = outcome.loss.unwrap_or_default();
                println!("in short: requests {:?}: {loss}", short.requests);
                println!("{}", serde_json::to_string(&short.plan)?);
            }
            bail!("seed {seed} loses something");
        }
        for fault in outcome.faults {
            *faults.entry(fault.fault.0.name()).or_default() += 1;
        }
        (steps, engines, tokens) =
            (steps + outcome.steps, engines + outcome.engines, tokens + outcome.tokens);
        bar.inc(1);
    }
    bar.finish_and_clear();
    println!("{} seeds: {steps} steps, {engines} engines, {tokens} tokens, nothing lost", arguments.seeds);
    for (class, count) in faults {
        println!("{count:>10} {class}");
    }
    Ok(())
}
