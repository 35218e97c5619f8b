//! Names the build: version, profile and a hash of this crate's sources (the encoding of the messages).

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

fn main() {
    let mut hasher = DefaultHasher::new();
    let mut files: Vec<_> =
        std::fs::read_dir("src").into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.sort();
    for file in files {
        std::fs::read(&file).unwrap_or_default().hash(&mut hasher);
    }
    println!("cargo::rerun-if-changed=src");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=UNFAZED_BUILD_ID={version}-{profile}-{:016x}", hasher.finish());
}
