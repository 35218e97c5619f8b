//! Speed of the product: multiply-adds against the processor's peak of int8 dot products, weight bytes against a
//! plain read.
//!
//! `cargo bench -p unfazed-kernels --bench matmul [-- MIB [ISA [FORMATS [ROWS]]]]`: MIB of weights a format (default 512),
//! as matrices of 1024 x 2048; FORMATS as in `Q4_0,Q4_K`; ROWS as in `1,64`. All measurements take turns, so that they see the same machine; medians are printed.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use rustix::time::ClockId;
use unfazed_formats::BlockFormat;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::{Grain, QuantisedRows, Tile};
use unfazed_kernels::matmul::matmul;
use unfazed_kernels::panel::{PackedMatrix, PanelBuffer, PanelLayout, pack_panel};

const ROWS: usize = 1024;
const COLUMNS: usize = 2048;
const ROUNDS: usize = 7;
/// Least time of a measurement, in seconds.
const LEAST: f64 = 0.03;

struct Weights {
    layout: PanelLayout,
    bytes: PanelBuffer,
}

impl Weights {
    /// As many copies of a random matrix as fit in `bytes`.
    fn new(format: BlockFormat, bytes: usize) -> Weights {
        let Some(layout) = PanelLayout::new(format, ROWS, COLUMNS) else { unreachable!("whole blocks") };
        let mut state = 1u64;
        let mut file = vec![0u8; ROWS * layout.row_bytes()];
        for byte in &mut file {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Scales of 2^-7 to 2^-4.
            *byte = 0x20 + (state >> 56) as u8 % 0x10;
        }
        let count = (bytes / layout.bytes()).max(1);
        let mut bytes = PanelBuffer::new(count * layout.bytes());
        let (first, rest) = bytes.split_at_mut(layout.bytes());
        let start = Instant::now();
        for (rows, panel) in
            file.chunks(16 * layout.row_bytes()).zip(first.chunks_exact_mut(layout.panel_bytes()))
        {
            pack_panel(&layout, rows, panel);
        }
        let rate = file.len() as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("{format:?}: {count} matrices, packed at {rate:.1} GB/s");
        rest.chunks_exact_mut(layout.bytes()).for_each(|copy| copy.copy_from_slice(first));
        Weights { layout, bytes }
    }

    fn count(&self) -> usize {
        self.bytes.len() / self.layout.bytes()
    }

    fn matrix(&self, i: usize) -> PackedMatrix<'_> {
        let bytes = &self.bytes[i * self.layout.bytes()..][..self.layout.bytes()];
        match PackedMatrix::new(self.layout, bytes) {
            Ok(matrix) => matrix,
            Err(error) => unreachable!("{error}"),
        }
    }
}

/// Runs `work(thread)` on each of `threads` threads; returns the mean of the processor time that they used, in
/// seconds: on a machine with other work too, that is nearer to what the kernels take than the time that passes.
fn timed(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let clocked = &|thread| {
        let start = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        work(thread);
        let end = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        (end.tv_sec - start.tv_sec) as f64 + (end.tv_nsec - start.tv_nsec) as f64 / 1e9
    };
    let seconds: f64 = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || clocked(thread))).collect();
        let own = clocked(0);
        own + others.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).sum::<f64>()
    });
    seconds / threads as f64
}

/// Multiply-adds and bytes per second of matrices from `first` on, until [`LEAST`] has passed.
fn product(isa: Isa, w: &Weights, tile: &Tile, threads: usize, next: &mut usize) -> (f64, f64) {
    let panels = w.layout.panels();
    let mut done = 0;
    let mut seconds = 0.0;
    while seconds < LEAST {
        let batch = (64 / tile.rows()).clamp(1, w.count());
        let from = *next;
        seconds += timed(threads, |thread| {
            let mut out = vec![0.0; tile.rows() * ROWS];
            for i in from..from + batch {
                let range = panels * thread / threads..panels * (thread + 1) / threads;
                matmul(isa, &w.matrix(i % w.count()), range, tile, &mut out, ROWS);
            }
            black_box(&out);
        });
        done += batch;
        *next = (from + batch) % w.count();
    }
    let macs = done * tile.rows() * ROWS * COLUMNS;
    (macs as f64 / seconds, (done * w.layout.bytes()) as f64 / seconds)
}

/// Bytes per second of a plain read.
fn read(w: &Weights, threads: usize) -> f64 {
    let len = w.bytes.len().min(64 << 20) / threads;
    let seconds = timed(threads, |thread| {
        let mut sums = [0u64; 8];
        for line in w.bytes[thread * len..][..len].as_chunks::<64>().0 {
            for (sum, bytes) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum ^= u64::from_ne_bytes(*bytes);
            }
        }
        black_box(sums);
    });
    (len * threads) as f64 / seconds
}

