//! `unfazed cache-replay`: what each policy of the expert cache would have done with a trace, and how fast that would be.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use unfazed_host::calibration::{self, Calibration};
use unfazed_host::disk;
use unfazed_host::disk_rates::DiskRates;
use unfazed_store::experts::PolicyKind;
use unfazed_store::experts::replay::{Rates, Replay};
use unfazed_store::experts::source::PARTS;
use unfazed_store::experts::trace::{TraceHeader, TraceReader};

use crate::failure::OutputClosed;
use crate::flags::{LogFlags, ProcessorFlags};
use crate::stderr::Stderr;
use crate::{logging, machine};

const EXAMPLES: &str = "\
Examples:
  unfazed cache-replay chat.trace                             every policy, from 10 to 90 % of the experts
  unfazed cache-replay chat.trace --slots 512,1024 --policy lru
  unfazed cache-replay chat.trace --storage models/           how fast with what `unfazed doctor` measured there
  unfazed cache-replay chat.trace --storage-rate 3000         or at 3000 MB/s";

/// Shares of all experts that are replayed where nothing is said, in per cent.
const SHARES: [u32; 8] = [10, 20, 30, 40, 50, 60, 75, 90];

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CacheReplayArgs {
    /// A trace of experts
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// Numbers of slots, or shares of all experts such as 25% [default: 10% to 90%]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    slots: Vec<Slots>,

    /// Policies [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = policy())]
    policy: Vec<PolicyKind>,

    /// A file or folder on the disk that experts would be read from, measured by `unfazed doctor` before
    #[arg(long, value_name = "PATH", conflicts_with = "storage_rate")]
    storage: Option<PathBuf>,

    /// Or the rate of that disk, in 10^6 bytes a second
    #[arg(long, value_name = "MB/S", value_parser = rate)]
    storage_rate: Option<f64>,

    /// Rate of memory, in 10^9 bytes a second [default: what `unfazed calibrate` measured]
    #[arg(long, value_name = "GB/S", value_parser = rate)]
    memory_rate: Option<f64>,

    #[command(flatten)]
    processors: ProcessorFlags,

    #[command(flatten)]
    log: LogFlags,
}

/// How many slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slots {
    Number(u32),
    Percent(u32),
}

impl FromStr for Slots {
    type Err = String;

    fn from_str(text: &str) -> Result<Slots, String> {
        let number = |digits: &str| digits.trim().parse().ok().filter(|number| *number > 0);
        let slots = match text.strip_suffix('%') {
            Some(digits) => number(digits).filter(|percent| *percent <= 100).map(Slots::Percent),
            None => number(text).map(Slots::Number),
        };
        slots.ok_or_else(|| "neither a number of slots above 0 nor a share from 1% to 100%".to_owned())
    }
}

impl Slots {
    /// At most one for each expert.
    fn of(self, units: u32) -> usize {
        let slots = match self {
            Slots::Number(number) => number.min(units),
            Slots::Percent(percent) => (u64::from(units) * u64::from(percent) / 100) as u32,
        };
        slots.max(1) as usize
    }
}

fn policy() -> impl TypedValueParser<Value = PolicyKind> {
    PossibleValuesParser::new(PolicyKind::ALL.map(PolicyKind::name))
        .try_map(|name| name.parse::<PolicyKind>())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if rate.is_finite() && rate > 0.0 { Ok(rate) } else { Err("a rate is above 0".to_owned()) }
}

pub(crate) fn run(args: &CacheReplayArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::CHAT, stderr)?;
    let name = args.trace.file_name().unwrap_or(args.trace.as_os_str()).to_string_lossy().into_owned();
    let file = File::open(&args.trace).with_context(|| name.clone())?;
    let mut trace = TraceReader::new(&name, BufReader::new(file))?;
    let header = trace.header().clone();
    let rates = rates(args, &header)?;
    let mut replays = replays(args, &header);
    for step in trace.by_ref() {
        let step = step?;
        replays.iter_mut().for_each(|replay| replay.step(&header, &step));
    }
    if trace.is_cut() {
        tracing::warn!("{name} ends in the middle of a block: what was written last is missing");
    }
    show(&header, &replays, rates).context(OutputClosed)?;
    Ok(ExitCode::SUCCESS)
}

