//! What a parallel section costs: this crate's pool beside rayon and threads of the standard library.
//!
//! `cargo bench -p unfazed-device --bench pool [-- THREADS [ROUNDS]]`: a step is 480 sections, as a large decode step has;
//! all ways take turns, and medians are printed.

#![allow(clippy::panic)]

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use unfazed_device::cpu::Pool;
use unfazed_wire::Threads;

const SECTIONS: usize = 480;
/// Work of a section, for each thread, in microseconds: that of a small matrix in decode.
const WORK: f64 = 20.0;
/// Rounds in which every way takes its turn.
const ROUNDS: usize = 15;

/// Multiplications one after the other: they take the same time on any thread.
fn work(steps: usize) {
    let mut x = black_box(3u64);
    for _ in 0..steps {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    }
    black_box(x);
}

/// Steps of [`work`] in a microsecond.
fn steps_per_microsecond() -> f64 {
    const STEPS: usize = 1_000_000;
    let fastest = (0..20).map(|_| {
        let start = Instant::now();
        work(STEPS);
        start.elapsed()
    });
    STEPS as f64 / (fastest.min().unwrap_or_default().as_secs_f64() * 1e6)
}

/// A way to run the chunks of a section.
enum Way {
    Own(Pool),
    /// The same after an idle time, in which its workers park.
    Parked(Pool),
    /// One `install` for a whole step.
    RayonInside(rayon::ThreadPool),
    /// One `install` for each section.
    RayonInstall(rayon::ThreadPool),
    Scope,
}

impl Way {
    /// Time of a step.
    fn step(&mut self, threads: usize, chunks: usize, steps: usize) -> Duration {
        let par = |chunks: usize| (0..chunks).into_par_iter().with_max_len(1).for_each(|_| work(steps));
        match self {
            Way::Own(pool) => timed(|| {
                for _ in 0..SECTIONS {
                    pool.run(chunks, &|_, _| work(steps));
                }
            }),
            Way::Parked(pool) => {
                let sections = (0..SECTIONS / 16).map(|_| {
                    thread::sleep(Duration::from_millis(2));
                    timed(|| pool.run(chunks, &|_, _| work(steps)))
                });
                sections.sum::<Duration>() * 16
            }
            Way::RayonInside(pool) => pool.install(|| timed(|| (0..SECTIONS).for_each(|_| par(chunks)))),
            Way::RayonInstall(pool) => timed(|| (0..SECTIONS).for_each(|_| pool.install(|| par(chunks)))),
            Way::Scope => timed(|| {
                for _ in 0..SECTIONS {
                    thread::scope(|scope| {
                        let own = chunks / threads;
                        for _ in 1..threads {
                            scope.spawn(move || (0..own).for_each(|_| work(steps)));
                        }
                        (0..own).for_each(|_| work(steps));
                    });
                }
            }),
        }
    }
}

fn timed(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

fn own(threads: &Threads) -> Pool {
    Pool::new(threads).unwrap_or_else(|error| panic!("no pool: {error}"))
}

fn rayon(threads: usize) -> rayon::ThreadPool {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.unwrap_or_else(|error| panic!("no pool of rayon's: {error}"))
}

fn main() {
    // Cargo itself passes `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--")).map(|a| a.parse::<usize>());
    let mut number = |default| arguments.next().and_then(Result::ok).unwrap_or(default);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (threads, rounds) = (number(cores), number(ROUNDS));
    let mut ways = [
        ("own pool", Way::Own(own(&threads.into()))),
        ("own pool, parked before each section", Way::Parked(own(&threads.into()))),
        ("rayon, one install a step", Way::RayonInside(rayon(threads))),
        ("rayon, an install a section", Way::RayonInstall(rayon(threads))),
        ("std::thread::scope", Way::Scope),
    ];
    let per_microsecond = steps_per_microsecond();
    let micros = |section: f64| (section * per_microsecond) as usize;
    // Chunks of a section, and the steps of each.
    let loads = [
        ("empty", threads, 0),
        ("20 us", threads, micros(WORK)),
        ("20 us in 8 chunks a thread", 8 * threads, micros(WORK / 8.0)),
    ];
    println!("{threads} threads, {SECTIONS} sections a step, medians of {rounds} rounds in turn\n");
    println!("| section | way | a step, ms | overhead a section, us |\n|---|---|---:|---:|");
    for (load, chunks, steps) in loads {
        let mut times = vec![Vec::new(); ways.len()];
        for _ in 0..rounds {
            for ((_, way), times) in ways.iter_mut().zip(&mut times) {
                times.push(way.step(threads, chunks, steps));
            }
        }
        let ideal = (chunks / threads * steps) as f64 / per_microsecond;
        for ((name, _), times) in ways.iter().zip(&mut times) {
            times.sort();
            let step = times[times.len() / 2].as_secs_f64();
            let overhead = step * 1e6 / SECTIONS as f64 - ideal;
            println!("| {load} | {name} | {:.2} | {overhead:.1} |", step * 1e3);
        }
    }
}
