//! What stands before the first layer and after the last: embedding, output norm, output table.

use unfazed_device::{Device, DeviceError, Part};
use unfazed_formats::ModelConfig;
use unfazed_store::{MatrixSource, Source, VectorSource};

use crate::ModelError;
use crate::catalog::Catalog;
use crate::names::Global;

/// Embedding and output.
pub(crate) struct Ends<M, V> {
    embedding: M,
    norm: V,
    /// `None` with tied embeddings: the embedding is the output table too, and is held once.
    table: Option<M>,
}

impl Ends<MatrixSource, VectorSource> {
    pub(crate) fn find(catalog: &mut Catalog<'_>) -> Result<Self, ModelError> {
        let ModelConfig { hidden, vocab, tied_embeddings, .. } = *catalog.config();
        let shape = [vocab, hidden];
        Ok(Ends {
            embedding: catalog.matrix(Global::Embedding, shape, "vocabulary, hidden")?,
            norm: catalog.vector(Global::OutputNorm, hidden, "hidden")?,
            table: match tied_embeddings {
                true => None,
                false => Some(catalog.matrix(Global::Output, shape, "vocabulary, hidden")?),
            },
        })
    }

    /// What [`Ends::load`] loads, in its order.
    pub(crate) fn in_order<'s>(&'s self, order: &mut Vec<Source<'s>>) {
        order.extend([Source::Matrix(&self.embedding), Source::Vector(&self.norm)]);
        order.extend(self.table.iter().map(Source::Matrix));
    }

    pub(crate) fn load<D: Device>(&self, device: &mut D) -> Result<Ends<D::Matrix, D::Vector>, DeviceError> {
        let embedding = if self.table.is_some() { Part::Embedding } else { Part::TiedEmbedding };
        Ok(Ends {
            embedding: device.load_matrix(embedding, &self.embedding)?,
            norm: device.load_vector(Part::Output, &self.norm)?,
            table: match &self.table {
                None => None,
                Some(table) => Some(device.load_matrix(Part::Output, table)?),
            },
        })
    }
}

impl<M, V> Ends<M, V> {
    /// What logits are computed with.
    pub(crate) fn output_table(&self) -> &M {
        self.table.as_ref().unwrap_or(&self.embedding)
    }

    /// *residual* = the tokens' embeddings.
    pub(crate) fn begin<D: Device<Matrix = M, Vector = V>>(&self, device: &mut D) {
        device.embed(&self.embedding);
    }

    /// *logits* of the normed *residual*.
    pub(crate) fn end<D: Device<Matrix = M, Vector = V>>(&self, device: &mut D, config: &ModelConfig) {
        device.output(&self.norm, config.norm_epsilon, self.output_table());
    }
}
