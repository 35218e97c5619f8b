//! The stack that all families here are: layers of attention and a feed-forward network between the two ends.

use unfazed_device::{Device, DeviceError};
use unfazed_formats::ModelConfig;
use unfazed_store::{MatrixSource, Source, VectorSource};

use crate::ModelError;
use crate::attention::{Attention, HeadNorm};
use crate::catalog::Catalog;
use crate::ends::Ends;
use crate::feed_forward::FeedForward;
use crate::mixture::Mixture;

/// All weights of a model.
pub(crate) struct Decoder<M, V> {
    pub(crate) ends: Ends<M, V>,
    pub(crate) layers: Vec<Layer<M, V>>,
}

pub(crate) struct Layer<M, V> {
    pub(crate) attention: Attention<M, V>,
    pub(crate) network: Network<M, V>,
}

/// The second half of a layer.
pub(crate) enum Network<M, V> {
    Dense(FeedForward<M, V>),
    Mixture(Mixture<M, V>),
}

impl Decoder<MatrixSource, VectorSource> {
    /// Finds and checks the weights of a family: `network` finds the second half of a layer.
    pub(crate) fn find(
        catalog: &mut Catalog<'_>,
        head_norm: HeadNorm,
        network: impl Fn(&mut Catalog<'_>, usize) -> Result<Network<MatrixSource, VectorSource>, ModelError>,
    ) -> Result<Self, ModelError> {
        let ends = Ends::find(catalog)?;
        let layers = (0..catalog.config().layers).map(|layer| {
            let attention = Attention::find(catalog, layer, head_norm)?;
            Ok(Layer { attention, network: network(catalog, layer)? })
        });
        let layers = layers.collect::<Result<_, ModelError>>()?;
        Ok(Decoder { ends, layers })
    }

    /// What [`Decoder::load`] loads, in its order.
    pub(crate) fn in_order<'s>(&'s self, order: &mut Vec<Source<'s>>) {
        self.ends.in_order(order);
        for layer in &self.layers {
            layer.attention.in_order(order);
            match &layer.network {
                Network::Dense(part) => order.extend(part.in_order()),
                Network::Mixture(part) => order.extend(part.in_order()),
            }
        }
    }

    pub(crate) fn load<D: Device>(
        &self,
        device: &mut D,
    ) -> Result<Decoder<D::Matrix, D::Vector>, DeviceError> {
        let ends = self.ends.load(device)?;
        let layers = self.layers.iter().map(|layer| {
            let attention = layer.attention.load(device)?;
            let network = match &layer.network {
                Network::Dense(part) => Network::Dense(part.load(device)?),
                Network::Mixture(part) => Network::Mixture(part.load(device)?),
            };
            Ok(Layer { attention, network })
        });
        let layers = layers.collect::<Result<_, DeviceError>>()?;
        Ok(Decoder { ends, layers })
    }
}

impl<M, V> Decoder<M, V> {
    /// The operations of a step between `begin` and `finish`.
    pub(crate) fn forward<D>(&self, device: &mut D, config: &ModelConfig)
    where
        D: Device<Matrix = M, Vector = V>,
    {
        self.ends.begin(device);
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attention.apply(device, config, index);
            match &layer.network {
                Network::Dense(part) => part.apply(device, config),
                Network::Mixture(part) => part.apply(device, config),
            }
        }
        self.ends.end(device, config);
    }
}
