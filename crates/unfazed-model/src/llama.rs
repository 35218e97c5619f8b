//! The family `llama` (Touvron et al. 2023; `LlamaForCausalLM`): pre-norm, rotary embedding, gated feed-forward.

use unfazed_store::{MatrixSource, VectorSource};

use crate::ModelError;
use crate::attention::HeadNorm;
use crate::catalog::Catalog;
use crate::dense::Dense;

/// The family's name, for messages.
pub(crate) const NAME: &str = "llama";

/// Finds and checks the weights of a model.
pub(crate) fn find(catalog: &mut Catalog<'_>) -> Result<Dense<MatrixSource, VectorSource>, ModelError> {
    Dense::find(catalog, HeadNorm::None)
}
