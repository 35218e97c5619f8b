//! How many compute threads there are and where they run, in the words of llama.cpp's programs.

use anyhow::bail;
use clap::Args;
use unfazed_host::{Cores, Processors};
use unfazed_wire::Threads;

/// Compute threads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Threads")]
pub(crate) struct ThreadFlags {
    /// Compute threads [default: one for each physical core that is no efficiency core]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Compute threads of steps with several rows: prompts, several answers (also -tb) [default: as --threads]
    #[arg(long, value_name = "N")]
    pub(crate) threads_batch: Option<usize>,

    #[command(flatten)]
    pub(crate) processors: ProcessorFlags,
}

/// Processors for compute threads.
#[derive(Debug, Args)]
#[command(next_help_heading = "Threads")]
pub(crate) struct ProcessorFlags {
    /// Processors for compute threads, as a hexadecimal mask: 0xf is 0 to 3
    #[arg(short = 'C', long, value_name = "HEX", value_parser = parse_mask)]
    cpu_mask: Option<Processors>,

    /// Processors for compute threads, as 0-3 or 0-3,8 (also -Cr); with --cpu-mask, both
    #[arg(long, value_name = "LIST", value_parser = parse_list)]
    cpu_range: Option<Processors>,

    /// Bind each compute thread to a processor of its own; for a machine that does nothing else
    #[arg(long)]
    pin: bool,
}

/// Where compute threads run.
pub(crate) struct Placement {
    /// The processors to choose from.
    pub(crate) cores: Cores,
    processors: Vec<usize>,
    pin: bool,
}

impl ProcessorFlags {
    /// Looks at the machine.
    pub(crate) fn placement(&self) -> anyhow::Result<Placement> {
        let chosen: Processors =
            [&self.cpu_mask, &self.cpu_range].into_iter().flatten().flat_map(Processors::iter).collect();
        if !cfg!(target_os = "linux") && (self.pin || !chosen.is_empty()) {
            bail!("--cpu-mask, --cpu-range and --pin: this system lets no program choose its processors");
        }
        let mut cores = unfazed_host::cores();
        if !chosen.is_empty() {
            let usable = cores.usable.clone();
            cores = match cores.among(&chosen) {
                Ok(cores) => cores,
                Err(refused) => bail!(
                    "--cpu-mask, --cpu-range: processors {refused} cannot be used: this process may run on {usable}"
                ),
            };
        }
        let processors = match (self.pin, chosen.is_empty()) {
            (false, true) => Vec::new(),
            (false, false) => chosen.iter().collect(),
            // The first threads get a core for themselves.
            (true, _) => {
                let siblings = cores.usable.without(&cores.performance);
                cores.performance.iter().chain(siblings.iter()).collect()
            }
        };
        Ok(Placement { cores, processors, pin: self.pin })
    }

    /// The mask of chosen processors as llama.cpp prints it, `0x0` for none.
    pub(crate) fn mask(placement: &Placement) -> String {
        let last = placement.processors.iter().max().copied().unwrap_or(0);
        let digits = (0..=last / 4).rev().map(|digit| {
            let bits = (0..4).filter(|bit| placement.processors.contains(&(4 * digit + bit)));
            format!("{:x}", bits.fold(0, |value, bit| value | 1 << bit))
        });
        format!("0x{}", digits.collect::<String>())
    }
}

impl Placement {
    /// Wherever this process may run.
    pub(crate) fn anywhere() -> Placement {
        Placement { cores: unfazed_host::cores(), processors: Vec::new(), pin: false }
    }

    /// So many threads in these places.
    pub(crate) fn threads(&self, decode: usize, batch: usize) -> Threads {
        Threads { decode, batch, processors: self.processors.clone(), pin: self.pin }
    }
}

fn parse_mask(text: &str) -> Result<Processors, String> {
    Processors::parse_mask(text).map_err(|error| error.to_string())
}

fn parse_list(text: &str) -> Result<Processors, String> {
    Processors::parse_list(text).map_err(|error| error.to_string())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn flags(mask: &str, range: &str, pin: bool) -> ProcessorFlags {
        ProcessorFlags { cpu_mask: parse_mask(mask).ok(), cpu_range: parse_list(range).ok(), pin }
    }

    #[test]
    fn processors_are_chosen_by_mask_and_list_together_and_named_if_they_are_not_there() {
        let first = unfazed_host::cores().usable.iter().next().unwrap();
        let placement = flags("", &first.to_string(), false).placement().unwrap();
        assert_eq!(placement.cores.threads(), 1);
        assert_eq!(placement.threads(1, 1).processors, [first]);
        let Err(error) = flags("0x0", &format!("{first},8000"), true).placement() else {
            panic!("processor 8000 is not there")
        };
        assert!(error.to_string().contains("processors 8000 cannot be used"), "{error}");
    }

    #[test]
    fn threads_are_bound_only_if_asked_for() {
        let free = flags("", "", false).placement().unwrap();
        assert_eq!(free.threads(2, 3), Threads { batch: 3, ..Threads::from(2) });
        assert_eq!(ProcessorFlags::mask(&free), "0x0");
        let pinned = flags("", "", true).placement().unwrap();
        let usable = pinned.cores.usable.len();
        assert!(pinned.threads(1, 1).pin && pinned.processors.len() == usable);
    }

    #[test]
    fn a_mask_is_written_as_it_is_read() {
        let processors = vec![0, 1, 5, 9];
        let cores = unfazed_host::cores();
        let mask = ProcessorFlags::mask(&Placement { cores, processors, pin: false });
        assert_eq!(mask, "0x223");
        assert_eq!(parse_mask(&mask).unwrap().to_string(), "0-1,5,9");
    }
}
