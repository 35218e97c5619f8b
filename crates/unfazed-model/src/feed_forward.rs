//! The dense feed-forward half of a layer.

use unfazed_device::{Device, DeviceError, Part};
use unfazed_formats::ModelConfig;
use unfazed_store::{MatrixSource, Source, VectorSource};

use crate::ModelError;
use crate::catalog::Catalog;
use crate::names::PerLayer;

/// Norm and the gated unit's three matrices (SwiGLU, Shazeer 2020).
pub(crate) struct FeedForward<M, V> {
    norm: V,
    gate: M,
    up: M,
    down: M,
}

impl FeedForward<MatrixSource, VectorSource> {
    pub(crate) fn find(catalog: &mut Catalog<'_>, layer: usize) -> Result<Self, ModelError> {
        let ModelConfig { hidden, feed_forward, .. } = *catalog.config();
        let inner = "feed-forward width, hidden";
        Ok(FeedForward {
            norm: catalog.layer_vector(layer, PerLayer::FeedForwardNorm, hidden, "hidden")?,
            gate: catalog.layer_matrix(layer, PerLayer::Gate, [feed_forward, hidden], inner)?,
            up: catalog.layer_matrix(layer, PerLayer::Up, [feed_forward, hidden], inner)?,
            down: catalog.layer_matrix(
                layer,
                PerLayer::Down,
                [hidden, feed_forward],
                "hidden, feed-forward width",
            )?,
        })
    }

    /// What [`FeedForward::load`] loads, in its order.
    pub(crate) fn in_order(&self) -> [Source<'_>; 4] {
        let [gate, up, down] = self.matrices().map(Source::Matrix);
        [Source::Vector(&self.norm), gate, up, down]
    }

    pub(crate) fn load<D: Device>(
        &self,
        layer: usize,
        device: &mut D,
    ) -> Result<FeedForward<D::Matrix, D::Vector>, DeviceError> {
        let part = Part::FeedForward(layer);
        Ok(FeedForward {
            norm: device.load_vector(part, &self.norm)?,
            gate: device.load_matrix(part, &self.gate)?,
            up: device.load_matrix(part, &self.up)?,
            down: device.load_matrix(part, &self.down)?,
        })
    }
}

impl<M, V> FeedForward<M, V> {
    /// All matrices.
    pub(crate) fn matrices(&self) -> [&M; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// *residual* += the gated unit of the normed *residual*.
    pub(crate) fn apply<D>(&self, device: &mut D, config: &ModelConfig)
    where
        D: Device<Matrix = M, Vector = V>,
    {
        device.norm(&self.norm, config.norm_epsilon);
        device.feed_forward(&self.gate, &self.up, &self.down);
    }
}
