//! `cargo xtask fuzz-seeds`

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use unfazed_formats::BlockFormat;
use unfazed_formats::config::Family;
use unfazed_testkit::TinyModel;
use unfazed_testkit::damage::{Damage, Damager};

/// Write the first inputs of the fuzz targets: small sound files and damaged copies of them.
///
/// A fuzzer that starts from nothing would first have to find out what a GGUF file is.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the corpora; each target gets one of its name
    #[arg(value_name = "FOLDER", default_value = "fuzz/corpus")]
    folder: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let gguf = corpus(&arguments.folder, "gguf_header")?;
    let safetensors = corpus(&arguments.folder, "safetensors_header")?;
    for family in [Family::Llama, Family::Qwen3, Family::Qwen3Moe] {
        let model = small(family);
        let good = model.gguf()?;
        put(&gguf.join(format!("{family:?}")), &good)?;
        let damager = Damager::new(&good, 1)?;
        for damage in Damage::ALL {
            put(&gguf.join(format!("{family:?}-{}", damage.name())), &damager.apply(damage))?;
        }
        let directory = arguments.folder.join(format!("{family:?}"));
        std::fs::create_dir_all(&directory)?;
        model.write_huggingface(&directory, BlockFormat::BF16, 1)?;
        let shard = directory.join("model.safetensors");
        std::fs::rename(&shard, safetensors.join(format!("{family:?}"))).context("model.safetensors")?;
        std::fs::remove_dir_all(&directory)?;
    }
    requests(&corpus(&arguments.folder, "request")?)?;
    println!("{}", arguments.folder.display());
    Ok(())
}

/// Bodies with every field that an endpoint knows, and some that are refused.
fn requests(folder: &Path) -> anyhow::Result<()> {
    let settings = json!({
        "model": "any", "stream": true, "stream_options": {"include_usage": true}, "n": 2, "stop": ["a", "b"],
        "seed": -7, "max_tokens": -1, "max_completion_tokens": 9, "temperature": 0.5, "top_p": 0.5, "top_k": 5,
        "min_p": 0.1, "repetition_penalty": 1.5, "repeat_penalty": 1.5, "presence_penalty": 1,
        "frequency_penalty": -1, "logit_bias": {"3": -100}, "ignore_eos": true, "response_format": {"type": "text"},
        "unknown": [[[{"a": null}]]],
    });
    let with = |more: Value| {
        let mut body = settings.clone();
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        body
    };
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let messages = json!([
        {"role": "developer", "content": "<|im_start|>"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "\u{e9}"}]},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "1"},
    ]);
    let chat = json!({
        "messages": messages, "logprobs": true, "top_logprobs": 2, "tools": [{"type": "function"}],
        "tool_choice": "auto", "chat_template_kwargs": {"a": [1]}, "enable_thinking": false,
        "add_generation_prompt": true,
    });
    put(&folder.join("chat"), with(chat).to_string().as_bytes())?;
    for (name, prompt) in [
        ("text", json!("a")),
        ("texts", json!(["a", "b"])),
        ("tokens", json!([1, 2])),
        ("several", json!([[1, 2], [3]])),
    ] {
        let more = json!({"prompt": prompt, "echo": true, "logprobs": 1, "suffix": "", "best_of": 1});
        put(&folder.join(name), with(more).to_string().as_bytes())?;
    }
    put(&folder.join("deep"), format!("{{\"messages\": {}1", "[".repeat(200)).as_bytes())?;
    put(&folder.join("not-utf8"), b"{\"prompt\": \"\xff\"}")
}

/// A model of a few KB: two layers, narrow.
fn small(family: Family) -> TinyModel {
    let mut model = TinyModel::new(family, BlockFormat::Q4_0);
    let config = &mut model.config;
    (config.layers, config.hidden, config.heads, config.kv_heads) = (2, 32, 1, 1);
    (config.head_dim, config.rope.dimensions, config.feed_forward) = (32, 32, 32);
    config.tied_embeddings = true;
    if let Some(experts) = &mut config.experts {
        (experts.count, experts.used, experts.feed_forward) = (2, 1, 32);
    }
    model
}

fn corpus(folder: &Path, target: &str) -> anyhow::Result<PathBuf> {
    let folder = folder.join(target);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| path.display().to_string())
}
