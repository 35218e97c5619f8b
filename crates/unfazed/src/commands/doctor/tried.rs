//! What has to be tried out to be known, and what other crates know.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;

use unfazed_host::audit::{Adapter, Adapters, Given};
use unfazed_host::calibration::{self, Calibration};
use unfazed_host::disk::{self, Disk};
use unfazed_host::disk_rates::DiskRates;
use unfazed_kernels::Isa;
use unfazed_server::ServeOptions;
use unfazed_store::storage::RING_LOCKED_BYTES;
use unfazed_store::{LocalOptions, LocalStorage};
use unfazed_wire::memory::{Access, Mapping, Segment};

use super::storage::Storage;
use crate::flags::Placement;
use crate::{adapters, machine};

/// A piece of memory that can be one huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Everything that the audit is given.
pub(super) fn given(storage: Option<&Storage>) -> Given {
    let isa = Isa::best();
    Given {
        isa: (isa.name().to_owned(), isa != Isa::Reference),
        connections: ServeOptions::default().connections,
        ring: (ring(), RING_LOCKED_BYTES as u64),
        gathered: gathered(),
        calibration: calibration(isa),
        disk: match storage {
            Some(storage) => (storage.place(), Ok(storage.measured())),
            None => ("this folder".to_owned(), this_folder()),
        },
        adapters: adapters(),
    }
}

/// What GPUs there are.
fn adapters() -> Result<Adapters, String> {
    let answer = adapters::ask().map_err(|error| format!("{error:#}"))?;
    let all = answer.adapters.into_iter().map(|adapter| Adapter {
        name: adapter.name,
        driver: adapter.driver,
        backend: adapter.backend,
        software: adapter.software,
        memory: adapter.memory,
        free: adapter.free,
    });
    Ok(Adapters { no_loader: answer.no_loader, all: all.collect() })
}

/// Makes a ring that can only read, as an engine does.
fn ring() -> Result<(), String> {
    let storage = LocalStorage::new(&[], LocalOptions::default()).map_err(|error| error.to_string())?;
    storage.why_no_ring().map_or(Ok(()), Err)
}

/// Fills a piece of shared memory and has it gathered into a huge page, as an engine does with weights.
fn gathered() -> Result<(), String> {
    let no = |error: &dyn std::fmt::Display| format!("no memory to try it with: {error}");
    let segment = Segment::create("a piece to try", HUGE_PAGE as u64).map_err(|error| no(&error))?;
    let mapping = Mapping::new(&segment, Access::Write).map_err(|error| no(&error))?;
    for word in mapping.atomics_to_write(0, HUGE_PAGE / size_of::<u64>()).into_iter().flatten() {
        word.store(1, Ordering::Relaxed);
    }
    if mapping.collapse(0..HUGE_PAGE) {
        return Ok(());
    }
    Err(std::io::Error::last_os_error().to_string())
}

/// What was measured before, with all processors to choose from.
fn calibration(isa: Isa) -> Result<Option<Calibration>, String> {
    let placement = Placement::anywhere();
    let machine = machine::calibrated(isa, &placement);
    let Some(path) = calibration::file(&machine) else { return Ok(None) };
    Calibration::load(&path, &machine).map_err(|error| error.to_string())
}

/// What the current folder is stored on.
fn this_folder() -> Result<(Disk, Option<DiskRates>), String> {
    let folder =
        File::open(Path::new(".")).map_err(|error| format!("this folder cannot be opened: {error}"))?;
    let disk = disk::of(&folder);
    let rates = DiskRates::of(&disk);
    Ok((disk, rates))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `AnonHugePages` and the like do not tell of a single piece: the kernel's word is what counts.
    #[test]
    fn what_is_tried_is_done_or_has_a_reason() {
        for tried in [ring(), gathered()] {
            assert!(tried.is_ok() || tried.is_err_and(|why| !why.is_empty()));
        }
        let (disk, _) = this_folder().unwrap();
        assert_ne!(disk, Disk::default());
    }
}
