//! The family `qwen3moe` (Qwen Team 2025; `Qwen3MoeForCausalLM`): attention as `qwen3`, and a mixture of
//! experts in every layer.

use unfazed_device::{Device, DeviceError};
use unfazed_formats::ModelConfig;
use unfazed_formats::config::ExpertConfig;
use unfazed_store::{MatrixSource, VectorSource};

use crate::ModelError;
use crate::attention::{Attention, HeadNorm};
use crate::catalog::Catalog;
use crate::ends::Ends;
use crate::loader::Loader;
use crate::mixture::Mixture;

/// The family's name, for messages.
pub(crate) const NAME: &str = "qwen3moe";

/// All weights of a model.
pub(crate) struct Qwen3Moe<M, V> {
    experts: ExpertConfig,
    ends: Ends<M, V>,
    layers: Vec<Layer<M, V>>,
}

struct Layer<M, V> {
    attention: Attention<M, V>,
    mixture: Mixture<M, V>,
}

impl Qwen3Moe<MatrixSource, VectorSource> {
    pub(crate) fn find(catalog: &mut Catalog<'_>) -> Result<Self, ModelError> {
        let experts = catalog.require_experts()?;
        let ends = Ends::find(catalog)?;
        let layers = (0..catalog.config().layers).map(|layer| {
            let attention = Attention::find(catalog, layer, HeadNorm::Rms)?;
            Ok(Layer { attention, mixture: Mixture::find(catalog, layer, &experts)? })
        });
        let layers = layers.collect::<Result<_, ModelError>>()?;
        Ok(Qwen3Moe { experts, ends, layers })
    }

    pub(crate) fn load<D: Device>(
        &self,
        loader: &mut Loader<'_, D>,
    ) -> Result<Qwen3Moe<D::Matrix, D::Vector>, DeviceError> {
        let ends = self.ends.load(loader)?;
        let layers = self.layers.iter().map(|layer| {
            let attention = layer.attention.load(loader)?;
            Ok(Layer { attention, mixture: layer.mixture.load(loader)? })
        });
        let layers = layers.collect::<Result<_, DeviceError>>()?;
        Ok(Qwen3Moe { experts: self.experts, ends, layers })
    }
}

impl<M, V> Qwen3Moe<M, V> {
    /// The operations of a step between `begin` and `finish`.
    pub(crate) fn forward<D>(&self, device: &mut D, config: &ModelConfig)
    where
        D: Device<Matrix = M, Vector = V>,
    {
        self.ends.begin(device);
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attention.apply(device, config, index);
            layer.mixture.apply(device, config, &self.experts);
        }
        self.ends.end(device, config);
    }
}
