//! What tensors are called: by the GGUF specification (`blk.N.attn_q.weight`) and in Hugging Face checkpoints
//! (`model.layers.N.self_attn.q_proj.weight`).

use unfazed_formats::checkpoint::Layout;

/// A tensor that there is once in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Global {
    Embedding,
    OutputNorm,
    Output,
}

/// A tensor that each layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PerLayer {
    AttentionNorm,
    Query,
    Key,
    Value,
    QueryNorm,
    KeyNorm,
    AttentionOutput,
    FeedForwardNorm,
    Gate,
    Up,
    Down,
    Router,
}

/// A matrix that each expert of a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PerExpert {
    Gate,
    Up,
    Down,
}

/// Names of one layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names(pub(crate) Layout);

impl Names {
    pub(crate) fn global(self, tensor: Global) -> &'static str {
        match (self.0, tensor) {
            (Layout::Gguf, Global::Embedding) => "token_embd.weight",
            (Layout::Gguf, Global::OutputNorm) => "output_norm.weight",
            (Layout::Gguf, Global::Output) => "output.weight",
            (Layout::HuggingFace, Global::Embedding) => "model.embed_tokens.weight",
            (Layout::HuggingFace, Global::OutputNorm) => "model.norm.weight",
            (Layout::HuggingFace, Global::Output) => "lm_head.weight",
        }
    }

    pub(crate) fn layer(self, layer: usize, tensor: PerLayer) -> String {
        match self.0 {
            Layout::Gguf => format!("blk.{layer}.{}.weight", gguf_layer(tensor)),
            Layout::HuggingFace => format!("model.layers.{layer}.{}.weight", hugging_face_layer(tensor)),
        }
    }

    /// Names of an expert matrix: one stacked tensor, or one tensor for each of `count` experts.
    pub(crate) fn experts(self, layer: usize, tensor: PerExpert, count: usize) -> ExpertNames {
        let part = match tensor {
            PerExpert::Gate => "gate",
            PerExpert::Up => "up",
            PerExpert::Down => "down",
        };
        match self.0 {
            Layout::Gguf => ExpertNames::Stacked(format!("blk.{layer}.ffn_{part}_exps.weight")),
            Layout::HuggingFace => ExpertNames::Single(
                (0..count)
                    .map(|e| format!("model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"))
                    .collect(),
            ),
        }
    }
}

/// How a layout keeps the experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpertNames {
    /// One tensor `[count, rows, columns]`.
    Stacked(String),
    /// One tensor `[rows, columns]` an expert.
    Single(Vec<String>),
}

fn gguf_layer(tensor: PerLayer) -> &'static str {
    match tensor {
        PerLayer::AttentionNorm => "attn_norm",
        PerLayer::Query => "attn_q",
        PerLayer::Key => "attn_k",
        PerLayer::Value => "attn_v",
        PerLayer::QueryNorm => "attn_q_norm",
        PerLayer::KeyNorm => "attn_k_norm",
        PerLayer::AttentionOutput => "attn_output",
        PerLayer::FeedForwardNorm => "ffn_norm",
        PerLayer::Gate => "ffn_gate",
        PerLayer::Up => "ffn_up",
        PerLayer::Down => "ffn_down",
        PerLayer::Router => "ffn_gate_inp",
    }
}

fn hugging_face_layer(tensor: PerLayer) -> &'static str {
    match tensor {
        PerLayer::AttentionNorm => "input_layernorm",
        PerLayer::Query => "self_attn.q_proj",
        PerLayer::Key => "self_attn.k_proj",
        PerLayer::Value => "self_attn.v_proj",
        PerLayer::QueryNorm => "self_attn.q_norm",
        PerLayer::KeyNorm => "self_attn.k_norm",
        PerLayer::AttentionOutput => "self_attn.o_proj",
        PerLayer::FeedForwardNorm => "post_attention_layernorm",
        PerLayer::Gate => "mlp.gate_proj",
        PerLayer::Up => "mlp.up_proj",
        PerLayer::Down => "mlp.down_proj",
        PerLayer::Router => "mlp.gate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_both_layouts() {
        let gguf = Names(Layout::Gguf);
        let hf = Names(Layout::HuggingFace);
        assert_eq!(gguf.layer(7, PerLayer::Router), "blk.7.ffn_gate_inp.weight");
        assert_eq!(hf.layer(7, PerLayer::Router), "model.layers.7.mlp.gate.weight");
        let stacked = ExpertNames::Stacked("blk.3.ffn_up_exps.weight".into());
        assert_eq!(gguf.experts(3, PerExpert::Up, 2), stacked);
        let single = [
            "model.layers.3.mlp.experts.0.down_proj.weight",
            "model.layers.3.mlp.experts.1.down_proj.weight",
        ];
        assert_eq!(hf.experts(3, PerExpert::Down, 2), ExpertNames::Single(single.map(String::from).to_vec()));
    }
}
