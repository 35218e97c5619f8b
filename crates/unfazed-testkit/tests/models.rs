//! Models that the testkit writes are read back as what they were meant to be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use unfazed_formats::checkpoint::Layout;
use unfazed_formats::config::{Family, RopePairing, RopeScaling};
use unfazed_formats::source::FileSource;
use unfazed_formats::{BlockFormat, ByteSource, Checkpoint, TokenizerSource};
use unfazed_testkit::quantise::QUANTISED;
use unfazed_testkit::shape::Preset;
use unfazed_testkit::{Mix, SyntheticModel, TinyModel, vocabulary};

const FAMILIES: [Family; 3] = [Family::Llama, Family::Qwen3, Family::Qwen3Moe];

fn bytes_of(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let extent = checkpoint.tensors[name].extent;
    let mut bytes = vec![0; extent.len as usize];
    let file: &FileSource = &checkpoint.files[extent.file.0 as usize];
    file.read_exact_at(&mut bytes, extent.offset).unwrap();
    bytes
}

#[test]
fn every_family_in_every_format_has_its_shape_as_gguf() {
    let folder = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        for format in QUANTISED {
            let mut model = TinyModel::new(family, format);
            model.config.layers = 1;
            model.config.tied_embeddings = format == BlockFormat::Q8_0;
            let path = folder.path().join("tiny.gguf");
            model.write_gguf(&path).unwrap();
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert_eq!(checkpoint.config, model.config);
            let matrix = &checkpoint.tensors["blk.0.attn_output.weight"];
            assert_eq!((matrix.format, matrix.shape.as_slice()), (format, [256, 256].as_slice()));
        }
    }
}

#[test]
fn every_family_has_its_shape_as_a_hugging_face_directory() {
    for family in FAMILIES {
        for shards in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            let mut model = TinyModel::new(family, BlockFormat::BF16);
            model.config.layers = 2;
            model.write_huggingface(folder.path(), BlockFormat::BF16, shards).unwrap();
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            let mut expected = model.config.clone();
            expected.rope.pairing = RopePairing::Halves;
            assert_eq!(checkpoint.config, expected);
            assert_eq!(checkpoint.layout, Layout::HuggingFace);
            assert_eq!(checkpoint.chat_template.as_deref(), Some(vocabulary::CHAT_TEMPLATE));
            let TokenizerSource::HuggingFace { eos, bos, .. } = checkpoint.tokenizer else { panic!() };
            assert_eq!((eos, bos), (vec![vocabulary::EOS], Some(0)));
        }
    }
}

#[test]
fn both_layouts_hold_the_same_weights_and_llama_has_its_rows_interleaved() {
    let folder = tempfile::tempdir().unwrap();
    let model = TinyModel::new(Family::Llama, BlockFormat::BF16);
    let path = folder.path().join("tiny.gguf");
    model.write_gguf(&path).unwrap();
    model.write_huggingface(folder.path(), BlockFormat::BF16, 1).unwrap();
    let (gguf, directory) = (Checkpoint::open(&path).unwrap(), Checkpoint::open(folder.path()).unwrap());
    assert_eq!(
        bytes_of(&gguf, "blk.2.ffn_down.weight"),
        bytes_of(&directory, "model.layers.2.mlp.down_proj.weight")
    );
    let row = model.config.hidden * 2;
    let interleaved = bytes_of(&gguf, "blk.0.attn_q.weight");
    let halves = bytes_of(&directory, "model.layers.0.self_attn.q_proj.weight");
    // Second head: rows 64 to 127. Its dimension 1 is the partner of dimension 0, 32 rows further.
    assert_eq!(interleaved[64 * row..65 * row], halves[64 * row..65 * row]);
    assert_eq!(interleaved[65 * row..66 * row], halves[(64 + 32) * row..(64 + 33) * row]);
}

#[test]
fn scaling_of_the_frequencies_survives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let mut model = TinyModel::new(Family::Llama, BlockFormat::Q8_0);
    model.config.layers = 1;
    for scaling in [RopeScaling::Linear(2.5), RopeScaling::PerPair((1..=32).map(|i| i as f32).collect())] {
        model.config.rope.scaling = scaling;
        model.write_gguf(&path).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().config, model.config);
    }
    model.config.rope.scaling = RopeScaling::PerPair(vec![1.0; 31]);
    model.write_gguf(&path).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("31 factors"), "{error}");
}

#[test]
fn a_synthetic_model_does_not_depend_on_the_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let model = SyntheticModel {
        name: "synthetic".to_owned(),
        config: Preset::Tiny.config(vocabulary::tiny_len()),
        mix: Mix::from_name("q4_k_m").unwrap(),
        tokenizer: vocabulary::tiny_metadata(),
        seed: 7,
        router_skew: None,
    };
    let write = |threads: usize| {
        let path = folder.path().join(format!("{threads}.gguf"));
        model.write(&path, threads, &|_, _| {}).unwrap();
        (std::fs::read(&path).unwrap(), Checkpoint::open(Path::new(&path)).unwrap())
    };
    let ((one, checkpoint), (three, _)) = (write(1), write(3));
    assert!(one == three);
    assert_eq!(checkpoint.config, model.config);
    assert_eq!(checkpoint.tensor_bytes, model.stats().tensor_bytes);
    assert_eq!(checkpoint.tensors["output.weight"].format, BlockFormat::Q6_K);
    assert_eq!(checkpoint.tensors["blk.3.ffn_down_exps.weight"].format, BlockFormat::Q6_K);
    assert_eq!(checkpoint.tensors["blk.0.ffn_down_exps.weight"].format, BlockFormat::Q4_K);
}

#[test]
fn presets_have_the_sizes_of_the_models_they_are_named_after() {
    let stats = |preset: Preset| {
        SyntheticModel {
            name: String::new(),
            config: preset.config(151_936),
            mix: Mix::from_name("q4_0").unwrap(),
            tokenizer: Vec::new(),
            seed: 0,
            router_skew: None,
        }
        .stats()
    };
    let qwen = stats(Preset::Qwen3A3b);
    assert_eq!(qwen.weights / 100_000_000, 305);
    assert_eq!(qwen.active_weights / 100_000_000, 30);
    assert_eq!(qwen.kv_bytes_per_token, 98_304);
    assert_eq!(qwen.one_expert_bytes, 3 * 2048 * 768 / 32 * 18);
}
