//! Headers of tiny models without bytes behind them, and a device that notes what it is asked to do.

#![allow(dead_code, unreachable_pub)] // Each test file uses its part.

pub mod cpu;

use std::collections::BTreeMap;

use unfazed_device::{Batch, Class, Device, DeviceError, Generation, PageSpan, Part, StepOutput};
use unfazed_formats::checkpoint::{GgufTokenizer, Layout};
use unfazed_formats::config::{ExpertConfig, Family, RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{BlockFormat, Checkpoint, Extent, FileId, ModelConfig, TensorInfo, TokenizerSource};
use unfazed_store::experts::LayerExperts;
use unfazed_store::{MatrixSource, VectorSource};

pub const EXPERTS: usize = 3;
const HIDDEN: usize = 64;
const QUERY: usize = 96;
const KV: usize = 48;
const HEAD: usize = 24;
const WIDTH: usize = 128;
const VOCAB: usize = 50;

/// A model with one layer of the family.
pub fn checkpoint(family: Family, layout: Layout) -> Checkpoint {
    let experts = ExpertConfig { count: EXPERTS, used: 2, feed_forward: WIDTH, normalised: true };
    let rope = RopeConfig {
        base: 10_000.0,
        dimensions: HEAD,
        pairing: RopePairing::Halves,
        scaling: RopeScaling::None,
    };
    let config = ModelConfig {
        family,
        layers: 1,
        hidden: HIDDEN,
        heads: 4,
        kv_heads: 2,
        head_dim: HEAD,
        feed_forward: WIDTH,
        experts: (family == Family::Qwen3Moe).then_some(experts),
        vocab: VOCAB,
        context: 512,
        norm_epsilon: 1e-6,
        rope,
        tied_embeddings: false,
    };
    let mut checkpoint = Checkpoint {
        layout,
        files: Vec::new(),
        tensors: BTreeMap::new(),
        config,
        tokenizer: TokenizerSource::Gguf(GgufTokenizer::default()),
        chat_template: None,
        name: "tiny.gguf".to_owned(),
        tensor_bytes: 0,
    };
    match layout {
        Layout::Gguf => add_gguf(&mut checkpoint),
        Layout::HuggingFace => add_hugging_face(&mut checkpoint),
    }
    checkpoint
}

fn add_gguf(checkpoint: &mut Checkpoint) {
    let family = checkpoint.config.family;
    add(checkpoint, "token_embd.weight", &[VOCAB, HIDDEN], BlockFormat::Q8_0);
    add(checkpoint, "output.weight", &[VOCAB, HIDDEN], BlockFormat::Q8_0);
    add(checkpoint, "output_norm.weight", &[HIDDEN], BlockFormat::F32);
    let mut blk = |name: &str, shape: &[usize], format| {
        add(checkpoint, &format!("blk.0.{name}.weight"), shape, format);
    };
    blk("attn_norm", &[HIDDEN], BlockFormat::F32);
    blk("ffn_norm", &[HIDDEN], BlockFormat::F32);
    blk("attn_q", &[QUERY, HIDDEN], BlockFormat::Q4_0);
    blk("attn_k", &[KV, HIDDEN], BlockFormat::Q4_0);
    blk("attn_v", &[KV, HIDDEN], BlockFormat::Q4_0);
    blk("attn_output", &[HIDDEN, QUERY], BlockFormat::Q4_0);
    if family != Family::Llama {
        blk("attn_q_norm", &[HEAD], BlockFormat::F32);
        blk("attn_k_norm", &[HEAD], BlockFormat::F32);
    }
    if family == Family::Qwen3Moe {
        blk("ffn_gate_inp", &[EXPERTS, HIDDEN], BlockFormat::F32);
        blk("ffn_gate_exps", &[EXPERTS, WIDTH, HIDDEN], BlockFormat::Q4_0);
        blk("ffn_up_exps", &[EXPERTS, WIDTH, HIDDEN], BlockFormat::Q4_0);
        blk("ffn_down_exps", &[EXPERTS, HIDDEN, WIDTH], BlockFormat::Q4_0);
    } else {
        blk("ffn_gate", &[WIDTH, HIDDEN], BlockFormat::Q4_0);
        blk("ffn_up", &[WIDTH, HIDDEN], BlockFormat::Q4_0);
        blk("ffn_down", &[HIDDEN, WIDTH], BlockFormat::Q4_0);
    }
}

fn add_hugging_face(checkpoint: &mut Checkpoint) {
    let family = checkpoint.config.family;
    add(checkpoint, "model.embed_tokens.weight", &[VOCAB, HIDDEN], BlockFormat::BF16);
    add(checkpoint, "lm_head.weight", &[VOCAB, HIDDEN], BlockFormat::BF16);
    add(checkpoint, "model.norm.weight", &[HIDDEN], BlockFormat::BF16);
    let mut layer = |name: &str, shape: &[usize]| {
        add(checkpoint, &format!("model.layers.0.{name}.weight"), shape, BlockFormat::BF16);
    };
    layer("input_layernorm", &[HIDDEN]);
    layer("post_attention_layernorm", &[HIDDEN]);
    layer("self_attn.q_proj", &[QUERY, HIDDEN]);
    layer("self_attn.k_proj", &[KV, HIDDEN]);
    layer("self_attn.v_proj", &[KV, HIDDEN]);
    layer("self_attn.o_proj", &[HIDDEN, QUERY]);
    if family != Family::Llama {
        layer("self_attn.q_norm", &[HEAD]);
        layer("self_attn.k_norm", &[HEAD]);
    }
    let parts: Vec<String> = match family {
        Family::Qwen3Moe => (0..EXPERTS).map(|e| format!("mlp.experts.{e}")).collect(),
        _ => vec!["mlp".to_owned()],
    };
    for part in parts {
        layer(&format!("{part}.gate_proj"), &[WIDTH, HIDDEN]);
        layer(&format!("{part}.up_proj"), &[WIDTH, HIDDEN]);
        layer(&format!("{part}.down_proj"), &[HIDDEN, WIDTH]);
    }
    if family == Family::Qwen3Moe {
        layer("mlp.gate", &[EXPERTS, HIDDEN]);
    }
}

/// Adds or replaces a tensor.
pub fn add(checkpoint: &mut Checkpoint, name: &str, shape: &[usize], format: BlockFormat) {
    let columns = *shape.last().unwrap();
    let rows: usize = shape.iter().rev().skip(1).product();
    // A row that is not whole blocks still has bytes in a file.
    let row = format.row_bytes(columns).unwrap_or(columns);
    let offset = checkpoint.tensor_bytes;
    let extent = Extent { file: FileId(0), offset, len: (rows * row) as u64 };
    checkpoint.tensor_bytes += extent.len;
    let shape = shape.iter().map(|&n| n as u64).collect();
    let info = TensorInfo { name: name.to_owned(), shape, format, extent };
    checkpoint.tensors.insert(name.to_owned(), info);
}

/// A device that computes nothing and notes every operation with the names of its weights.
#[derive(Default)]
pub struct Recorder {
    pub matrices: Vec<MatrixSource>,
    pub vectors: Vec<VectorSource>,
    pub operations: Vec<String>,
}

impl Device for Recorder {
    type Matrix = String;
    type Vector = String;
    type Experts = [String; 3];

    fn load_matrix(&mut self, _: Part, source: &MatrixSource) -> Result<String, DeviceError> {
        self.matrices.push(source.clone());
        Ok(source.name.clone())
    }
    fn load_vector(&mut self, _: Part, source: &VectorSource) -> Result<String, DeviceError> {
        self.vectors.push(source.clone());
        Ok(source.name.clone())
    }
    fn load_experts(&mut self, layer: usize, experts: &LayerExperts) -> Result<[String; 3], DeviceError> {
        let part = Part::FeedForward(layer);
        let LayerExperts { gate, up, down } = experts;
        Ok([self.load_matrix(part, gate)?, self.load_matrix(part, up)?, self.load_matrix(part, down)?])
    }
    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceError> {
        self.operations.push(format!("begin {}", batch.rows.len()));
        Ok(())
    }
    fn embed(&mut self, table: &String) {
        self.operations.push(format!("embed {table}"));
    }
    fn norm(&mut self, weight: &String, epsilon: f32) {
        self.operations.push(format!("norm {weight} {epsilon}"));
    }
    fn project_qkv(&mut self, q: &String, k: &String, v: &String) {
        self.operations.push(format!("project_qkv {q} {k} {v}"));
    }
    fn norm_heads(&mut self, q: &String, k: &String, epsilon: f32) {
        self.operations.push(format!("norm_heads {q} {k} {epsilon}"));
    }
    fn rotate(&mut self, rope: &RopeConfig) {
        self.operations.push(format!("rotate {}", rope.dimensions));
    }
    fn attend(&mut self, layer: usize) {
        self.operations.push(format!("attend {layer}"));
    }
    fn project_context(&mut self, w: &String) {
        self.operations.push(format!("project_context {w}"));
    }
    fn feed_forward(&mut self, gate: &String, up: &String, down: &String) {
        self.operations.push(format!("feed_forward {gate} {up} {down}"));
    }
    fn mixture(&mut self, router: &String, [gate, up, down]: &[String; 3], config: &ExpertConfig) {
        self.operations.push(format!("mixture {router} {gate} {up} {down} {}", config.used));
    }
    fn look_ahead(&mut self, _: &String, _: f32, router: &String, _: &[String; 3], _: &ExpertConfig) {
        self.operations.push(format!("look_ahead {router}"));
    }
    fn output(&mut self, norm: &String, epsilon: f32, table: &String) {
        self.operations.push(format!("output {norm} {epsilon} {table}"));
    }
    fn digests(&mut self, _: &[PageSpan]) -> Result<Vec<u64>, DeviceError> {
        Err(DeviceError::Batch("the echo device keeps no pages".into()))
    }
    fn finish(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        self.operations.push("finish".to_owned());
        Ok(StepOutput::default())
    }
    fn generation(&self) -> Generation {
        Generation::default()
    }
    fn rebuild(&mut self, _: Class) -> Result<(), DeviceError> {
        Ok(())
    }
}
