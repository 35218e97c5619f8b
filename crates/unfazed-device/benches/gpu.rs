//! Kernels of the GPU, each by itself: `cargo bench -p unfazed-device --bench gpu [-- part of a kernel's name]`.
//!
//! `UNFAZED_TEST_GPU` names the GPU, else it is the first. On a software device shapes are small: that shows only that it runs.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "gpu/attention.rs"]
mod attention;
#[path = "gpu/case.rs"]
mod case;
#[path = "gpu/decode.rs"]
mod decode;
#[path = "gpu/prefill.rs"]
mod prefill;

use unfazed_device::gpu::{Adapters, Gpu};

fn main() {
    let wanted = std::env::var("UNFAZED_TEST_GPU").unwrap_or_else(|_| "0".to_owned());
    let Ok(adapter) = Adapters::find().choose(Some(&wanted)) else {
        println!("no GPU");
        return;
    };
    let gpu = Gpu::open(&adapter).unwrap();
    let part = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    println!("{}, {}", gpu.info.name, gpu.info.driver);
    decode::run(&gpu, &part);
    prefill::run(&gpu, &part);
    attention::run(&gpu, &part);
}
