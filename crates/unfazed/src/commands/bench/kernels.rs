//! `unfazed bench --kernels`: matrix products by format, rows and instruction set, beside what the machine can do.

use std::io::{self, Write};

use anyhow::Context;
use unfazed_device::cpu::{Meter, Rates};
use unfazed_formats::BlockFormat;
use unfazed_formats::block::affine::Affine;
use unfazed_kernels::Isa;
use unfazed_kernels::probe::{self, Weights};
use unfazed_wire::Threads;

use super::limit::better;
use crate::failure::OutputClosed;
use crate::stderr::Stderr;

/// Shape of the matrices.
const ROWS: usize = 1024;
const COLUMNS: usize = 2048;
/// Rows of activations: decode, several sequences, prompts.
const TILES: [usize; 5] = [1, 4, 16, 32, 64];
/// Bytes of weights a format: more than most caches hold.
const WEIGHT_BYTES: usize = 256 << 20;
/// The scalar definition is slow, and never waits for memory.
const REFERENCE_BYTES: usize = 4 << 20;

/// A format as it is called here: `Q4_K`, or `affine4g64_f16` for 4 bits and groups of 64.
pub(super) fn format_name(format: BlockFormat) -> String {
    match format {
        BlockFormat::Affine(Affine { bits, group, scale }) => {
            format!("affine{}g{}_{scale:?}", bits.count(), group.weights()).to_lowercase()
        }
        named => format!("{named:?}"),
    }
}

/// A format by its name, whatever its case.
pub(super) fn parse_format(name: &str) -> Result<BlockFormat, String> {
    let named = |format: &BlockFormat| format_name(*format).eq_ignore_ascii_case(name);
    BlockFormat::all().find(named).ok_or_else(|| {
        let names: Vec<String> = BlockFormat::all().map(format_name).collect();
        format!("no such format; there are {}", names.join(", "))
    })
}

/// Prints the table of these instruction sets and formats.
pub(super) fn run(
    isas: &[Isa],
    formats: &[BlockFormat],
    threads: &Threads,
    read_bytes: usize,
    stderr: &Stderr,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let count = threads.most();
    writeln!(
        out,
        "Matrices of {ROWS} x {COLUMNS}, {count} threads. Shares: of the dot products, and of the reads, that the \
         machine can do; packing is one thread's.\n\n\
         | isa       | format          | rows |   GMAC/s | of peak |     GB/s | of read | packing GB/s |\n\
         | --------- | --------------- | ---: | -------: | ------: | -------: | ------: | -----------: |"
    )
    .context(OutputClosed)?;
    for &isa in isas {
        let meter = Meter::new(isa, threads, read_bytes).context("cannot start threads to measure with")?;
        let mut table = Table { isa, meter, machine: Rates { read: 0.0, macs: 0.0 } };
        for &format in formats {
            stderr.status(&format!("{} {}", isa.name(), format_name(format)));
            let rows = table.rows(format);
            stderr.status("");
            stderr.flush();
            write!(out, "{rows}").and_then(|()| out.flush()).context(OutputClosed)?;
        }
    }
    Ok(())
}

struct Table {
    isa: Isa,
    meter: Meter,
    machine: Rates,
}

impl Table {
    /// The lines of a format.
    fn rows(&mut self, format: BlockFormat) -> String {
        let bytes = if self.isa == Isa::Reference { REFERENCE_BYTES } else { WEIGHT_BYTES };
        let Some(weights) = Weights::new(format, ROWS, COLUMNS, bytes) else { return String::new() };
        // Beside each format, since machines change.
        self.machine = better(self.machine, self.meter.rates());
        let mut lines = String::new();
        for rows in TILES {
            let tile = probe::tile(self.isa, format, rows, COLUMNS);
            let matrices = self.meter.products(&weights, &tile);
            let macs = matrices * weights.macs() as f64 * rows as f64;
            let read = matrices * weights.layout().bytes() as f64;
            lines += &format!(
                "| {:9} | {:15} | {rows:4} | {:8.1} | {:5.0} % | {:8.2} | {:5.0} % | {:12.2} |\n",
                self.isa.name(),
                format_name(format),
                macs / 1e9,
                100.0 * macs / self.machine.macs,
                read / 1e9,
                100.0 * read / self.machine.read,
                weights.packed_per_second() / 1e9,
            );
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_name_of_its_own() {
        for format in BlockFormat::all() {
            assert_eq!(parse_format(&format_name(format)), Ok(format));
        }
        assert_eq!(parse_format("q4_k"), Ok(BlockFormat::Q4_K));
        assert!(parse_format("Q9").unwrap_err().contains("affine4g64_f16"));
    }
}
