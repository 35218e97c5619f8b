//! A kernel and what it is run on.

use std::time::Duration;

use unfazed_device::gpu::trial::{Prepared, Trial};
use unfazed_device::gpu::{Gpu, Kernel};

/// Bytes that the runs of a case read in all before one reads the same again.
const ROTATED: u64 = 256 << 20;
/// Most copies of the weights.
const MOST_COPIES: u64 = 256;
/// How long a measurement takes, about.
const MEASURED: Duration = Duration::from_millis(30);
/// Measurements, of which the median is told.
const TIMES: usize = 5;

/// A kernel and what it is run on.
pub(crate) struct Case {
    pub(crate) kernel: Kernel,
    /// Rows of activations, for the table.
    pub(crate) rows: usize,
    pub(crate) buffers: Vec<Fill>,
    pub(crate) immediates: Vec<u8>,
    pub(crate) grid: [u32; 3],
    /// Bytes that a run has to read.
    pub(crate) bytes: u64,
}

/// What is in a buffer.
pub(crate) enum Fill {
    /// So many bytes at random.
    Random(usize),
    /// So many f32, all one.
    Ones(usize),
    /// Numbers.
    Words(Vec<u32>),
}

impl Fill {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Fill::Random(bytes) => {
                let mut state = 1u64;
                let mut word = || {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 32) as u32
                };
                (0..bytes / 4).flat_map(|_| word().to_le_bytes()).collect()
            }
            Fill::Ones(count) => (0..*count).flat_map(|_| 1f32.to_le_bytes()).collect(),
            Fill::Words(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }
    }
}

impl Case {
    /// Kernel and rows.
    pub(crate) fn name(&self) -> String {
        format!("{} on {}", self.kernel.name, self.rows)
    }

    /// The line of the table.
    pub(crate) fn measure(&self, gpu: &Gpu, small: bool) -> String {
        let filled: Vec<Vec<u8>> = self.buffers.iter().map(Fill::bytes).collect();
        let buffers: Vec<&[u8]> = filled.iter().map(Vec::as_slice).collect();
        let trial = Trial { buffers: &buffers, immediates: &self.immediates, grid: self.grid };
        let copies = if small { 2 } else { ROTATED.div_ceil(self.bytes).clamp(1, MOST_COPIES) };
        let prepared = match Prepared::with_copies(gpu, &self.kernel, &trial, copies as usize) {
            Ok(prepared) => prepared,
            Err(error) => return format!("{} | {error}", self.name()),
        };
        // Two lengths, so that what a submission costs is not counted.
        let first = prepared.run(copies as usize).and_then(|_| prepared.run(copies as usize)).unwrap();
        let each = first.as_secs_f64() / copies as f64;
        let times = if small { 4 } else { ((MEASURED.as_secs_f64() / each) as usize).clamp(8, 4000) };
        let mut measured: Vec<f64> = (0..TIMES)
            .map(|_| {
                let (short, long) = (prepared.run(times / 4).unwrap(), prepared.run(times).unwrap());
                (long.as_secs_f64() - short.as_secs_f64()) / (times - times / 4) as f64
            })
            .collect();
        measured.sort_by(f64::total_cmp);
        let seconds = measured[TIMES / 2];
        format!("{} | {:.1} | {:.0}", self.name(), seconds * 1e6, self.bytes as f64 / seconds / 1e9)
    }
}
