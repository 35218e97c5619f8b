//! Names the build: version, profile and a hash of this crate's sources (the encoding of the messages).

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() {
    let mut hasher = DefaultHasher::new();
    // The classes of faults are in messages.
    for folder in ["src", "../unfazed-fault/src"] {
        for file in files(Path::new(folder)) {
            std::fs::read(&file).unwrap_or_default().hash(&mut hasher);
        }
        println!("cargo::rerun-if-changed={folder}");
    }
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=UNFAZED_BUILD_ID={version}-{profile}-{:016x}", hasher.finish());
}

/// Everything below a folder, in a fixed order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.into_iter().flat_map(below).collect()
}
