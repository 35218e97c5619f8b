//! Names how weights and KV pages lie in memory: a hash of the sources that decide it. A program of the same name can go on
//! with what another one left there.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// The crates that decide it. More than need be: a change that would not matter costs a new load at a restart, one that was
/// missed would cost right answers.
const CRATES: [&str; 8] = ["wire", "formats", "plan", "kernels", "store", "device", "model", "engine"];

fn main() {
    let mut hasher = DefaultHasher::new();
    for name in CRATES {
        let folder = format!("../unfazed-{name}/src");
        for file in files(Path::new(&folder)) {
            std::fs::read(&file).unwrap_or_default().hash(&mut hasher);
        }
        println!("cargo::rerun-if-changed={folder}");
    }
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=UNFAZED_LAYOUT={version}-{:016x}", hasher.finish());
}

/// Everything below a folder, in a fixed order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.into_iter().flat_map(below).collect()
}
