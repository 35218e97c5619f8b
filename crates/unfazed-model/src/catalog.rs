//! Looking tensors up by name and checking each against the shape that the model's configuration asks for.

use std::collections::BTreeSet;

use unfazed_formats::config::ExpertConfig;
use unfazed_formats::{Extent, Headers, ModelConfig, TensorInfo};
use unfazed_store::{MatrixSource, VectorSource};

use crate::ModelError;
use crate::names::{ExpertNames, Global, Names, PerExpert, PerLayer};

/// The tensors of a model; remembers which were asked for, so that what is left over can be judged.
pub(crate) struct Catalog<'c> {
    headers: &'c Headers,
    family: &'static str,
    names: Names,
    used: BTreeSet<&'c str>,
}

impl<'c> Catalog<'c> {
    pub(crate) fn new(headers: &'c Headers, family: &'static str) -> Catalog<'c> {
        Catalog { headers, family, names: Names(headers.layout), used: BTreeSet::new() }
    }

    pub(crate) fn config(&self) -> &'c ModelConfig {
        &self.headers.config
    }

    /// A matrix `[rows, columns]` of the whole model.
    pub(crate) fn matrix(
        &mut self,
        tensor: Global,
        shape: [usize; 2],
        reason: &'static str,
    ) -> Result<MatrixSource, ModelError> {
        self.matrix_named(self.names.global(tensor), shape, reason)
    }

    /// A matrix `[rows, columns]` of a layer.
    pub(crate) fn layer_matrix(
        &mut self,
        layer: usize,
        tensor: PerLayer,
        shape: [usize; 2],
        reason: &'static str,
    ) -> Result<MatrixSource, ModelError> {
        self.matrix_named(&self.names.layer(layer, tensor), shape, reason)
    }

    /// A vector of the whole model.
    pub(crate) fn vector(
        &mut self,
        tensor: Global,
        len: usize,
        reason: &'static str,
    ) -> Result<VectorSource, ModelError> {
        self.vector_named(self.names.global(tensor), len, reason)
    }

    /// A vector of a layer.
    pub(crate) fn layer_vector(
        &mut self,
        layer: usize,
        tensor: PerLayer,
        len: usize,
        reason: &'static str,
    ) -> Result<VectorSource, ModelError> {
        self.vector_named(&self.names.layer(layer, tensor), len, reason)
    }

    /// The stack of `count` matrices `[rows, columns]` of a layer's experts.
    pub(crate) fn experts(
        &mut self,
        layer: usize,
        tensor: PerExpert,
        count: usize,
        shape: [usize; 2],
        reason: &'static str,
    ) -> Result<MatrixSource, ModelError> {
        match self.names.experts(layer, tensor, count) {
            ExpertNames::Stacked(name) => self.stacked_experts(&name, count, shape, reason),
            ExpertNames::Single(names) => self.single_experts(&names, shape, reason),
        }
    }

    /// The experts' shape, for a family that has them in every layer.
    pub(crate) fn require_experts(&self) -> Result<ExpertConfig, ModelError> {
        let missing = || self.config_error("expert count", "not given", "has experts in every layer");
        self.config().experts.ok_or_else(missing)
    }

    /// For a family without experts.
    pub(crate) fn refuse_experts(&self) -> Result<(), ModelError> {
        match self.config().experts {
            None => Ok(()),
            Some(experts) => {
                Err(self.config_error("expert count", &experts.count.to_string(), "has no experts"))
            }
        }
    }

    /// Judges the tensors that were not asked for. What is known to change nothing is passed over; anything else is
    /// refused by name, because a forward pass that leaves out a bias or a norm gives fluent nonsense. Returns the bytes
    /// of the tensors that were asked for.
    pub(crate) fn finish(self) -> Result<u64, ModelError> {
        let mut bytes = 0u64;
        for (name, info) in &self.headers.tensors {
            if self.used.contains(name.as_str()) {
                bytes = bytes.saturating_add(info.extent.len);
                continue;
            }
            if self.harmless(name) {
                tracing::info!(tensor = %name, "tensor is not needed and was left out");
                continue;
            }
            return Err(ModelError::Unexpected {
                file: self.file_of(info),
                tensor: name.clone(),
                family: self.family,
                reason: guess(name),
            });
        }
        Ok(bytes)
    }

    /// Tensors that change nothing: rotary factors, which the configuration already holds (`rope_freqs.weight`) or which
    /// follow from it (`rotary_emb.inv_freq` in old checkpoints), and an output table next to tied embeddings.
    fn harmless(&self, name: &str) -> bool {
        let tied_output = self.config().tied_embeddings && name == self.names.global(Global::Output);
        name == "rope_freqs.weight" || name.ends_with("rotary_emb.inv_freq") || tied_output
    }

    fn matrix_named(
        &mut self,
        name: &str,
        shape: [usize; 2],
        reason: &'static str,
    ) -> Result<MatrixSource, ModelError> {
        let info = self.find(name, &shape, reason)?;
        self.row_bytes(info, shape)?;
        Ok(matrix_source(info, shape, vec![info.extent]))
    }

    fn stacked_experts(
        &mut self,
        name: &str,
        count: usize,
        shape: [usize; 2],
        reason: &'static str,
    ) -> Result<MatrixSource, ModelError> {
        let info = self.find(name, &[count, shape[0], shape[1]], reason)?;
        self.row_bytes(info, shape)?;
        let len = info.extent.len / count.max(1) as u64;
        let parts: Option<Vec<Extent>> = (0..count as u64).map(|e| info.extent.part(e * len, len)).collect();
        let parts = parts.ok_or_else(|| self.length_error(info, len.saturating_mul(count as u64)))?;
        Ok(matrix_source(info, shape, parts))
    }

    fn single_experts(
        &mut self,
        names: &[String],
        shape: [usize; 2],
        reason: &'static str,
    ) -> Result<MatrixSource, ModelError> {
        let mut found: Option<MatrixSource> = None;
        for name in names {
            let part = self.matrix_named(name, shape, reason)?;
            match &mut found {
                None => found = Some(part),
                Some(stack) if stack.format == part.format => stack.parts.extend(part.parts),
                Some(stack) => {
                    let reason = format!(
                        "{} has {:?}, and experts of a layer share a format",
                        stack.name, stack.format
                    );
                    let file = self.first_file();
                    return Err(ModelError::Format { file, tensor: part.name, format: part.format, reason });
                }
            }
        }
        found.ok_or_else(|| self.config_error("expert count", "0", "needs at least one expert"))
    }

    fn vector_named(
        &mut self,
        name: &str,
        len: usize,
        reason: &'static str,
    ) -> Result<VectorSource, ModelError> {
        let info = self.find(name, &[len], reason)?;
        if info.format.block_weights() != 1 {
            let reason = "a vector is stored as F32, F16 or BF16".to_owned();
            return Err(self.format_error(info, reason));
        }
        Ok(VectorSource { name: info.name.clone(), format: info.format, len, extent: info.extent })
    }

    /// The tensor of this name, its shape and its number of bytes checked.
    fn find(
        &mut self,
        name: &str,
        shape: &[usize],
        reason: &'static str,
    ) -> Result<&'c TensorInfo, ModelError> {
        let Some((key, info)) = self.headers.tensors.get_key_value(name) else {
            return Err(ModelError::Missing {
                file: self.first_file(),
                tensor: name.to_owned(),
                family: self.family,
                expected: show(shape),
            });
        };
        self.used.insert(key);
        let equal = info.shape.len() == shape.len()
            && info.shape.iter().zip(shape).all(|(&found, &expected)| found == expected as u64);
        if !equal {
            return Err(ModelError::Shape {
                file: self.file_of(info),
                tensor: name.to_owned(),
                found: show(&info.shape),
                expected: show(shape),
                reason,
            });
        }
        let columns = shape.last().copied().unwrap_or(0);
        let rows = shape.iter().rev().skip(1).fold(1u64, |product, &n| product.saturating_mul(n as u64));
        let Some(row) = info.format.row_bytes(columns) else {
            return Err(self.columns_error(info, columns));
        };
        let expected = rows.saturating_mul(row as u64);
        if info.extent.len != expected {
            return Err(self.length_error(info, expected));
        }
        Ok(info)
    }

    fn row_bytes(&self, info: &TensorInfo, shape: [usize; 2]) -> Result<usize, ModelError> {
        info.format.row_bytes(shape[1]).ok_or_else(|| self.columns_error(info, shape[1]))
    }

    fn columns_error(&self, info: &TensorInfo, columns: usize) -> ModelError {
        let block = info.format.block_weights();
        self.format_error(info, format!("rows of {columns} weights are not whole blocks of {block}"))
    }

    fn format_error(&self, info: &TensorInfo, reason: String) -> ModelError {
        ModelError::Format {
            file: self.file_of(info),
            tensor: info.name.clone(),
            format: info.format,
            reason,
        }
    }

    fn length_error(&self, info: &TensorInfo, expected: u64) -> ModelError {
        let (file, tensor) = (self.file_of(info), info.name.clone());
        ModelError::Length { file, tensor, found: info.extent.len, expected }
    }

    fn config_error(&self, field: &'static str, value: &str, reason: &'static str) -> ModelError {
        let (file, value) = (self.first_file(), value.to_owned());
        ModelError::Config { file, field, value, family: self.family, reason }
    }

    fn file_of(&self, info: &TensorInfo) -> String {
        self.file(info.extent.file.0 as usize)
    }

    fn first_file(&self) -> String {
        self.file(0)
    }

    fn file(&self, index: usize) -> String {
        self.headers.files.get(index).unwrap_or(&self.headers.name).clone()
    }
}

fn matrix_source(info: &TensorInfo, [rows, columns]: [usize; 2], parts: Vec<Extent>) -> MatrixSource {
    MatrixSource { name: info.name.clone(), format: info.format, rows, columns, parts }
}

fn show<T: std::fmt::Display>(shape: &[T]) -> String {
    let dimensions: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dimensions.join(", "))
}

/// What an unexpected tensor seems to be, for the person who reads the refusal.
fn guess(name: &str) -> &'static str {
    if name.ends_with(".bias") {
        "a bias; models of this family with biases are not supported"
    } else if name.contains("shexp") || name.contains("shared_expert") {
        "a shared expert"
    } else if name.contains("_exps") || name.contains(".experts.") {
        "an expert matrix that the configuration does not ask for"
    } else if name.contains("nextn") || name.contains("mtp") {
        "a layer for predicting several tokens"
    } else if name.contains("norm") {
        "a norm that this family does not have"
    } else if name.ends_with("scale") || name.contains("_scale_inv") {
        "a separate scale of quantised weights"
    } else {
        "it is unknown what it does"
    }
}
