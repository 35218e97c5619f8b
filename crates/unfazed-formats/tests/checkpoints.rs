//! Split files, directories and configurations, read as a whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use unfazed_formats::config::Family;
use unfazed_formats::{BlockFormat, Checkpoint, TokenizerSource};
use unfazed_testkit::TinyModel;

fn small(family: Family) -> TinyModel {
    let mut model = TinyModel::new(family, BlockFormat::Q8_0);
    model.config.layers = 1;
    model
}

fn refusal(path: &Path) -> String {
    Checkpoint::open(path).unwrap_err().to_string()
}

#[test]
fn any_part_of_a_split_file_opens_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = small(Family::Qwen3Moe);
    let paths = model.write_split(folder.path(), "tiny", 3).unwrap();
    let whole = folder.path().join("whole.gguf");
    model.write_gguf(&whole).unwrap();
    let whole = Checkpoint::open(&whole).unwrap();
    for path in paths {
        let split = Checkpoint::open(&path).unwrap();
        assert_eq!(split.files.len(), 3);
        assert_eq!(split.config, model.config);
        assert!(split.tensors.keys().eq(whole.tensors.keys()));
        assert_eq!(split.tensor_bytes, whole.tensor_bytes);
    }
}

#[test]
fn a_split_file_with_a_missing_part_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let paths = small(Family::Llama).write_split(folder.path(), "tiny", 3).unwrap();
    fs::remove_file(&paths[1]).unwrap();
    let message = refusal(&paths[0]);
    assert!(message.starts_with("tiny-00002-of-00003.gguf: cannot read the file"), "{message}");
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let paths = small(Family::Llama).write_split(folder.path(), "tiny", 3).unwrap();
    let moved = folder.path().join("alone.gguf");
    fs::copy(&paths[0], &moved).unwrap();
    assert!(
        refusal(&moved).contains("alone.gguf: split.count is 3: but files given: 1;"),
        "{}",
        refusal(&moved)
    );
    fs::copy(&paths[2], &paths[1]).unwrap();
    let message = refusal(&paths[0]);
    assert!(message.contains("tiny-00002-of-00003.gguf: split.no is 2: it must be 1"), "{message}");
    let two = small(Family::Qwen3).write_split(folder.path(), "other", 3).unwrap();
    fs::copy(&two[2], &paths[2]).unwrap();
    fs::copy(&two[1], &paths[1]).unwrap();
    let message = refusal(&paths[0]);
    assert!(message.contains("split.tensors.count is"), "{message}");
}

/// A Hugging Face directory whose `config.json` was changed.
fn directory(family: Family, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    small(family).write_huggingface(folder.path(), BlockFormat::BF16, 1).unwrap();
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(&path, config.to_string()).unwrap();
    folder
}

#[test]
fn settings_that_would_change_the_result_are_refused_by_name() {
    for (field, value) in [
        ("attention_bias", json!(true)),
        ("use_sliding_window", json!(true)),
        ("mlp_only_layers", json!([0])),
        ("decoder_sparse_step", json!(2)),
        ("hidden_act", json!("gelu")),
        ("rope_scaling", json!({"rope_type": "longrope", "factor": 4.0})),
        ("quantization_config", json!({"bits": 4})),
        ("layer_types", json!(["sliding_attention"])),
        ("architectures", json!(["GPT2LMHeadModel"])),
    ] {
        let folder = directory(Family::Qwen3Moe, |config| config[field] = value.clone());
        let message = refusal(folder.path());
        assert!(message.starts_with(&format!("config.json: {field}")), "{message}");
        assert!(message.contains("not supported"), "{message}");
    }
}

#[test]
fn absurd_numbers_and_wrong_types_are_refused_with_their_value() {
    for (field, value, shown) in [
        ("num_hidden_layers", json!(1u64 << 40), "1099511627776"),
        ("hidden_size", json!(-1), "-1"),
        ("num_key_value_heads", json!(3), "3"),
        ("num_experts_per_tok", json!(9), "9"),
        ("rms_norm_eps", json!(0.0), "0"),
        ("rope_theta", json!(0.5), "0.5"),
        ("head_dim", json!(63), "63"),
        ("vocab_size", json!("many"), "\"many\""),
        ("max_position_embeddings", json!(0), "0"),
    ] {
        let folder = directory(Family::Qwen3Moe, |config| config[field] = value.clone());
        let message = refusal(folder.path());
        assert!(message.starts_with(&format!("config.json: {field} is {shown}: ")), "{message}");
    }
    let folder = directory(Family::Llama, |config| {
        config.as_object_mut().unwrap().remove("hidden_size");
    });
    assert!(refusal(folder.path()).starts_with("config.json: hidden_size is missing"));
}

