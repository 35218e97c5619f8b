//! `unfazed calibrate`: how fast this machine reads memory and multiplies, measured once and kept.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;
use unfazed_device::cpu::{Meter, Rates};
use unfazed_host::calibration::{self, Calibration, Machine};
use unfazed_kernels::Isa;

use crate::failure::OutputClosed;
use crate::flags::{LogFlags, Placement, ProcessorFlags};
use crate::stderr::Stderr;
use crate::{logging, machine};

/// Memory that is read, at most: more than most caches hold.
const READ_BYTES: u64 = 512 << 20;

const EXAMPLES: &str = "\
Examples:
  unfazed calibrate             measure this machine, or show what was measured
  unfazed calibrate --again     measure it again, when nothing else runs

`unfazed bench --limit` measures the same beside each test and keeps the better.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CalibrateArgs {
    /// Measure again what was measured before
    #[arg(long)]
    again: bool,

    /// Instruction set [default: the fastest one here]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Isa::ALL.map(Isa::name)))]
    isa: Option<String>,

    #[command(flatten)]
    processors: ProcessorFlags,

    #[command(flatten)]
    log: LogFlags,
}

pub(crate) fn run(args: &CalibrateArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::CHAT, stderr)?;
    let placement = args.processors.placement()?;
    let isa = machine::isa(args.isa.as_deref())?;
    let machine = machine::calibrated(isa, &placement);
    let counts = thread_counts(&placement);
    let whole = |kept: &Calibration| counts.iter().all(|count| kept.with_threads(*count).is_some());
    let kept = load(&machine);
    let calibration = match kept.filter(|kept| whole(kept) && !args.again) {
        Some(calibration) => calibration,
        None => {
            let rates = measure(isa, &placement, &counts, stderr)?;
            let calibration = Calibration::now(machine, rates);
            save(&calibration);
            calibration
        }
    };
    show(&calibration).context(OutputClosed)?;
    Ok(ExitCode::SUCCESS)
}

/// Bytes to read: no more than an eighth of what is free.
pub(super) fn read_bytes() -> usize {
    let free = unfazed_host::memory().map_or(READ_BYTES, |memory| memory.available / 8);
    usize::try_from(free.min(READ_BYTES)).unwrap_or(0).max(1 << 20)
}

/// What was measured before; a file that does not tell is named.
fn load(machine: &Machine) -> Option<Calibration> {
    let path = calibration::file(machine)?;
    Calibration::load(&path, machine).unwrap_or_else(|error| {
        tracing::warn!("{error}: this machine is measured again");
        None
    })
}

/// Numbers of threads that are measured: powers of two, the default, and all.
fn thread_counts(placement: &Placement) -> BTreeSet<usize> {
    let most = placement.cores.most_threads();
    let powers = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < most);
    powers.chain([placement.cores.threads(), most]).collect()
}

fn measure(
    isa: Isa,
    placement: &Placement,
    counts: &BTreeSet<usize>,
    stderr: &Stderr,
) -> anyhow::Result<Vec<calibration::Rates>> {
    let most = placement.cores.most_threads();
    let mut meter = Meter::new(isa, &placement.threads(most, most), read_bytes())
        .context("cannot start threads to measure with")?;
    let mut rates = Vec::new();
    for &threads in counts {
        stderr.status(&format!("Measuring with {threads} threads"));
        meter.take_part(threads);
        rates.push(kept_rates(threads, meter.rates()));
    }
    stderr.status("");
    Ok(rates)
}

fn kept_rates(threads: usize, rates: Rates) -> calibration::Rates {
    calibration::Rates { threads, read_bytes_per_second: rates.read, macs_per_second: rates.macs }
}

/// Keeps rates that were measured beside something else, where they are better than those kept before.
pub(super) fn keep(machine: &Machine, threads: usize, rates: Rates) {
    let kept = load(machine);
    let mut all = kept.as_ref().map(|kept| kept.rates.clone()).unwrap_or_default();
    let new = match kept.as_ref().and_then(|kept| kept.with_threads(threads)) {
        Some(old) => calibration::Rates {
            threads,
            read_bytes_per_second: old.read_bytes_per_second.max(rates.read),
            macs_per_second: old.macs_per_second.max(rates.macs),
        },
        None => kept_rates(threads, rates),
    };
    all.retain(|rates| rates.threads != threads);
    all.push(new);
    all.sort_by_key(|rates| rates.threads);
    if kept.is_none_or(|kept| kept.rates != all) {
        save(&Calibration::now(machine.clone(), all));
    }
}

/// Nothing is lost but the time to measure again.
fn save(calibration: &Calibration) {
    let Some(path) = calibration::file(&calibration.machine) else { return };
    if let Err(error) = calibration.save(&path) {
        tracing::warn!("the measured rates cannot be kept: {error}");
    }
}

fn show(calibration: &Calibration) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let Machine { processor, processors, isa } = &calibration.machine;
    writeln!(out, "{processor}, {processors} processors, {isa}; measured {}\n", calibration.measured)?;
    writeln!(out, "| threads | memory read, GB/s | int8 dot products, GMAC/s |")?;
    writeln!(out, "| ------: | ----------------: | -----------------------: |")?;
    for rates in &calibration.rates {
        let (read, macs) = (rates.read_bytes_per_second / 1e9, rates.macs_per_second / 1e9);
        writeln!(out, "| {:7} | {read:17.1} | {macs:24.0} |", rates.threads)?;
    }
    if let Some(path) = calibration::file(&calibration.machine) {
        writeln!(out, "\nKept in {}", path.display())?;
    }
    Ok(())
}
