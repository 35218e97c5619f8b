//! Kernels on a real adapter, against the CPU's.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod attend;
mod attention_text;
mod chores;
#[path = "../common/mod.rs"]
mod common;
mod embed;
mod experts;
#[cfg(not(target_vendor = "apple"))]
mod faults;
mod grouped;
mod heads;
#[cfg(not(target_vendor = "apple"))]
mod lost_steps;
mod matvec;
mod pages;
mod placed;
mod prefill;
mod quantise;
mod queue;
mod routing;
mod support;
mod tile;
mod translate;
mod upload;
#[path = "../../../unfazed-kernels/tests/common/mod.rs"]
mod weights;

use support::gpu;
use unfazed_device::gpu::trial::{Trial, once};
use unfazed_device::gpu::{Access, Kernel};

#[test]
fn a_loop_of_more_than_65535_rounds_is_not_left_early() {
    let Some(gpu) = gpu() else { return };
    let source = "
        @group(0) @binding(0) var<storage, read_write> v: array<u32>;
        var<immediate> rounds: u32;
        @compute @workgroup_size(1) fn main() {
            var s = v[0];
            for (var i = 0u; i < rounds; i++) { s = s * 1664525u + 1013904223u; }
            v[0] = s;
        }";
    let kernel =
        Kernel { name: "loop".into(), source: source.into(), bindings: vec![Access::Write], immediates: 4 };
    let rounds = 1_000_003_u32;
    let trial = Trial { buffers: &[&7u32.to_le_bytes()], immediates: &rounds.to_le_bytes(), grid: [1, 1, 1] };
    let got = once(gpu, &kernel, &trial).unwrap();
    let expected = (0..rounds).fold(7u32, |s, _| s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    assert_eq!(got[0], expected.to_le_bytes());
}
