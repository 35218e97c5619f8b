//! A model's weights taken apart: experts by any layout's names, and everything else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{QWEN3_30B, Shape};
use unfazed_formats::{BlockFormat, Extent, FileId, TensorInfo};
use unfazed_plan::{Weights, needs};

const SHAPE: Shape = Shape { layers: 3, experts: Some((4, 2, 512)), ..QWEN3_30B };

fn tensor(name: &str, shape: &[u64], len: u64) -> TensorInfo {
    let extent = Extent { file: FileId(0), offset: 0, len };
    TensorInfo { name: name.to_owned(), shape: shape.to_vec(), format: BlockFormat::Q8_0, extent }
}

#[test]
fn experts_are_found_by_the_names_of_both_layouts() {
    let (config, part) = (SHAPE.config(), 512 * 2048 / 32 * 34);
    let stacked = ["gate", "up", "down"].map(|name| {
        let shape = if name == "down" { [4, 2048, 512] } else { [4, 512, 2048] };
        tensor(&format!("blk.2.ffn_{name}_exps.weight"), &shape, 4 * part)
    });
    let single = (0..4).flat_map(|expert| {
        ["gate_proj", "up_proj", "down_proj"].map(|name| {
            let shape = if name == "down_proj" { [2048, 512] } else { [512, 2048] };
            tensor(&format!("model.layers.2.mlp.experts.{expert}.{name}.weight"), &shape, part)
        })
    });
    let [gguf, hugging_face] =
        [Weights::of(&config, &stacked), Weights::of(&config, &single.collect::<Vec<_>>())];
    assert_eq!(gguf.layers, hugging_face.layers);
    let [layer] = &gguf.layers[..] else { panic!("one layer: {gguf:?}") };
    assert_eq!((layer.layer, layer.expert.file.0, layer.expert.macs), (2, 3 * part, 3 * 512 * 2048));
    assert_eq!(gguf.dense.0, 0);
    let slot = gguf.slot_bytes(layer);
    assert!(slot.0.is_multiple_of(4096) && slot.0 >= layer.expert.packed.0 + needs::SLOT_RECORD.0);
}

#[test]
fn what_every_token_uses_is_no_expert() {
    let config = SHAPE.config();
    let names = ["blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_shexp.weight", "model.layers.0.mlp.gate.weight"];
    let tensors = names.map(|name| tensor(name, &[32, 2048], 1000));
    let weights = Weights::of(&config, &tensors);
    assert!(weights.layers.is_empty());
    assert_eq!((weights.dense, weights.body.macs), (weights.all, 3 * 32 * 2048));
}

#[test]
fn dense_weights_and_slots_hold_all_that_is_packed() {
    let weights = SHAPE.weights();
    let slots: u64 = weights.layers.iter().map(|layer| 4 * weights.slot_bytes(layer).0).sum();
    assert_eq!(weights.layers.len(), 3);
    assert!(weights.dense.0 + slots >= weights.all.0);
    assert_eq!(weights.all, needs::packed_weights(&SHAPE.tensors()));
    // The embedding is read by the row; the output table is as large and counts once.
    assert_eq!(weights.output.macs, 50_000 * 2048);
    assert!(weights.dense.0 > weights.body.packed.0 + weights.output.packed.0);
}
