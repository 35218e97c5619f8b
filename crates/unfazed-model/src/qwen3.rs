//! The family `qwen3` (Qwen Team 2025; `Qwen3ForCausalLM`): as `llama`, with a norm for each head's query and key.

use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, VectorSource};

use crate::ModelError;
use crate::attention::HeadNorm;
use crate::catalog::Catalog;
use crate::decoder::{Decoder, Network};
use crate::feed_forward::FeedForward;

/// The family's name, for messages.
pub(crate) const NAME: &str = "qwen3";

/// Finds and checks the weights of a model.
pub(crate) fn find(
    catalog: &mut Catalog<'_>,
) -> Result<Decoder<MatrixSource, VectorSource, LayerExperts>, ModelError> {
    catalog.refuse_experts()?;
    Decoder::find(catalog, HeadNorm::Rms, |catalog, layer| {
        Ok(Network::Dense(FeedForward::find(catalog, layer)?))
    })
}
