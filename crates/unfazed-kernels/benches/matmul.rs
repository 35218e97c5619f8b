//! Speed of the product: multiply-adds against the processor's peak of int8 dot products, weight bytes against a
//! plain read.
//!
//! `cargo bench -p unfazed-kernels --bench matmul [-- MIB [ISA [FORMATS [ROWS]]]]`: MIB of weights a format (default 512),
//! as matrices of 1024 x 2048; FORMATS as in `Q4_0,Q4_K`, ROWS as in `1,64`. All measurements take turns, so that they see
//! the same machine; medians are printed.

use std::hint::black_box;

use rustix::time::ClockId;
use unfazed_formats::BlockFormat;
use unfazed_kernels::Isa;
use unfazed_kernels::activations::Tile;
use unfazed_kernels::probe::{self, Weights};

const ROWS: usize = 1024;
const COLUMNS: usize = 2048;
const TILES: &str = "1,2,4,8,16,32,64";
const ROUNDS: usize = 7;
/// Least time of a measurement, in seconds.
const LEAST: f64 = 0.03;

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

/// Multiply-adds and bytes per second of matrices from `next` on, until [`LEAST`] has passed.
fn product(isa: Isa, w: &Weights, tile: &Tile, threads: usize, next: &mut usize) -> (f64, f64) {
    let mut done = 0;
    let mut seconds = 0.0;
    while seconds < LEAST {
        let batch = (64 / tile.rows()).clamp(1, w.count());
        let from = *next;
        seconds += timed(threads, |thread| {
            let mut out = vec![0.0; tile.rows() * ROWS];
            for i in from..from + batch {
                w.multiply(isa, i, (thread, threads), tile, &mut out);
            }
            black_box(&out);
        });
        done += batch;
        *next = (from + batch) % w.count();
    }
    ((done * tile.rows() * w.macs()) as f64 / seconds, (done * w.layout().bytes()) as f64 / seconds)
}

/// Bytes per second of a plain read.
fn read(bytes: &[u8], threads: usize) -> f64 {
    let len = bytes.len() / threads;
    let seconds = timed(threads, |thread| {
        black_box(probe::read(&bytes[thread * len..][..len]));
    });
    (len * threads) as f64 / seconds
}

/// Multiply-adds per second of nothing but dot product instructions.
fn peak(isa: Isa, threads: usize) -> f64 {
    let steps = if isa == Isa::Reference { 50_000 } else { 2_000_000 };
    let seconds = timed(threads, |_| {
        black_box(probe::dot(isa, steps));
    });
    probe::dot(isa, 1) as f64 * (steps * threads) as f64 / seconds
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
            .filter(|format| names.split(',').any(|name| name == format!("{format:?}")))
            .collect(),
        None => vec![BlockFormat::Q4_0, BlockFormat::Q8_0, BlockFormat::Q4_K, BlockFormat::Q6_K],
    };
    let row_counts: Vec<usize> =
        arguments.get(3).map_or(TILES, |rows| rows).split(',').filter_map(|rows| rows.parse().ok()).collect();
    let weights: Vec<Weights> = formats
        .iter()
        .map(|&format| {
            let Some(weights) = Weights::new(format, ROWS, COLUMNS, size) else {
                unreachable!("whole blocks")
            };
            let rate = weights.packed_per_second() / 1e9;
            println!("{format:?}: {} matrices, packed at {rate:.1} GB/s", weights.count());
            weights
        })
        .collect();
    // A page that was never written may be one and the same page of zeros.
    let memory = vec![1u8; size.min(256 << 20)];
    let tiles: Vec<Vec<Tile>> = formats
        .iter()
        .map(|&format| row_counts.iter().map(|&rows| probe::tile(isa, format, rows, COLUMNS)).collect())
        .collect();

    for threads in [1, 2] {
        let mut results = vec![vec![(vec![], vec![]); row_counts.len()]; formats.len()];
        let (mut peaks, mut reads) = (vec![], vec![]);
        let mut next = vec![0; formats.len()];
        for _ in 0..ROUNDS {
            for (f, w) in weights.iter().enumerate() {
                peaks.push(peak(isa, threads));
                reads.push(read(&memory, threads));
                for (m, tile) in tiles[f].iter().enumerate() {
                    let (macs, bytes) = product(isa, w, tile, threads, &mut next[f]);
                    results[f][m].0.push(macs);
                    results[f][m].1.push(bytes);
                }
            }
        }
        let (peak, read) = (median(&mut peaks), median(&mut reads));
        println!(
            "\n{}, {threads} threads: peak {:.0} GMAC/s, plain read {:.1} GB/s",
            isa.name(),
            peak / 1e9,
            read / 1e9
        );
        println!("format rows   GMAC/s of peak     GB/s of read  best of peak");
        for (format, results) in formats.iter().zip(&mut results) {
            for (rows, (macs, bytes)) in row_counts.iter().zip(results) {
                let best = macs.iter().copied().fold(0.0, f64::max);
                let (macs, bytes) = (median(macs), median(bytes));
                println!(
                    "{:6} {rows:4} {:8.1} {:6.0}% {:8.1} {:6.0}%  {:6.0}%",
                    format!("{format:?}"),
                    macs / 1e9,
                    100.0 * macs / peak,
                    bytes / 1e9,
                    100.0 * bytes / read,
                    100.0 * best / peak
                );
            }
        }
    }
}
