//! A stack of layers with attention and a dense gated feed-forward part: what the dense families are.

use unfazed_device::{Device, DeviceError};
use unfazed_formats::ModelConfig;
use unfazed_store::{MatrixSource, VectorSource};

use crate::ModelError;
use crate::attention::{Attention, HeadNorm};
use crate::catalog::Catalog;
use crate::ends::Ends;
use crate::feed_forward::FeedForward;
use crate::loader::Loader;

/// All weights of a model.
pub(crate) struct Dense<M, V> {
    ends: Ends<M, V>,
    layers: Vec<Layer<M, V>>,
}

struct Layer<M, V> {
    attention: Attention<M, V>,
    feed_forward: FeedForward<M, V>,
}

impl Dense<MatrixSource, VectorSource> {
    pub(crate) fn find(catalog: &mut Catalog<'_>, head_norm: HeadNorm) -> Result<Self, ModelError> {
        catalog.refuse_experts()?;
        let ends = Ends::find(catalog)?;
        let layers = (0..catalog.config().layers).map(|layer| {
            let attention = Attention::find(catalog, layer, head_norm)?;
            Ok(Layer { attention, feed_forward: FeedForward::find(catalog, layer)? })
        });
        let layers = layers.collect::<Result<_, ModelError>>()?;
        Ok(Dense { ends, layers })
    }

    pub(crate) fn load<D: Device>(
        &self,
        loader: &mut Loader<'_, D>,
    ) -> Result<Dense<D::Matrix, D::Vector>, DeviceError> {
        let ends = self.ends.load(loader)?;
        let layers = self.layers.iter().map(|layer| {
            let attention = layer.attention.load(loader)?;
            Ok(Layer { attention, feed_forward: layer.feed_forward.load(loader)? })
        });
        let layers = layers.collect::<Result<_, DeviceError>>()?;
        Ok(Dense { ends, layers })
    }
}

impl<M, V> Dense<M, V> {
    /// The operations of a step between `begin` and `finish`.
    pub(crate) fn forward<D>(&self, device: &mut D, config: &ModelConfig)
    where
        D: Device<Matrix = M, Vector = V>,
    {
        self.ends.begin(device);
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attention.apply(device, config, index);
            layer.feed_forward.apply(device, config);
        }
        self.ends.end(device, config);
    }
}
