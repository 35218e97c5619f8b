//! The demo model, read from its file.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use unfazed_formats::checkpoint::Layout;
use unfazed_formats::config::{ExpertConfig, Family, RopePairing, RopeScaling};
use unfazed_formats::{BlockFormat, ByteSource, Checkpoint, TokenizerSource};

fn demo() -> Checkpoint {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-moe-29m-Q4_0.gguf");
    Checkpoint::open(&path).unwrap()
}

#[test]
fn the_demo_model_has_the_shape_of_its_card() {
    let demo = demo();
    assert_eq!(demo.layout, Layout::Gguf);
    assert_eq!(demo.name, "Stories MoE 29M");
    let config = &demo.config;
    assert_eq!(config.family, Family::Qwen3Moe);
    assert_eq!((config.layers, config.hidden, config.vocab, config.context), (8, 256, 8192, 2048));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (4, 2, 64));
    let experts = ExpertConfig { count: 16, used: 4, feed_forward: 256, normalised: true };
    assert_eq!(config.experts, Some(experts));
    assert_eq!(config.norm_epsilon, 1e-6);
    assert_eq!((config.rope.base, config.rope.dimensions), (1e4, 64));
    assert_eq!((config.rope.pairing, &config.rope.scaling), (RopePairing::Halves, &RopeScaling::None));
    assert!(config.tied_embeddings);
    assert!(demo.chat_template.is_some_and(|template| template.contains("<|im_start|>")));
}

#[test]
fn the_demo_models_tensors_fill_its_file() {
    let demo = demo();
    assert_eq!(demo.tensors.len(), 98);
    let experts = &demo.tensors["blk.0.ffn_gate_exps.weight"];
    assert_eq!((experts.format, experts.shape.as_slice()), (BlockFormat::Q4_0, [16, 256, 256].as_slice()));
    assert_eq!(experts.extent.len, experts.elements() / 32 * 18);
    let end = demo.tensors.values().map(|tensor| tensor.extent.offset + tensor.extent.len).max();
    assert_eq!(end, Some(demo.files[0].len()));
    assert!(demo.tensor_bytes < demo.files[0].len());
}

#[test]
fn the_demo_models_tokenizer_is_read() {
    let TokenizerSource::Gguf(tokenizer) = demo().tokenizer else { panic!("not from GGUF") };
    assert_eq!((tokenizer.model.as_str(), tokenizer.pre.as_deref()), ("gpt2", Some("smollm")));
    assert_eq!((tokenizer.tokens.len(), tokenizer.types.len()), (8192, 8192));
    assert_eq!((tokenizer.bos, tokenizer.eos, tokenizer.unknown), (Some(0), Some(2), Some(0)));
    assert_eq!(tokenizer.add_bos, Some(false));
    assert!(tokenizer.merges.iter().all(|merge| merge.split(' ').count() == 2));
}
