//! Which tensors a model of a shape has, by their names in GGUF files.

use unfazed_formats::ModelConfig;
use unfazed_formats::config::Family;

/// What a tensor is for, as far as its values and its format depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Weights of a norm: floats near 1.
    Norm,
    /// The embedding table.
    Embedding,
    /// The output table.
    Output,
    /// The router of a layer: floats.
    Router,
    /// Queries or keys, whose rows the `llama` family permutes in GGUF files; with the number of heads.
    Rotated(usize),
    /// Values of a layer.
    Values(usize),
    /// A stack of down projections of a layer's experts, or the dense one.
    Down(usize),
    /// Any other matrix, or stack of matrices.
    Matrix,
}

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTensor {
    /// Name in GGUF files.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// Standard deviation of its values (for norms: spread around 1), so that activations stay finite.
    pub standard_deviation: f32,
}

impl ModelTensor {
    fn norm(name: String, width: usize) -> ModelTensor {
        ModelTensor { name, shape: vec![width], role: Role::Norm, standard_deviation: 0.1 }
    }

    fn matrix(name: String, shape: Vec<usize>, role: Role, gain: f32) -> ModelTensor {
        let fan_in = shape.last().copied().unwrap_or(1) as f32;
        ModelTensor { name, shape, role, standard_deviation: gain / fan_in.sqrt() }
    }

    /// Number of weights.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Weights of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// True for a stack of matrices of which a token uses only some.
    pub fn is_experts(&self) -> bool {
        self.shape.len() == 3
    }
}

/// The tensors of a model, in the order in which files have them.
pub fn tensors(config: &ModelConfig) -> Vec<ModelTensor> {
    // A tied table is read by rows and multiplied with: its gain is the output's.
    let embedding_gain = if config.tied_embeddings { 1.0 } else { (config.hidden as f32).sqrt() };
    let table = vec![config.vocab, config.hidden];
    let mut all = vec![ModelTensor::matrix(
        "token_embd.weight".to_owned(),
        table.clone(),
        Role::Embedding,
        embedding_gain,
    )];
    for layer in 0..config.layers {
        attention(config, layer, &mut all);
        feed_forward(config, layer, &mut all);
    }
    all.push(ModelTensor::norm("output_norm.weight".to_owned(), config.hidden));
    if !config.tied_embeddings {
        all.push(ModelTensor::matrix("output.weight".to_owned(), table, Role::Output, 1.0));
    }
    all
}

fn attention(config: &ModelConfig, layer: usize, all: &mut Vec<ModelTensor>) {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let hidden = config.hidden;
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let rotated = Role::Rotated;
    all.push(ModelTensor::norm(name("attn_norm"), hidden));
    all.push(ModelTensor::matrix(name("attn_q"), vec![q, hidden], rotated(config.heads), 1.0));
    all.push(ModelTensor::matrix(name("attn_k"), vec![kv, hidden], rotated(config.kv_heads), 1.0));
    all.push(ModelTensor::matrix(name("attn_v"), vec![kv, hidden], Role::Values(layer), 1.0));
    all.push(ModelTensor::matrix(name("attn_output"), vec![hidden, q], Role::Matrix, 0.5));
    if config.family != Family::Llama {
        all.push(ModelTensor::norm(name("attn_q_norm"), config.head_dim));
        all.push(ModelTensor::norm(name("attn_k_norm"), config.head_dim));
    }
}

fn feed_forward(config: &ModelConfig, layer: usize, all: &mut Vec<ModelTensor>) {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let hidden = config.hidden;
    all.push(ModelTensor::norm(name("ffn_norm"), hidden));
    let (suffix, stack, width) = match config.experts {
        Some(experts) => {
            let shape = vec![experts.count, hidden];
            all.push(ModelTensor::matrix(name("ffn_gate_inp"), shape, Role::Router, 1.0));
            ("_exps", Some(experts.count), experts.feed_forward)
        }
        None => ("", None, config.feed_forward),
    };
    let shape = |rows, columns| stack.into_iter().chain([rows, columns]).collect::<Vec<usize>>();
    for part in ["ffn_gate", "ffn_up"] {
        let name = name(&format!("{part}{suffix}"));
        all.push(ModelTensor::matrix(name, shape(width, hidden), Role::Matrix, 1.0));
    }
    let name = name(&format!("ffn_down{suffix}"));
    all.push(ModelTensor::matrix(name, shape(hidden, width), Role::Down(layer), 1.0));
}
