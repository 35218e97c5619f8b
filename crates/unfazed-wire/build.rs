//! Names the build: version, profile and a hash of this crate's sources (the encoding of the messages).

#[path = "build/sources.rs"]
mod sources;

fn main() {
    // The classes of faults are in messages.
    let hash = sources::hash(["src", "../unfazed-fault/src"].map(str::to_owned));
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo::rustc-env=UNFAZED_BUILD_ID={version}-{profile}-{hash:016x}");
}