/// Each policy with each number of slots.
fn replays(args: &CacheReplayArgs, header: &TraceHeader) -> Vec<Replay> {
    let shares = SHARES.map(Slots::Percent);
    let slots = if args.slots.is_empty() { &shares[..] } else { &args.slots };
    let kinds = if args.policy.is_empty() { &PolicyKind::ALL[..] } else { &args.policy };
    let units = header.units.count().unwrap_or(0);
    let mut slots: Vec<usize> = slots.iter().map(|slots| slots.of(units)).collect();
    slots.sort_unstable();
    slots.dedup();
    let each = slots.iter().flat_map(|slots| kinds.iter().map(|kind| Replay::new(*kind, *slots, header)));
    each.collect()
}

/// What experts are read at, from the flags or from measurements. `None` if no storage was named.
fn rates(args: &CacheReplayArgs, header: &TraceHeader) -> anyhow::Result<Option<Rates>> {
    let storage = match (&args.storage, args.storage_rate) {
        (Some(path), _) => measured(path, header.expert_bytes / PARTS as u64)?,
        (None, Some(rate)) => rate * 1e6,
        (None, None) => return Ok(None),
    };
    let memory = match args.memory_rate {
        Some(rate) => rate * 1e9,
        None => measured_memory(args)?,
    };
    Ok(Some(Rates { storage, memory }))
}

fn measured(path: &Path, bytes: u64) -> anyhow::Result<f64> {
    let shown = path.display();
    let disk = disk::of(&File::open(path).with_context(|| shown.to_string())?);
    let rate = DiskRates::of(&disk).and_then(|rates| rates.random(bytes));
    rate.with_context(|| format!("{disk} was not measured: run `unfazed doctor --storage {shown}` first"))
}

fn measured_memory(args: &CacheReplayArgs) -> anyhow::Result<f64> {
    let machine = machine::calibrated(machine::isa(None)?, &args.processors.placement()?);
    let kept = match calibration::file(&machine) {
        Some(path) => Calibration::load(&path, &machine)?,
        None => None,
    };
    let best = kept.and_then(|kept| {
        kept.rates.iter().map(|rates| rates.read_bytes_per_second).max_by(|a, b| a.total_cmp(b))
    });
    let Some(best) = best else {
        bail!(
            "this machine's memory was not measured: run `unfazed calibrate` first, or say --memory-rate GB/S"
        );
    };
    Ok(best)
}

fn show(header: &TraceHeader, replays: &[Replay], rates: Option<Rates>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let units = header.units.count().unwrap_or(0);
    let tokens = replays.first().map_or(0, |replay| replay.counts().tokens);
    writeln!(
        out,
        "{}: {tokens} tokens, {units} experts of {:.2} MiB, {} used for a token in each layer\n",
        header.model,
        header.expert_bytes as f64 / f64::from(1 << 20),
        header.used,
    )?;
    if let Some(Rates { storage, memory }) = rates {
        writeln!(out, "Storage {:.0} MB/s, memory {:.1} GB/s\n", storage / 1e6, memory / 1e9)?;
    }
    writeln!(out, "|  slots |   GiB | policy  | hits, % | read, MB a token |  tok/s | tok/s, overlapped |")?;
    writeln!(out, "| -----: | ----: | :------ | ------: | ---------------: | -----: | ----------------: |")?;
    for replay in replays {
        let (counts, slots) = (replay.counts(), replay.slots());
        let gib = slots as f64 * header.expert_bytes as f64 / f64::from(1 << 30);
        let hits = shown(counts.hit_rate().map(|rate| rate * 100.0), 1);
        let read = shown(counts.bytes_per_token(header).map(|bytes| bytes / 1e6), 1);
        let speed = rates.and_then(|rates| counts.predict(header, rates));
        let [after, overlapped] =
            [speed.map(|s| s.one_after_the_other), speed.map(|s| s.overlapped)].map(|speed| shown(speed, 2));
        let policy = replay.kind().name();
        writeln!(
            out,
            "| {slots:6} | {gib:5.2} | {policy:7} | {hits:>7} | {read:>16} | {after:>6} | {overlapped:>17} |"
        )?;
    }
    Ok(())
}

/// A number, or that there is none.
fn shown(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_numbers_or_shares_and_nothing_else() {
        assert_eq!("64".parse(), Ok(Slots::Number(64)));
        assert_eq!("25%".parse(), Ok(Slots::Percent(25)));
        for wrong in ["", "0", "0%", "101%", "-1", "x"] {
            assert!(wrong.parse::<Slots>().is_err(), "{wrong}");
        }
        assert_eq!((Slots::Number(9999).of(100), Slots::Percent(1).of(10)), (100, 1));
    }
}
