//! Names how weights and KV pages lie in memory: a hash of the sources that decide it. A program of the same name can go on
//! with what another one left there.

#[path = "../unfazed-wire/build/sources.rs"]
mod sources;

/// The crates that decide it. More than need be: a change that would not matter costs a new load at a restart, one that was
/// missed would cost right answers.
const CRATES: [&str; 8] = ["wire", "formats", "plan", "kernels", "store", "device", "model", "engine"];

fn main() {
    let hash = sources::hash(CRATES.map(|name| format!("../unfazed-{name}/src")));
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=UNFAZED_LAYOUT={version}-{hash:016x}");
}
