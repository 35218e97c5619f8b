//! Opening the model that was named, or the demo model that is built into the program.

use std::path::Path;

use anyhow::Context;
use unfazed_formats::Checkpoint;
use unfazed_formats::source::FileSource;

/// Opens a model's files and reads their headers. Without a path: the demo model.
pub(crate) fn open(path: Option<&Path>) -> anyhow::Result<Checkpoint> {
    match path {
        Some(path) => Ok(Checkpoint::open(path)?),
        None => Ok(Checkpoint::read(vec![demo()?])?),
    }
}

#[cfg(feature = "demo")]
const DEMO_NAME: &str = "stories-moe-29m-Q4_0.gguf";
#[cfg(feature = "demo")]
static DEMO: &[u8] = include_bytes!("../models/stories-moe-29m-Q4_0.gguf");

/// The demo model as a descriptor, as if it were a file: the engine gets it like any other.
#[cfg(feature = "demo")]
fn demo() -> anyhow::Result<FileSource> {
    use std::io::Write;

    let mut file = anonymous_file().context("cannot make a file in memory for the demo model")?;
    file.write_all(DEMO).context("cannot write the demo model to a file in memory")?;
    // The same content is the same model in every process.
    file.set_modified(std::time::UNIX_EPOCH).context("cannot date the demo model")?;
    seal(&file)?;
    Ok(FileSource::new(DEMO_NAME, file)?)
}

#[cfg(not(feature = "demo"))]
fn demo() -> anyhow::Result<FileSource> {
    Err(anyhow::anyhow!("this build has no demo model: give a model with -m FILE")).context("no model")
}

#[cfg(all(feature = "demo", target_os = "linux"))]
fn anonymous_file() -> std::io::Result<std::fs::File> {
    use rustix::fs::{MemfdFlags, memfd_create};

    Ok(memfd_create(DEMO_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into())
}

#[cfg(all(feature = "demo", not(target_os = "linux")))]
fn anonymous_file() -> std::io::Result<std::fs::File> {
    tempfile::tempfile()
}

/// Nobody can change or shorten the model under a reader.
#[cfg(all(feature = "demo", target_os = "linux"))]
fn seal(file: &std::fs::File) -> std::io::Result<()> {
    use rustix::fs::{SealFlags, fcntl_add_seals};

    Ok(fcntl_add_seals(file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?)
}

#[cfg(all(feature = "demo", not(target_os = "linux")))]
fn seal(_file: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}

#[cfg(all(test, feature = "demo"))]
mod tests {
    use super::*;

    #[test]
    fn the_demo_model_is_a_mixture_of_experts_with_a_chat_template() {
        let checkpoint = open(None).unwrap();
        assert!(checkpoint.config.experts.is_some());
        assert!(checkpoint.chat_template.is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_demo_model_cannot_be_changed_through_its_descriptor() {
        use std::os::unix::fs::FileExt;

        let demo = demo().unwrap();
        assert!(demo.file().write_all_at(b"x", 0).is_err());
        assert!(demo.file().set_len(0).is_err());
    }
}
