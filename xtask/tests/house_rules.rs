//! The rules of the house that a compiler does not check.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// From the top; a crate may use only crates below it (docs/architecture.md).
const ORDER: [&str; 17] = [
    "xtask",
    "unfazed",
    "unfazed-sim",
    "unfazed-server",
    "unfazed-engine",
    "unfazed-model",
    "unfazed-device",
    "unfazed-store",
    "unfazed-kernels",
    "unfazed-guard",
    "unfazed-host",
    "unfazed-plan",
    "unfazed-tokenizer",
    "unfazed-formats",
    "unfazed-wire",
    "unfazed-fault",
    "unfazed-testkit",
];

/// What the front must never link: the border is the process border.
const BEHIND_THE_PROCESS_BORDER: [&str; 5] =
    ["unfazed-engine", "unfazed-model", "unfazed-device", "unfazed-store", "unfazed-kernels"];

/// Longest source file.
const MAX_LINES: usize = 600;

/// Crates of ours that each crate of ours uses, apart from those that only its tests use.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let of = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        let used = all.filter(|d| d["kind"] != "dev").map(|d| d["name"].as_str().unwrap());
        used.filter(|name| ours.contains(name)).map(str::to_owned).collect()
    };
    packages.iter().map(|package| (package["name"].as_str().unwrap().to_owned(), of(package))).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn a_crate_uses_only_crates_below_it() {
    let rank = |name: &str| {
        ORDER
            .iter()
            .position(|other| *other == name)
            .unwrap_or_else(|| panic!("{name} has no place in the order"))
    };
    for (name, used) in dependencies() {
        for other in used {
            // The test kit writes files for everybody and itself needs only their formats.
            let allowed =
                rank(&name) < rank(&other) || (name == "unfazed-testkit" && other == "unfazed-formats");
            assert!(allowed, "{name} uses {other}, which is not below it");
        }
    }
}

#[test]
fn the_server_links_nothing_from_behind_the_process_border() {
    let dependencies = dependencies();
    let mut todo = vec!["unfazed-server".to_owned()];
    let mut linked = BTreeSet::new();
    while let Some(name) = todo.pop() {
        for other in &dependencies[&name] {
            if linked.insert(other.clone()) {
                todo.push(other.clone());
            }
        }
    }
    assert!(linked.contains("unfazed-wire"), "the walk found nothing: {linked:?}");
    for name in BEHIND_THE_PROCESS_BORDER {
        assert!(!linked.contains(name), "unfazed-server links {name}");
    }
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn a_file_holds_one_idea_and_so_is_not_long() {
    let mut found = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        if root().join(folder).is_dir() {
            sources(&root().join(folder), &mut found);
        }
    }
    assert!(found.len() > 20, "the walk found only {} files", found.len());
    for path in found {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(
            lines <= MAX_LINES,
            "{} has {lines} lines, over {MAX_LINES}: split it by idea",
            path.display()
        );
    }
}

#[test]
fn unsafe_code_stays_in_the_layers_that_need_it() {
    const ALLOWED: [&str; 4] = ["unfazed-kernels", "unfazed-device", "unfazed-store", "unfazed-wire"];
    let mut found = Vec::new();
    sources(&root().join("crates"), &mut found);
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        let allows = text.contains("allow(unsafe_code)");
        let inside = ALLOWED.iter().any(|name| path.components().any(|part| part.as_os_str() == *name));
        assert!(!allows || inside, "{} allows unsafe code", path.display());
    }
}
