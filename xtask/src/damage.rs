//! `cargo xtask damage`

use std::path::PathBuf;

use anyhow::Context;
use unfazed_testkit::damage::{Damage, Damager};

/// Write damaged copies of a GGUF file into a folder, one fault each.
///
/// 18 of the 19 copies have a fault in their header or length and must be refused with the file, the field and the
/// value; `weights-random-bytes` has a sound header and must load. The file must have the tensor
/// blk.1.attn_q.weight, whose description is damaged.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Sound file to copy
    #[arg(value_name = "GOOD.gguf")]
    good: PathBuf,
    /// Folder for the copies; made if it does not exist
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// What random bytes are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let good = std::fs::read(&arguments.good).with_context(|| arguments.good.display().to_string())?;
    let damager = Damager::new(&good, arguments.seed)?;
    std::fs::create_dir_all(&arguments.folder).with_context(|| arguments.folder.display().to_string())?;
    for damage in Damage::ALL {
        let path = arguments.folder.join(damage.name()).with_extension("gguf");
        std::fs::write(&path, damager.apply(damage)).with_context(|| path.display().to_string())?;
        println!("{}", path.display());
    }
    Ok(())
}
