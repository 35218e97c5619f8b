//! What this machine is, for plans and for what is kept of measurements.

use anyhow::Context;
use unfazed_formats::Checkpoint;
use unfazed_host::calibration::{self, Calibration};
use unfazed_host::disk::{self, Disk};
use unfazed_host::disk_rates::DiskRates;
use unfazed_kernels::Isa;
use unfazed_plan::machine::{Pool, PoolKind, Rates};
use unfazed_plan::{Bytes, Machine};

use crate::adapters::Found;
use crate::flags::Placement;

/// The instruction set that a flag or the environment names, or the best one.
pub(crate) fn isa(flag: Option<&str>) -> anyhow::Result<Isa> {
    Ok(Isa::choose(crate::flags::isa(flag)?.as_deref())?)
}

/// Whose measurements are kept: this machine, with these processors to choose from.
pub(crate) fn calibrated(isa: Isa, placement: &Placement) -> calibration::Machine {
    calibration::Machine {
        processor: unfazed_host::processor_name(),
        processors: placement.cores.most_threads(),
        isa: isa.name().to_owned(),
    }
}

/// The parts of an expert are read one by one; of most models they have about so many bytes.
const EXPERT_READ: u64 = 1 << 20;

/// The machine's numbers for a plan of this model: memory that is free now, and rates, its disk's too, if they were measured
/// before. Measures nothing. `found`: the GPUs that may be used.
pub(crate) fn for_plan(
    placement: &Placement,
    isa: Isa,
    checkpoint: &Checkpoint,
    found: Found,
) -> anyhow::Result<Machine> {
    let memory = unfazed_host::memory().context("cannot find out how much memory is free")?;
    let known = known(&calibrated(isa, placement));
    Ok(Machine {
        memory: Pool {
            kind: if memory.unified { PoolKind::Unified } else { PoolKind::Memory },
            total: Bytes(memory.total),
            free: Bytes(memory.available),
            bound: memory.bound,
        },
        cores: placement.cores.threads(),
        most_threads: placement.cores.most_threads(),
        disk_per_second: disk(checkpoint).map(per_second),
        rates: known.map_or(Vec::new(), |known| known.rates.iter().map(rates).collect()),
        gpus: found.gpus,
        no_gpu: found.none,
    })
}

/// Bytes per second of the slowest disk that the model is on. `None` until all of them were measured.
fn disk(checkpoint: &Checkpoint) -> Option<f64> {
    let rate = |disk: &Disk| DiskRates::of(disk).and_then(|rates| rates.random(EXPERT_READ));
    let rates = checkpoint.files.iter().map(|file| rate(&disk::of(file.file())));
    rates.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::min)
}

/// What was measured before. A file that does not tell is none: speeds are then not predicted.
fn known(machine: &calibration::Machine) -> Option<Calibration> {
    let path = calibration::file(machine)?;
    Calibration::load(&path, machine).unwrap_or_else(|error| {
        tracing::warn!("{error}: no speed is predicted until `unfazed calibrate` has measured this machine");
        None
    })
}

fn rates(rates: &calibration::Rates) -> Rates {
    Rates {
        threads: rates.threads,
        read_per_second: per_second(rates.read_bytes_per_second),
        // Floats saturate as integers.
        macs_per_second: rates.macs_per_second as u64,
    }
}

fn per_second(bytes: f64) -> Bytes {
    Bytes(bytes as u64)
}
