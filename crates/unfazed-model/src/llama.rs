//! The family `llama` (Touvron et al. 2023; `LlamaForCausalLM`): pre-norm, rotary embedding, gated feed-forward.

use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, VectorSource};

use crate::ModelError;
use crate::attention::HeadNorm;
use crate::catalog::Catalog;
use crate::decoder::{Decoder, Network};
use crate::feed_forward::FeedForward;

/// The family's name, for messages.
pub(crate) const NAME: &str = "llama";

/// Finds and checks the weights of a model.
pub(crate) fn find(
    catalog: &mut Catalog<'_>,
) -> Result<Decoder<MatrixSource, VectorSource, LayerExperts>, ModelError> {
    catalog.refuse_experts()?;
    Decoder::find(catalog, HeadNorm::None, |catalog, layer| {
        Ok(Network::Dense(FeedForward::find(catalog, layer)?))
    })
}
