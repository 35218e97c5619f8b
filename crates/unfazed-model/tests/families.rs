//! Each family asks the device for the right operations with the right weights, in both layouts; files that contradict
//! their configuration are refused by name before anything is loaded.

#![allow(clippy::unwrap_used, clippy::panic)] // A test may.

mod common;

use common::{EXPERTS, Recorder, add, checkpoint};
use unfazed_device::{Batch, BatchRow, PageId};
use unfazed_formats::checkpoint::Layout;
use unfazed_formats::config::Family;
use unfazed_formats::{BlockFormat, Checkpoint, Headers};
use unfazed_model::{Model, Sources};

fn operations(checkpoint: &Checkpoint) -> Vec<String> {
    let mut device = Recorder::default();
    let model = Model::load(checkpoint, &mut device).unwrap();
    let rows = vec![BatchRow { token: 1, sequence: 0, position: 0, logits: true, generated: false }];
    model.forward(&mut device, &Batch { rows, sequences: vec![vec![PageId(0)]] }).unwrap();
    device.operations
}

fn refusal(checkpoint: &Checkpoint) -> String {
    match Sources::find(&checkpoint.into()) {
        Ok(_) => panic!("the checkpoint was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn llama_is_attention_and_a_gated_unit() {
    let expected = [
        "begin 1",
        "embed token_embd.weight",
        "norm blk.0.attn_norm.weight 0.000001",
        "project_qkv blk.0.attn_q.weight blk.0.attn_k.weight blk.0.attn_v.weight",
        "rotate 24",
        "attend 0",
        "project_context blk.0.attn_output.weight",
        "norm blk.0.ffn_norm.weight 0.000001",
        "feed_forward blk.0.ffn_gate.weight blk.0.ffn_up.weight blk.0.ffn_down.weight",
        "output output_norm.weight 0.000001 output.weight",
        "finish",
    ];
    assert_eq!(operations(&checkpoint(Family::Llama, Layout::Gguf)), expected);
}

#[test]
fn qwen3_norms_heads_before_it_rotates_them() {
    let all = operations(&checkpoint(Family::Qwen3, Layout::HuggingFace));
    let attention = "model.layers.0.self_attn";
    assert_eq!(all[4], format!("norm_heads {attention}.q_norm.weight {attention}.k_norm.weight 0.000001"));
    assert_eq!(all[5], "rotate 24");
}

#[test]
fn qwen3moe_has_a_mixture_in_every_layer_from_both_layouts() {
    let gguf = operations(&checkpoint(Family::Qwen3Moe, Layout::Gguf));
    let blk = |name: &str| format!("blk.0.ffn_{name}.weight");
    let mixture = [blk("gate_inp"), blk("gate_exps"), blk("up_exps"), blk("down_exps")].join(" ");
    assert!(gguf.contains(&format!("mixture {mixture} 2")), "{gguf:?}");
    let hf = operations(&checkpoint(Family::Qwen3Moe, Layout::HuggingFace));
    assert_eq!(hf.len(), gguf.len());
    assert!(hf.iter().any(|operation| operation.starts_with("mixture model.layers.0.mlp.gate.weight ")));
}

#[test]
fn a_stack_of_experts_is_cut_into_equal_parts_in_order() {
    for layout in [Layout::Gguf, Layout::HuggingFace] {
        let checkpoint = checkpoint(Family::Qwen3Moe, layout);
        let mut device = Recorder::default();
        Model::load(&checkpoint, &mut device).unwrap();
        let stacks: Vec<_> = device.matrices.iter().filter(|matrix| matrix.parts.len() > 1).collect();
        assert_eq!(stacks.len(), 3);
        for stack in stacks {
            assert_eq!(stack.parts.len(), EXPERTS);
            let len = (stack.rows * stack.format.row_bytes(stack.columns).unwrap()) as u64;
            assert!(stack.parts.iter().all(|part| part.len == len));
            assert!(stack.parts.windows(2).all(|pair| pair[0].offset < pair[1].offset));
        }
        let up = device.matrices.iter().find(|matrix| matrix.name.contains("up")).unwrap();
        let first = match layout {
            Layout::Gguf => checkpoint.tensors["blk.0.ffn_up_exps.weight"].extent.offset,
            Layout::HuggingFace => {
                checkpoint.tensors["model.layers.0.mlp.experts.0.up_proj.weight"].extent.offset
            }
        };
        assert_eq!(up.parts[0].offset, first);
    }
}

#[test]
fn the_bytes_announced_are_those_of_all_tensors() {
    let checkpoint = checkpoint(Family::Qwen3Moe, Layout::HuggingFace);
    let sources = Sources::find(&Headers::from(&checkpoint)).unwrap();
    assert_eq!(sources.bytes(), checkpoint.tensor_bytes);
}

#[test]
fn tied_embeddings_are_loaded_once_and_an_output_table_beside_them_is_left_out() {
    let mut checkpoint = checkpoint(Family::Llama, Layout::Gguf);
    checkpoint.config.tied_embeddings = true;
    let all = operations(&checkpoint);
    assert_eq!(all[all.len() - 2], "output output_norm.weight 0.000001 token_embd.weight");
    let output = checkpoint.tensors["output.weight"].extent.len;
    assert_eq!(Sources::find(&Headers::from(&checkpoint)).unwrap().bytes(), checkpoint.tensor_bytes - output);
}

#[test]
fn a_missing_tensor_is_named_in_either_layout() {
    let mut gguf = checkpoint(Family::Qwen3Moe, Layout::Gguf);
    gguf.tensors.remove("blk.0.ffn_up_exps.weight");
    let expected = "tiny.gguf: tensor blk.0.ffn_up_exps.weight is missing: the family qwen3moe needs it, \
                    shaped [3, 128, 64]";
    assert_eq!(refusal(&gguf), expected);
    let mut hf = checkpoint(Family::Qwen3Moe, Layout::HuggingFace);
    hf.tensors.remove("model.layers.0.mlp.experts.2.down_proj.weight");
    assert!(refusal(&hf).contains("model.layers.0.mlp.experts.2.down_proj.weight is missing"));
}

#[test]
fn a_shape_that_contradicts_the_configuration_is_refused_with_both() {
    let mut transposed = checkpoint(Family::Llama, Layout::Gguf);
    add(&mut transposed, "blk.0.attn_output.weight", &[96, 64], BlockFormat::Q4_0);
    let expected = "tiny.gguf: tensor blk.0.attn_output.weight has the shape [96, 64], expected [64, 96] \
                    (hidden, heads * head width)";
    assert_eq!(refusal(&transposed), expected);
    let mut flat = checkpoint(Family::Llama, Layout::Gguf);
    add(&mut flat, "blk.0.attn_norm.weight", &[1, 64], BlockFormat::F32);
    assert!(refusal(&flat).contains("[1, 64], expected [64]"));
    let mut few = checkpoint(Family::Qwen3Moe, Layout::HuggingFace);
    add(&mut few, "model.layers.0.mlp.gate.weight", &[2, 64], BlockFormat::BF16);
    assert!(refusal(&few).contains("[2, 64], expected [3, 64]"));
}

#[test]
fn rows_that_are_not_whole_blocks_are_refused() {
    let mut checkpoint = checkpoint(Family::Llama, Layout::Gguf);
    add(&mut checkpoint, "blk.0.ffn_up.weight", &[128, 64], BlockFormat::Q4_K);
    let expected = "tiny.gguf: tensor blk.0.ffn_up.weight has the format Q4_K: rows of 64 weights are not whole \
                    blocks of 256";
    assert_eq!(refusal(&checkpoint), expected);
}

#[test]
fn a_vector_in_blocks_is_refused() {
    let mut checkpoint = checkpoint(Family::Llama, Layout::Gguf);
    add(&mut checkpoint, "blk.0.attn_norm.weight", &[64], BlockFormat::Q8_0);
    assert!(
        refusal(&checkpoint)
            .contains("blk.0.attn_norm.weight has the format Q8_0: a vector is stored as F32")
    );
}

#[test]
fn bytes_that_do_not_match_the_shape_are_refused() {
    let mut checkpoint = checkpoint(Family::Llama, Layout::Gguf);
    checkpoint.tensors.get_mut("output_norm.weight").unwrap().extent.len -= 1;
    assert!(refusal(&checkpoint).contains("output_norm.weight has 255 bytes, its shape and format need 256"));
}

#[test]
fn experts_of_one_layer_in_two_formats_are_refused() {
    let mut checkpoint = checkpoint(Family::Qwen3Moe, Layout::HuggingFace);
    add(&mut checkpoint, "model.layers.0.mlp.experts.1.up_proj.weight", &[128, 64], BlockFormat::F16);
    assert!(refusal(&checkpoint).contains("experts.1.up_proj.weight has the format F16: "));
}

#[test]
fn a_tensor_that_the_family_does_not_use_is_refused_and_harmless_ones_are_not() {
    for (name, reason) in [
        ("blk.0.attn_q.bias", "a bias"),
        ("blk.0.ffn_up_shexp.weight", "a shared expert"),
        ("blk.0.attn_sub_norm.weight", "a norm"),
        ("blk.1.attn_q.weight", "unknown"),
        ("blk.0.attn_q.scale", "a separate scale"),
    ] {
        let mut checkpoint = checkpoint(Family::Llama, Layout::Gguf);
        add(&mut checkpoint, name, &[96], BlockFormat::F32);
        let refusal = refusal(&checkpoint);
        assert!(refusal.contains(name) && refusal.contains(reason), "{refusal}");
    }
    let mut checkpoint = checkpoint(Family::Llama, Layout::Gguf);
    add(&mut checkpoint, "rope_freqs.weight", &[12], BlockFormat::F32);
    add(&mut checkpoint, "model.layers.0.self_attn.rotary_emb.inv_freq", &[12], BlockFormat::F32);
    Sources::find(&Headers::from(&checkpoint)).unwrap();
}

#[test]
fn a_configuration_with_or_without_experts_must_fit_the_family() {
    let mut without = checkpoint(Family::Qwen3Moe, Layout::Gguf);
    without.config.experts = None;
    assert!(refusal(&without).contains("expert count is not given: the family qwen3moe has experts"));
    let mut with = checkpoint(Family::Llama, Layout::Gguf);
    with.config.experts = checkpoint(Family::Qwen3Moe, Layout::Gguf).config.experts;
    assert!(refusal(&with).contains("expert count is 3: the family llama has no experts"));
}
