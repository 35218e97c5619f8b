//! How long kernels take on a GPU, and how much of its memory's speed they reach.
//!
//! `cargo bench -p unfazed-device --bench gpu [-- [--gpu NAME] [--small] [--rows N] [FILTER]]`: of the GPU that `--gpu` means (a number
//! or a part of its name) all cases whose line has `FILTER` in it. `--small` takes shapes for a software device. Weights are
//! there so many times that no cache holds them.
//!
//! | module | what |
//! |---|---|
//! | `case` | a kernel and what it is run on; its line in the table |
//! | `decode` | the decode kernels |

#![allow(clippy::unwrap_used, clippy::panic)]

mod case;
mod decode;

use case::Case;
use unfazed_device::gpu::{Adapters, Gpu};

/// What is measured.
pub(crate) struct Options {
    /// Shapes for a software device.
    pub(crate) small: bool,
    /// Rows of activations, for the kernels that take few; without, one and eight.
    pub(crate) rows: Option<usize>,
}

fn main() {
    let mut options = Options { small: false, rows: None };
    let (mut wanted, mut filter) = (None, String::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--small" => options.small = true,
            "--gpu" => wanted = arguments.next(),
            "--rows" => options.rows = arguments.next().map(|rows| rows.parse().unwrap()),
            _ => filter = argument,
        }
    }
    let gpu = Gpu::open(&Adapters::find().choose(wanted.as_deref()).unwrap()).unwrap();
    println!("{}, {}\n", gpu.info.name, gpu.info.driver);
    println!("| kernel | us | GB/s |\n|---|---|---|");
    let cases: Vec<Case> = [decode::cases(&gpu, &options)].into_iter().flatten().collect();
    for case in cases.iter().filter(|case| case.name().contains(&filter)) {
        println!("{}", case.measure(&gpu, options.small));
    }
}