#[test]
fn the_output_is_tied_where_the_table_is_absent_and_refused_where_it_was_promised() {
    let absent = |config: &mut Value| {
        config.as_object_mut().unwrap().remove("tie_word_embeddings");
    };
    assert!(!Checkpoint::open(directory(Family::Llama, absent).path()).unwrap().config.tied_embeddings);
    let mut model = small(Family::Llama);
    model.config.tied_embeddings = true;
    let folder = tempfile::tempdir().unwrap();
    model.write_huggingface(folder.path(), BlockFormat::F16, 1).unwrap();
    assert!(Checkpoint::open(folder.path()).unwrap().config.tied_embeddings);
    let path = folder.path().join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"tie_word_embeddings\":true", "\"tie_word_embeddings\":false")).unwrap();
    assert!(
        refusal(folder.path()).contains("tie_word_embeddings is false: there is no tensor lm_head.weight")
    );
}

#[test]
fn files_beside_the_configuration_are_used_in_their_order() {
    let folder = directory(Family::Llama, |_| {});
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let template = || Checkpoint::open(folder.path()).unwrap().chat_template;
    put(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "tool_use", "template": "A"},
        {"name": "default", "template": "B"}]}"#,
    );
    assert_eq!(template().as_deref(), Some("B"));
    put("chat_template.jinja", "C");
    assert_eq!(template().as_deref(), Some("C"));
    put("generation_config.json", r#"{"eos_token_id": [2, 0]}"#);
    let TokenizerSource::HuggingFace { eos, bos, .. } = Checkpoint::open(folder.path()).unwrap().tokenizer
    else {
        panic!("not from a directory")
    };
    assert_eq!((eos, bos), (vec![2, 0], Some(0)));
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(refusal(folder.path()).contains("file tokenizer.json is missing"));
}

#[test]
fn an_index_may_not_lead_out_of_its_directory_or_promise_what_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    small(Family::Llama).write_huggingface(folder.path(), BlockFormat::BF16, 2).unwrap();
    let path = folder.path().join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for shard in ["../model-00001-of-00002.safetensors", "/etc/x.safetensors", "config.json", ""] {
        let mut changed = index.clone();
        changed["weight_map"]["model.norm.weight"] = json!(shard);
        fs::write(&path, changed.to_string()).unwrap();
        let message = refusal(folder.path());
        assert!(message.contains("weight_map.model.norm.weight is"), "{message}");
    }
    index["weight_map"]["model.missing.weight"] = json!("model-00001-of-00002.safetensors");
    fs::write(&path, index.to_string()).unwrap();
    assert!(
        refusal(folder.path())
            .contains("weight_map.model.missing.weight is model-00001-of-00002.safetensors")
    );
    fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    assert!(refusal(folder.path()).starts_with("model-00002-of-00002.safetensors: cannot read the file"));
}

#[test]
fn shards_without_an_index_are_found() {
    let folder = tempfile::tempdir().unwrap();
    small(Family::Qwen3).write_huggingface(folder.path(), BlockFormat::F32, 2).unwrap();
    fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().config.family, Family::Qwen3);
}

#[test]
fn what_is_no_model_is_refused_with_what_to_give_instead() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path()).contains("file config.json is missing"));
    assert!(refusal(&folder.path().join("nothing.gguf")).starts_with("nothing.gguf: cannot read the file"));
    small(Family::Llama).write_huggingface(folder.path(), BlockFormat::BF16, 1).unwrap();
    let message = refusal(&folder.path().join("model.safetensors"));
    assert!(message.contains("give the directory that holds it"), "{message}");
    assert!(refusal(Path::new("/dev/null")).contains("not a regular file"));
}
