//! Routers with a skew choose experts as often as they were meant to.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::Path;

use unfazed_formats::config::ExpertConfig;
use unfazed_formats::{ByteSource, Checkpoint, ModelConfig};
use unfazed_testkit::rng::Rng;
use unfazed_testkit::shape::Preset;
use unfazed_testkit::{Mix, RouterSkew, SyntheticModel, vocabulary};

const SEED: u64 = 5;
const TOKENS: usize = 8000;

/// OLMoE's width and number of experts, but two layers of narrow experts.
fn config() -> ModelConfig {
    let experts = Some(ExpertConfig { count: 64, used: 8, feed_forward: 32, normalised: true });
    ModelConfig { layers: 2, hidden: 2048, experts, ..Preset::Tiny.config(vocabulary::tiny_len()) }
}

fn write(path: &Path, config: ModelConfig, router_skew: Option<RouterSkew>) -> Checkpoint {
    let (mix, tokenizer) = (Mix::from_name("q4_0").unwrap(), vocabulary::tiny_metadata());
    let model = SyntheticModel { name: "skewed".to_owned(), config, mix, tokenizer, seed: SEED, router_skew };
    model.write(path, 2, &|_, _| ()).unwrap();
    Checkpoint::open(path).unwrap()
}

fn skew(exponent: f64, config: &ModelConfig) -> Result<RouterSkew, String> {
    RouterSkew::new(exponent, &config.experts.unwrap()).map_err(|error| error.to_string())
}

fn router_name(layer: usize) -> String {
    format!("blk.{layer}.ffn_gate_inp.weight")
}

/// The share of random tokens that each expert of a layer gets, where activations are normal with deviation 1.
fn measured(checkpoint: &Checkpoint, layer: usize) -> Vec<f64> {
    let extent = checkpoint.tensors[&router_name(layer)].extent;
    let mut bytes = vec![0; extent.len as usize];
    checkpoint.files[0].read_exact_at(&mut bytes, extent.offset).unwrap();
    let router: Vec<f32> =
        bytes.as_chunks::<4>().0.iter().map(|weight| f32::from_le_bytes(*weight)).collect();
    let (experts, hidden) = (checkpoint.config.experts.unwrap(), checkpoint.config.hidden);
    let mut rng = Rng::new(SEED, "activations", 0);
    let mut uses = vec![0; experts.count];
    for _ in 0..TOKENS {
        // Box and Muller's transform.
        let mut normal =
            || (-2.0 * rng.uniform(1e-7, 1.0).ln()).sqrt() * rng.uniform(0.0, std::f32::consts::TAU).cos();
        let activation: Vec<f32> = (0..hidden).map(|_| normal()).collect();
        let logit = |row: &[f32]| row.iter().zip(&activation).map(|(weight, x)| weight * x).sum::<f32>();
        let mut logits: Vec<(f32, usize)> = router.chunks(hidden).map(logit).zip(0..).collect();
        logits.sort_by(|a, b| b.0.total_cmp(&a.0));
        logits[..experts.used].iter().for_each(|(_, expert)| uses[*expert] += 1);
    }
    uses.iter().map(|uses| f64::from(*uses) / TOKENS as f64).collect()
}

/// The part of all uses that went to another expert than wanted.
fn misplaced(measured: &[f64], wanted: &[f64]) -> f64 {
    let apart: f64 = measured.iter().zip(wanted).map(|(measured, wanted)| (measured - wanted).abs()).sum();
    apart / 2.0 / wanted.iter().sum::<f64>()
}

#[test]
fn skewed_routers_use_experts_in_the_wanted_shares_and_each_layer_has_its_own_favourites() {
    let folder = tempfile::tempdir().unwrap();
    let config = config();
    let skew = skew(1.0, &config).unwrap();
    assert!((skew.shares().iter().sum::<f64>() - 8.0).abs() < 1e-9);
    let zipf = skew.shares()[63] * 64.0;
    assert!((0..64).all(|rank| (skew.shares()[rank] - (zipf / (rank + 1) as f64).min(0.45)).abs() < 1e-9));

    let checkpoint = write(&folder.path().join("skewed.gguf"), config, Some(skew.clone()));
    let layers = [0, 1].map(|layer| {
        let measured = measured(&checkpoint, layer);
        let ranks = skew.ranks(SEED, &router_name(layer));
        let wanted: Vec<f64> = ranks.iter().map(|rank| skew.shares()[*rank]).collect();
        // 1 % is the law's own error, the rest chance: of the tokens, and of the rows' norms.
        assert!(misplaced(&measured, &wanted) < 0.03, "{measured:?} {wanted:?}");
        for (measured, wanted) in measured.iter().zip(&wanted) {
            assert!((measured - wanted).abs() < 0.01 + 0.15 * wanted.min(0.1), "{measured} {wanted}");
        }
        measured
    });
    assert!(misplaced(&layers[0], &layers[1]) > 0.2, "{layers:?}");
}

#[test]
fn routers_without_a_skew_use_all_experts_alike() {
    let folder = tempfile::tempdir().unwrap();
    let shares = measured(&write(&folder.path().join("flat.gguf"), config(), None), 0);
    assert!(misplaced(&shares, &[0.125; 64]) < 0.03, "{shares:?}");
    assert!(shares.iter().all(|share| (share - 0.125).abs() < 0.025), "{shares:?}");
}

#[test]
fn a_skew_changes_routers_alone_and_none_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = Preset::Tiny.config(vocabulary::tiny_len());
    let write = |exponent: Option<f64>| {
        let path = folder.path().join("tiny.gguf");
        let skew = exponent.map(|exponent| skew(exponent, &config).unwrap());
        let checkpoint = write(&path, config.clone(), skew);
        (checkpoint, std::fs::read(path).unwrap())
    };
    let ((checkpoint, mut flat), (_, mut skewed)) = (write(None), write(Some(1.0)));
    assert!(write(Some(0.0)).1 == flat);
    for layer in 0..config.layers {
        let extent = checkpoint.tensors[&router_name(layer)].extent;
        let router = extent.offset as usize..(extent.offset + extent.len) as usize;
        assert!(flat[router.clone()] != skewed[router.clone()], "layer {layer}");
        flat[router.clone()].fill(0);
        skewed[router].fill(0);
    }
    assert!(flat == skewed);
}

#[test]
fn a_skew_that_cannot_be_is_refused_with_the_largest_that_can() {
    for (preset, largest) in [(Preset::Tiny, 5.08), (Preset::Olmoe7b, 2.45), (Preset::Qwen3A3b, 1.86)] {
        let config = preset.config(vocabulary::tiny_len());
        assert_eq!(skew(largest, &config).unwrap().shares().len(), config.experts.unwrap().count);
        for larger in [largest + 0.01, 1e300] {
            let error = skew(larger, &config).unwrap_err();
            assert!(error.contains(&format!("at most {largest} works")), "{error}");
        }
        for outside in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(skew(outside, &config).unwrap_err().contains("a number from 0"));
        }
    }
    let half = ExpertConfig { count: 8, used: 4, feed_forward: 32, normalised: true };
    assert!(RouterSkew::new(1.0, &half).unwrap_err().to_string().contains("4 of 8 experts"));
}
