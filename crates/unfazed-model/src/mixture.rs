//! The mixture-of-experts half of a layer.

use unfazed_device::{Device, DeviceError};
use unfazed_formats::ModelConfig;
use unfazed_formats::config::ExpertConfig;
use unfazed_store::{MatrixSource, Source, VectorSource};

use crate::ModelError;
use crate::catalog::Catalog;
use crate::names::{PerExpert, PerLayer};

/// Norm, router and the experts' matrices as stacks.
pub(crate) struct Mixture<M, V> {
    pub(crate) experts: ExpertConfig,
    norm: V,
    pub(crate) router: M,
    gate: M,
    up: M,
    down: M,
}

impl Mixture<MatrixSource, VectorSource> {
    pub(crate) fn find(
        catalog: &mut Catalog<'_>,
        layer: usize,
        experts: &ExpertConfig,
    ) -> Result<Self, ModelError> {
        let hidden = catalog.config().hidden;
        let ExpertConfig { count, feed_forward, .. } = *experts;
        let inner = "experts, expert width, hidden";
        let mut stack = |part, shape, reason| catalog.experts(layer, part, count, shape, reason);
        let gate = stack(PerExpert::Gate, [feed_forward, hidden], inner)?;
        let up = stack(PerExpert::Up, [feed_forward, hidden], inner)?;
        let down = stack(PerExpert::Down, [hidden, feed_forward], "experts, hidden, expert width")?;
        Ok(Mixture {
            experts: *experts,
            norm: catalog.layer_vector(layer, PerLayer::FeedForwardNorm, hidden, "hidden")?,
            router: catalog.layer_matrix(layer, PerLayer::Router, [count, hidden], "experts, hidden")?,
            gate,
            up,
            down,
        })
    }

    /// What [`Mixture::load`] loads, in its order.
    pub(crate) fn in_order(&self) -> [Source<'_>; 5] {
        let [gate, up, down] = self.stacks().map(Source::Matrix);
        [Source::Vector(&self.norm), Source::Matrix(&self.router), gate, up, down]
    }

    pub(crate) fn load<D: Device>(
        &self,
        device: &mut D,
    ) -> Result<Mixture<D::Matrix, D::Vector>, DeviceError> {
        Ok(Mixture {
            experts: self.experts,
            norm: device.load_vector(&self.norm)?,
            router: device.load_matrix(&self.router)?,
            gate: device.load_matrix(&self.gate)?,
            up: device.load_matrix(&self.up)?,
            down: device.load_matrix(&self.down)?,
        })
    }
}

impl<M, V> Mixture<M, V> {
    /// The stacks of the experts' matrices.
    pub(crate) fn stacks(&self) -> [&M; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// *residual* += the chosen experts' outputs for the normed *residual*.
    pub(crate) fn apply<D>(&self, device: &mut D, config: &ModelConfig)
    where
        D: Device<Matrix = M, Vector = V>,
    {
        device.norm(&self.norm, config.norm_epsilon);
        device.mixture(&self.router, &self.gate, &self.up, &self.down, &self.experts);
    }
}
