//! The limit of a test: how long the machine would need for its multiply-adds, and for reading its bytes, at the rates that
//! were measured beside it.

use unfazed_device::cpu::Rates;
use unfazed_model::Cost;

use super::workload::Workload;

/// What binds a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limit {
    /// Seconds for the multiply-adds of the weights that are used.
    pub(super) compute: f64,
    /// Seconds for reading weights, keys and values.
    pub(super) memory: f64,
    /// The machine's rates.
    pub(super) rates: Rates,
}

impl Limit {
    /// `kv_position` is bytes of keys and values of a position.
    pub(super) fn of(work: &Workload, rows: usize, cost: &Cost, kv_position: f64, rates: Rates) -> Limit {
        let steps = work.steps(rows.max(work.parallel));
        let macs: f64 = steps.iter().map(|step| cost.macs(step.rows, step.logit_rows)).sum();
        let bytes: f64 = steps
            .iter()
            .map(|step| cost.bytes(step.rows, step.logit_rows) + step.positions as f64 * kv_position)
            .sum();
        Limit { compute: macs / rates.macs, memory: bytes / rates.read, rates }
    }

    /// The one that takes longer, by name.
    pub(super) fn name(&self) -> &'static str {
        if self.compute > self.memory { "compute" } else { "memory" }
    }

    /// Share of it that was reached by a test that took so many seconds: 1 is all that the machine can.
    pub(super) fn share(&self, seconds: f64) -> f64 {
        self.compute.max(self.memory) / seconds
    }
}

/// The better of each: a machine can what it could.
pub(super) fn better(a: Rates, b: Rates) -> Rates {
    Rates { read: a.read.max(b.read), macs: a.macs.max(b.macs) }
}

#[cfg(test)]
mod tests {
    use unfazed_model::Matrices;

    use super::*;

    #[test]
    fn a_prompt_is_bound_by_multiply_adds_and_decode_by_bytes() {
        let matrices = Matrices { macs: 1_000_000, bytes: 500_000 };
        let cost = Cost { dense: matrices, ..Cost::default() };
        let rates = Rates { read: 1e6, macs: 1e8 };
        let prompt = Workload { prompt: 512, generate: 0, depth: 0, parallel: 1 };
        let limit = Limit::of(&prompt, 512, &cost, 1000.0, rates);
        assert_eq!((limit.name(), limit.compute), ("compute", 5.12));
        assert_eq!(limit.memory, 0.5 + 0.512);
        assert_eq!(limit.share(10.24), 0.5);
        let decode = Workload { prompt: 0, generate: 2, depth: 99, parallel: 1 };
        let limit = Limit::of(&decode, 512, &cost, 1000.0, rates);
        assert_eq!(limit.name(), "memory");
        assert!((limit.memory - (1.0 + 0.201)).abs() < 1e-9, "{limit:?}");
        assert_eq!(better(rates, Rates { read: 2e6, macs: 1.0 }), Rates { read: 2e6, macs: 1e8 });
    }
}
