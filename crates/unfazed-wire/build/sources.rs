//! A hash of sources, for names that must change when they do. Part of build scripts.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// Of all files below some folders. The build script runs again when one of them changes.
pub(crate) fn hash(folders: impl IntoIterator<Item = String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for folder in folders {
        for file in files(Path::new(&folder)) {
            std::fs::read(&file).unwrap_or_default().hash(&mut hasher);
        }
        println!("cargo::rerun-if-changed={folder}");
    }
    hasher.finish()
}

/// Everything below a folder, in a fixed order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.into_iter().flat_map(below).collect()
}
