//! The mixture-of-experts half of a layer.

use unfazed_device::{Device, DeviceError, Part};
use unfazed_formats::ModelConfig;
use unfazed_formats::config::ExpertConfig;
use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, Source, VectorSource};

use crate::ModelError;
use crate::catalog::Catalog;
use crate::names::{PerExpert, PerLayer};

/// Norm, router and the experts.
pub(crate) struct Mixture<M, V, E> {
    pub(crate) config: ExpertConfig,
    norm: V,
    pub(crate) router: M,
    pub(crate) experts: E,
}

/// The same, on a device.
type Loaded<D> = Mixture<<D as Device>::Matrix, <D as Device>::Vector, <D as Device>::Experts>;

impl Mixture<MatrixSource, VectorSource, LayerExperts> {
    pub(crate) fn find(
        catalog: &mut Catalog<'_>,
        layer: usize,
        config: &ExpertConfig,
    ) -> Result<Self, ModelError> {
        let hidden = catalog.config().hidden;
        let ExpertConfig { count, feed_forward, .. } = *config;
        let inner = "experts, expert width, hidden";
        let mut stack = |part, shape, reason| catalog.experts(layer, part, count, shape, reason);
        let experts = LayerExperts {
            gate: stack(PerExpert::Gate, [feed_forward, hidden], inner)?,
            up: stack(PerExpert::Up, [feed_forward, hidden], inner)?,
            down: stack(PerExpert::Down, [hidden, feed_forward], "experts, hidden, expert width")?,
        };
        Ok(Mixture {
            config: *config,
            norm: catalog.layer_vector(layer, PerLayer::FeedForwardNorm, hidden, "hidden")?,
            router: catalog.layer_matrix(layer, PerLayer::Router, [count, hidden], "experts, hidden")?,
            experts,
        })
    }

    /// What [`Mixture::load`] loads, in its order, but for the experts.
    pub(crate) fn in_order(&self) -> [Source<'_>; 2] {
        [Source::Vector(&self.norm), Source::Matrix(&self.router)]
    }

    pub(crate) fn load<D: Device>(&self, layer: usize, device: &mut D) -> Result<Loaded<D>, DeviceError> {
        Ok(Mixture {
            config: self.config,
            norm: device.load_vector(Part::FeedForward(layer), &self.norm)?,
            router: device.load_matrix(Part::FeedForward(layer), &self.router)?,
            experts: device.load_experts(layer, &self.experts)?,
        })
    }
}

impl<M, V, E> Mixture<M, V, E> {
    /// *residual* += the chosen experts' outputs for the normed *residual*. `next`: the mixture that follows.
    pub(crate) fn apply<D>(&self, device: &mut D, config: &ModelConfig, next: Option<&Self>)
    where
        D: Device<Matrix = M, Vector = V, Experts = E>,
    {
        if let Some(Mixture { norm, router, experts, config: used }) = next {
            device.look_ahead(norm, config.norm_epsilon, router, experts, used);
        }
        device.norm(&self.norm, config.norm_epsilon);
        device.mixture(&self.router, &self.experts, &self.config);
    }
}
