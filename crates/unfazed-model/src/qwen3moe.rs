//! The family `qwen3moe` (Qwen Team 2025; `Qwen3MoeForCausalLM`): attention as `qwen3`, and a mixture of experts in every
//! layer.

use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, VectorSource};

use crate::ModelError;
use crate::attention::HeadNorm;
use crate::catalog::Catalog;
use crate::decoder::{Decoder, Network};
use crate::mixture::Mixture;

/// The family's name, for messages.
pub(crate) const NAME: &str = "qwen3moe";

/// Finds and checks the weights of a model.
pub(crate) fn find(
    catalog: &mut Catalog<'_>,
) -> Result<Decoder<MatrixSource, VectorSource, LayerExperts>, ModelError> {
    let experts = catalog.require_experts()?;
    Decoder::find(catalog, HeadNorm::Rms, |catalog, layer| {
        Ok(Network::Mixture(Mixture::find(catalog, layer, &experts)?))
    })
}