/// Multiply-adds per second of nothing but dot product instructions.
fn peak(isa: Isa, threads: usize) -> f64 {
    const STEPS: usize = 2_000_000;
    let seconds = timed(threads, |_| match isa {
        // SAFETY: `main` checked that the processor has it.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::peak_avx512(STEPS) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => unsafe { x86::peak_avxvnni(STEPS) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::peak_avx2(STEPS) },
        _ => {}
    });
    let macs = match isa {
        Isa::Avx512 => 16 * 64,
        Isa::Avx2 | Isa::AvxVnni => 8 * 32,
        Isa::Reference => 0,
    };
    (STEPS * macs * threads) as f64 / seconds
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn peak_avx512(steps: usize) {
        let mut sums = [_mm512_setzero_si512(); 16];
        let (a, b) = (black_box(_mm512_set1_epi8(3)), black_box(_mm512_set1_epi8(5)));
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) fn peak_avxvnni(steps: usize) {
        let mut sums = [_mm256_setzero_si256(); 8];
        let (a, b) = (black_box(_mm256_set1_epi8(3)), black_box(_mm256_set1_epi8(5)));
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn peak_avx2(steps: usize) {
        let mut sums = [_mm256_setzero_si256(); 8];
        let (a, b) = (black_box(_mm256_set1_epi8(3)), black_box(_mm256_set1_epi8(5)));
        for _ in 0..steps {
            for sum in &mut sums {
                let mut products = _mm256_maddubs_epi16(a, b);
                // Keeps the products of a step from becoming one.
                // SAFETY: no instruction.
                unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) products) };
                *sum = _mm256_add_epi16(*sum, products);
            }
        }
        black_box(sums);
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // Cargo itself passes `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let size = arguments.first().and_then(|mib| mib.parse().ok()).unwrap_or(512usize) << 20;
    let isa = arguments.get(1).and_then(|name| Isa::from_name(name)).unwrap_or(Isa::best());
    assert!(isa.available(), "this processor does not run {}", isa.name());
    let formats: Vec<BlockFormat> = match arguments.get(2) {
        Some(names) => BlockFormat::all()
            .into_iter()
            .filter(|format| names.split(',').any(|name| name == format!("{format:?}")))
            .collect(),
        None => vec![BlockFormat::Q4_0, BlockFormat::Q8_0, BlockFormat::Q4_K, BlockFormat::Q6_K],
    };
    let rows: Vec<usize> = match arguments.get(3) {
        Some(rows) => rows.split(',').filter_map(|rows| rows.parse().ok()).collect(),
        None => vec![1, 2, 4, 8, 16, 32, 64],
    };
    let weights: Vec<Weights> = formats.iter().map(|&format| Weights::new(format, size)).collect();
    let tiles: Vec<Vec<Tile>> =
        formats.iter().map(|&format| rows.iter().map(|&rows| tile(isa, format, rows)).collect()).collect();

    for threads in [1, 2] {
        let mut results = vec![vec![Rates::default(); rows.len()]; formats.len()];
        let (mut peaks, mut reads) = (vec![], vec![]);
        let mut next = vec![0; formats.len()];
        for _ in 0..ROUNDS {
            for (f, w) in weights.iter().enumerate() {
                for (m, tile) in tiles[f].iter().enumerate() {
                    // The limits right before and after, for other work changes them by the second.
                    let before = (peak(isa, threads), read(w, threads));
                    let (macs, bytes) = product(isa, w, tile, threads, &mut next[f]);
                    let after = (peak(isa, threads), read(w, threads));
                    let rates = &mut results[f][m];
                    rates.macs.push(macs);
                    rates.bytes.push(bytes);
                    rates.of_peak.push(2.0 * macs / (before.0 + after.0));
                    rates.of_read.push(2.0 * bytes / (before.1 + after.1));
                    peaks.extend([before.0, after.0]);
                    reads.extend([before.1, after.1]);
                }
            }
        }
        println!(
            "\n{}, {threads} threads: peak {:.0} GMAC/s, plain read {:.1} GB/s",
            isa.name(),
            median(&mut peaks) / 1e9,
            median(&mut reads) / 1e9
        );
        println!("format rows   GMAC/s of peak     GB/s of read");
        for (format, results) in formats.iter().zip(&mut results) {
            for (rows, rates) in rows.iter().zip(results) {
                println!(
                    "{:6} {rows:4} {:8.1} {:6.0}% {:8.1} {:6.0}%",
                    format!("{format:?}"),
                    median(&mut rates.macs) / 1e9,
                    100.0 * median(&mut rates.of_peak),
                    median(&mut rates.bytes) / 1e9,
                    100.0 * median(&mut rates.of_read),
                );
            }
        }
    }
}

/// Measurements of a format with a number of rows.
#[derive(Clone, Default)]
struct Rates {
    macs: Vec<f64>,
    bytes: Vec<f64>,
    /// Of the peak at the time.
    of_peak: Vec<f64>,
    /// Of a plain read at the time.
    of_read: Vec<f64>,
}

fn tile(isa: Isa, format: BlockFormat, rows: usize) -> Tile {
    let mut table = QuantisedRows::new();
    table.resize(Grain::of(format), rows, COLUMNS);
    for row in 0..rows {
        let x: Vec<f32> = (0..COLUMNS).map(|i| ((i * 37 + row * 11) % 255) as f32 / 100.0 - 1.27).collect();
        table.quantise(isa, row, &x);
    }
    let mut tile = Tile::new();
    tile.gather(isa, format, &table, &(0..rows).collect::<Vec<_>>());
    tile
}
