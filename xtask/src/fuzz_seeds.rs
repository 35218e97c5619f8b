//! `cargo xtask fuzz-seeds`

use std::path::{Path, PathBuf};

use anyhow::Context;
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
    println!("{}", arguments.folder.display());
    Ok(())
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
