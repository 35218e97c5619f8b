//! What a step costs at least: multiply-adds, and bytes of weights that are read.

use unfazed_kernels::panel::PanelLayout;
use unfazed_store::MatrixSource;
use unfazed_store::experts::LayerExperts;

use crate::decoder::{Decoder, Network};

/// Matrices that are used together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matrices {
    /// Multiply-adds for one row of activations.
    pub macs: u64,
    /// Bytes as packed for the kernels.
    pub bytes: u64,
}

/// What a step costs at least. Weights are read once a step, however many rows it has; attention over keys and values,
/// norms and the embedding's rows are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Used by every row: attention's projections, routers, dense networks.
    pub dense: Matrices,
    /// One expert of each layer.
    pub expert: Matrices,
    /// Experts in a layer.
    pub experts: usize,
    /// Experts that a row uses in a layer.
    pub used: usize,
    /// The output table, used by rows that ask for logits.
    pub output: Matrices,
}

impl Cost {
    /// Multiply-adds of a step.
    pub fn macs(&self, rows: usize, logit_rows: usize) -> f64 {
        let row = self.dense.macs as f64 + self.used as f64 * self.expert.macs as f64;
        rows as f64 * row + logit_rows as f64 * self.output.macs as f64
    }

    /// Bytes of weights that a step reads. Of experts it reads those that any row uses: as many as are to be expected when
    /// each row chooses among all alike.
    pub fn bytes(&self, rows: usize, logit_rows: usize) -> f64 {
        let unused = 1.0 - self.used as f64 / self.experts.max(1) as f64;
        let experts = self.experts as f64 * (1.0 - unused.powf(rows as f64));
        let output = if logit_rows > 0 { self.output.bytes as f64 } else { 0.0 };
        self.dense.bytes as f64 + experts * self.expert.bytes as f64 + output
    }
}

impl Matrices {
    /// Adds one matrix of a stack.
    fn add(&mut self, source: &MatrixSource) {
        let bytes = PanelLayout::new(source.format, source.rows, source.columns).map_or(0, |l| l.bytes());
        self.macs = self.macs.saturating_add((source.rows as u64).saturating_mul(source.columns as u64));
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }
}

/// The cost of a model.
pub(crate) fn cost<V>(weights: &Decoder<MatrixSource, V, LayerExperts>) -> Cost {
    let mut cost = Cost::default();
    for layer in &weights.layers {
        layer.attention.matrices().into_iter().for_each(|source| cost.dense.add(source));
        match &layer.network {
            Network::Dense(part) => part.matrices().into_iter().for_each(|source| cost.dense.add(source)),
            Network::Mixture(part) => {
                cost.dense.add(&part.router);
                let LayerExperts { gate, up, down } = &part.experts;
                [gate, up, down].into_iter().for_each(|source| cost.expert.add(source));
                (cost.experts, cost.used) = (part.config.count, part.config.used);
            }
        }
    }
    cost.output.add(weights.ends.output_table());
    cost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_reads_weights_once_and_computes_them_for_each_row() {
        let one = |n| Matrices { macs: n, bytes: n };
        let cost = Cost { dense: one(100), expert: one(10), experts: 64, used: 8, output: one(1000) };
        assert_eq!(cost.macs(1, 1), 1180.0);
        assert_eq!(cost.macs(512, 0), 512.0 * 180.0);
        assert_eq!(cost.bytes(1, 1), 1180.0);
        assert_eq!(cost.bytes(1, 0), 180.0);
        let many = cost.bytes(512, 0);
        assert!((739.0..740.1).contains(&many), "{many}: all experts");
        let four = cost.bytes(4, 0);
        assert!(four > 180.0 + 10.0 * 8.0 && four < 100.0 + 10.0 * 32.0, "{four}: some share experts");
    }
}
