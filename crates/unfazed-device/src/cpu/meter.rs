//! Rates of the machine and of kernels, with the threads that compute.

use std::hint::black_box;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use unfazed_kernels::Isa;
use unfazed_kernels::activations::Tile;
use unfazed_kernels::panel::PanelBuffer;
use unfazed_kernels::probe::{self, Weights};
use unfazed_wire::Threads;

use super::pool::Pool;

/// How long a rate is measured.
const TIME: Duration = Duration::from_millis(250);
/// Passes of which there are at least so many.
const PASSES: usize = 3;
/// Chunks of a pass, for each thread: the last ones to end are then a small part.
const CHUNKS: usize = 16;
/// Steps of dot products in a chunk: a fraction of a millisecond.
const DOT_STEPS: usize = 100_000;
/// The same for the scalar definition, whose steps take longer.
const SCALAR_DOT_STEPS: usize = 2_000;

/// What a machine can do at most, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes read from memory.
    pub read: f64,
    /// Multiply-adds of int8 numbers.
    pub macs: f64,
}

/// Measures with a pool of its own.
pub struct Meter {
    isa: Isa,
    pool: Pool,
    memory: PanelBuffer,
}

impl Meter {
    /// Threads of the largest step, where `threads` puts them (the caller is bound too, as in [`Pool::new`]), and
    /// `bytes` of memory to read: more than all caches hold.
    ///
    /// # Errors
    ///
    /// The system gives no threads, or not where they should be.
    pub fn new(isa: Isa, threads: &Threads, bytes: usize) -> io::Result<Meter> {
        let mut memory = PanelBuffer::new(bytes);
        // A page that was never written may be one and the same page of zeros.
        memory.fill(1);
        Ok(Meter { isa, pool: Pool::new(threads)?, memory })
    }

    /// Lets so many of the threads measure from now on.
    pub fn take_part(&mut self, threads: usize) {
        self.pool.take_part(threads);
    }

    /// What the machine can do now: the best of several passes, a third of a second each.
    pub fn rates(&mut self) -> Rates {
        let chunks = CHUNKS * self.pool.threads();
        let Meter { isa, pool, memory } = self;
        let part = (memory.len() / chunks).max(1);
        let read = best_rate(|| {
            pool.run(chunks, &|_, chunk| {
                let bytes = memory.chunks(part).nth(chunk).unwrap_or_default();
                black_box(probe::read(bytes));
            });
            (chunks * part) as f64
        });
        let steps = if *isa == Isa::Reference { SCALAR_DOT_STEPS } else { DOT_STEPS };
        let macs = best_rate(|| {
            pool.run(chunks, &|_, _| {
                black_box(probe::dot(*isa, steps));
            });
            chunks as f64 * probe::dot(*isa, 1) as f64 * steps as f64
        });
        Rates { read, macs }
    }

    /// Matrices per second that are multiplied by a tile, each by one thread, one after the other from memory.
    pub fn products(&mut self, weights: &Weights, tile: &Tile) -> f64 {
        let threads = self.pool.threads();
        let (rows, isa) = (weights.layout().rows(), self.isa);
        let outs: Vec<Mutex<Vec<f32>>> =
            (0..threads).map(|_| Mutex::new(vec![0.0; tile.rows() * rows])).collect();
        let mut next = 0;
        best_rate(|| {
            // Every matrix once, or as many as keep all threads busy.
            let matrices = weights.count().max(threads);
            self.pool.run(matrices, &|thread, chunk| {
                if let Some(out) = outs.get(thread) {
                    let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                    weights.multiply(isa, next + chunk, (0, 1), tile, &mut out);
                }
            });
            next += matrices;
            matrices as f64
        })
    }
}

/// Units per second of the fastest pass.
fn best_rate(mut pass: impl FnMut() -> f64) -> f64 {
    let begun = Instant::now();
    let mut best = 0.0f64;
    let mut passes = 0;
    while passes < PASSES || begun.elapsed() < TIME {
        let start = Instant::now();
        let units = pass();
        best = best.max(units / start.elapsed().as_secs_f64().max(1e-9));
        passes += 1;
    }
    best
}

#[cfg(test)]
mod tests {
    use unfazed_formats::BlockFormat;

    use super::*;

    #[test]
    fn a_meter_measures_what_several_threads_do() {
        let mut meter = Meter::new(Isa::best(), &2.into(), 1 << 20).unwrap();
        for threads in [2, 1] {
            meter.take_part(threads);
            let Rates { read, macs } = meter.rates();
            assert!(read.is_finite() && read > 1e6 && macs.is_finite() && macs > 1e6);
        }
        let weights = Weights::new(BlockFormat::Q4_0, 32, 256, 1 << 16).unwrap();
        let tile = probe::tile(Isa::best(), BlockFormat::Q4_0, 2, 256);
        assert!(meter.products(&weights, &tile) > 1.0);
    }
}
