//! The stack that all families here are: layers of attention and a feed-forward network between the two ends.

use unfazed_device::{Device, DeviceError};
use unfazed_formats::ModelConfig;
use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, Source, VectorSource};

use crate::ModelError;
use crate::attention::{Attention, HeadNorm};
use crate::catalog::Catalog;
use crate::ends::Ends;
use crate::feed_forward::FeedForward;
use crate::mixture::Mixture;

/// All weights of a model.
pub(crate) struct Decoder<M, V, E> {
    pub(crate) ends: Ends<M, V>,
    pub(crate) layers: Vec<Layer<M, V, E>>,
}

/// All weights, on a device.
pub(crate) type Loaded<D> = Decoder<<D as Device>::Matrix, <D as Device>::Vector, <D as Device>::Experts>;

pub(crate) struct Layer<M, V, E> {
    pub(crate) attention: Attention<M, V>,
    pub(crate) network: Network<M, V, E>,
}

impl<M, V, E> Layer<M, V, E> {
    /// Its second half, if that is a mixture.
    pub(crate) fn mixture(&self) -> Option<&Mixture<M, V, E>> {
        match &self.network {
            Network::Dense(_) => None,
            Network::Mixture(part) => Some(part),
        }
    }
}

/// The second half of a layer.
pub(crate) enum Network<M, V, E> {
    Dense(FeedForward<M, V>),
    Mixture(Mixture<M, V, E>),
}

impl Decoder<MatrixSource, VectorSource, LayerExperts> {
    /// Finds and checks the weights of a family: `network` finds the second half of a layer.
    pub(crate) fn find(
        catalog: &mut Catalog<'_>,
        head_norm: HeadNorm,
        network: impl Fn(
            &mut Catalog<'_>,
            usize,
        ) -> Result<Network<MatrixSource, VectorSource, LayerExperts>, ModelError>,
    ) -> Result<Self, ModelError> {
        let ends = Ends::find(catalog)?;
        let layers = (0..catalog.config().layers).map(|layer| {
            let attention = Attention::find(catalog, layer, head_norm)?;
            Ok(Layer { attention, network: network(catalog, layer)? })
        });
        let layers = layers.collect::<Result<_, ModelError>>()?;
        Ok(Decoder { ends, layers })
    }

    /// What [`Decoder::load`] loads, in its order. `experts`: those of mixtures as well.
    pub(crate) fn in_order<'s>(&'s self, order: &mut Vec<Source<'s>>, experts: bool) {
        self.ends.in_order(order);
        for layer in &self.layers {
            layer.attention.in_order(order);
            match &layer.network {
                Network::Dense(part) => order.extend(part.in_order()),
                Network::Mixture(part) => {
                    order.extend(part.in_order());
                    let LayerExperts { gate, up, down } = &part.experts;
                    order.extend([gate, up, down].map(Source::Matrix).into_iter().filter(|_| experts));
                }
            }
        }
    }

    pub(crate) fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>, DeviceError> {
        let ends = self.ends.load(device)?;
        let layers = self.layers.iter().enumerate().map(|(index, layer)| {
            let attention = layer.attention.load(index, device)?;
            let network = match &layer.network {
                Network::Dense(part) => Network::Dense(part.load(index, device)?),
                Network::Mixture(part) => Network::Mixture(part.load(index, device)?),
            };
            Ok(Layer { attention, network })
        });
        let layers = layers.collect::<Result<_, DeviceError>>()?;
        Ok(Decoder { ends, layers })
    }
}

impl<M, V, E> Decoder<M, V, E> {
    /// The operations of a step between `begin` and `finish`.
    pub(crate) fn forward<D>(&self, device: &mut D, config: &ModelConfig)
    where
        D: Device<Matrix = M, Vector = V, Experts = E>,
    {
        self.ends.begin(device);
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attention.apply(device, config, index);
            match &layer.network {
                Network::Dense(part) => part.apply(device, config),
                Network::Mixture(part) => {
                    let next = self.layers.get(index + 1).and_then(Layer::mixture);
                    part.apply(device, config, next);
                }
            }
        }
        self.ends.end(device, config);
    }
}
