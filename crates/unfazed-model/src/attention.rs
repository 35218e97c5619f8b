//! The attention half of a layer.

use unfazed_device::{Device, DeviceError, Part};
use unfazed_formats::ModelConfig;
use unfazed_store::{MatrixSource, Source, VectorSource};

use crate::ModelError;
use crate::catalog::Catalog;
use crate::names::PerLayer;

/// Norm, projections and, in Qwen3, a norm for each head's query and key.
pub(crate) struct Attention<M, V> {
    norm: V,
    query: M,
    key: M,
    value: M,
    head_norms: Option<HeadNorms<V>>,
    output: M,
}

struct HeadNorms<V> {
    query: V,
    key: V,
}

/// Whether each head of query and key is normed on its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadNorm {
    None,
    Rms,
}

impl Attention<MatrixSource, VectorSource> {
    pub(crate) fn find(
        catalog: &mut Catalog<'_>,
        layer: usize,
        head_norm: HeadNorm,
    ) -> Result<Self, ModelError> {
        let ModelConfig { hidden, heads, kv_heads, head_dim, .. } = *catalog.config();
        let (query_rows, kv_rows) = (heads * head_dim, kv_heads * head_dim);
        let head_norms = match head_norm {
            HeadNorm::None => None,
            HeadNorm::Rms => Some(HeadNorms {
                query: catalog.layer_vector(layer, PerLayer::QueryNorm, head_dim, "head width")?,
                key: catalog.layer_vector(layer, PerLayer::KeyNorm, head_dim, "head width")?,
            }),
        };
        let kv = "key heads * head width, hidden";
        Ok(Attention {
            norm: catalog.layer_vector(layer, PerLayer::AttentionNorm, hidden, "hidden")?,
            query: catalog.layer_matrix(
                layer,
                PerLayer::Query,
                [query_rows, hidden],
                "heads * head width, hidden",
            )?,
            key: catalog.layer_matrix(layer, PerLayer::Key, [kv_rows, hidden], kv)?,
            value: catalog.layer_matrix(layer, PerLayer::Value, [kv_rows, hidden], kv)?,
            head_norms,
            output: catalog.layer_matrix(
                layer,
                PerLayer::AttentionOutput,
                [hidden, query_rows],
                "hidden, heads * head width",
            )?,
        })
    }

    /// What [`Attention::load`] loads, in its order.
    pub(crate) fn in_order<'s>(&'s self, order: &mut Vec<Source<'s>>) {
        if let Some(norms) = &self.head_norms {
            order.extend([&norms.query, &norms.key].map(Source::Vector));
        }
        order.push(Source::Vector(&self.norm));
        order.extend(self.matrices().map(Source::Matrix));
    }

    pub(crate) fn load<D: Device>(
        &self,
        layer: usize,
        device: &mut D,
    ) -> Result<Attention<D::Matrix, D::Vector>, DeviceError> {
        let part = Part::Attention(layer);
        let head_norms = match &self.head_norms {
            None => None,
            Some(norms) => Some(HeadNorms {
                query: device.load_vector(part, &norms.query)?,
                key: device.load_vector(part, &norms.key)?,
            }),
        };
        Ok(Attention {
            norm: device.load_vector(part, &self.norm)?,
            query: device.load_matrix(part, &self.query)?,
            key: device.load_matrix(part, &self.key)?,
            value: device.load_matrix(part, &self.value)?,
            head_norms,
            output: device.load_matrix(part, &self.output)?,
        })
    }
}

impl<M, V> Attention<M, V> {
    /// All matrices.
    pub(crate) fn matrices(&self) -> [&M; 4] {
        [&self.query, &self.key, &self.value, &self.output]
    }

    /// *residual* += attention of the normed *residual*.
    pub(crate) fn apply<D>(&self, device: &mut D, config: &ModelConfig, layer: usize)
    where
        D: Device<Matrix = M, Vector = V>,
    {
        device.norm(&self.norm, config.norm_epsilon);
        device.project_qkv(&self.query, &self.key, &self.value);
        if let Some(norms) = &self.head_norms {
            device.norm_heads(&norms.query, &norms.key, config.norm_epsilon);
        }
        device.rotate(&config.rope);
        device.attend(layer);
        device.project_context(&self.output);
    }
}
