//! The machine's numbers that a plan needs. Whoever asks for a plan measures them; nothing here looks at a machine.

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// Who draws on a pool of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// The CPU's memory.
    #[default]
    Memory,
    /// Memory that CPU and GPU share: what one takes the other lacks.
    Unified,
    /// A GPU's own memory.
    Gpu,
}

/// One pool of memory: what is in it counts once, whoever uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Who draws on it.
    pub kind: PoolKind,
    /// All of it, or the tightest limit on it.
    pub total: Bytes,
    /// What can be had now, under all limits.
    pub free: Bytes,
    /// What makes `free` as small as it is, for people: `the control group /job`. `None`: the pool's size.
    pub bound: Option<String>,
}

/// What the machine was measured to do with a number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Threads that measured together.
    pub threads: usize,
    /// Bytes that they read from memory in a second.
    pub read_per_second: Bytes,
    /// int8 multiply-adds that they make in a second.
    pub macs_per_second: u64,
}

/// A GPU that may be computed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its number among the machine's adapters.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// A processor that acts as a GPU.
    pub software: bool,
    /// Its memory is the processor's.
    pub unified: bool,
    /// All of its memory, where its driver tells.
    pub total: Option<Bytes>,
    /// What is free of it, where its driver tells.
    pub free: Option<Bytes>,
    /// Bytes that it reads from its memory in a second, if that is known.
    pub read_per_second: Option<Bytes>,
    /// int8 multiply-adds that it makes in a second, if that is known.
    pub macs_per_second: Option<u64>,
}

/// The machine's numbers that a plan needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Memory that the engine may use.
    pub memory: Pool,
    /// Compute threads if nobody asks for a number: cores that are worth one.
    pub cores: usize,
    /// The most compute threads that do not wait for each other.
    pub most_threads: usize,
    /// Measured rates, by number of threads; empty where nothing was measured.
    pub rates: Vec<Rates>,
    /// Bytes that the model's disk delivers in a second in reads of an expert's size, if that was measured.
    pub disk_per_second: Option<Bytes>,
    /// The GPUs that may be used: those that were asked for, or the first one that is no processor.
    pub gpus: Vec<Gpu>,
    /// Why there is none, for people, if there is a reason: `--gpu off`.
    pub no_gpu: Option<String>,
}

impl Machine {
    /// The rates with so many threads: those measured with the most threads up to it, else with the fewest.
    pub fn rates_with(&self, threads: usize) -> Option<Rates> {
        let up_to = self.rates.iter().filter(|rates| rates.threads <= threads);
        up_to
            .max_by_key(|rates| rates.threads)
            .or_else(|| self.rates.iter().min_by_key(|rates| rates.threads))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_nearest_number_of_threads_that_was_measured() {
        let rates = |threads| Rates { threads, read_per_second: Bytes(1), macs_per_second: 1 };
        let machine = Machine { rates: [1, 2, 8].map(rates).to_vec(), ..Machine::default() };
        let with = |threads| machine.rates_with(threads).map(|rates| rates.threads);
        assert_eq!([0, 1, 2, 7, 8, 99].map(with), [1, 1, 2, 2, 8, 8].map(Some));
        assert_eq!(Machine::default().rates_with(1), None);
    }
}
