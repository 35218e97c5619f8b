//! Threads for sections of a few microseconds.
//!
//! A decode step has about a hundred sections, so a section must cost less than a system call: workers spin for the
//! next one for a short while before they park. A section is a number of chunks handed out by a shared counter, and
//! ends when the chunks are done: the caller, who works too, waits for the workers that took a chunk, never for one that
//! has not woken up or lost its core. So a busy machine costs its share of the work and no more.
//!
//! One word, [`Shared::state`], says it all: the section's number, whether it is open, and how many workers are in it.
//! A worker enters by adding one to it while it is open; the caller closes it when the counter has run out and waits
//! until nobody is in. What the section borrows is alive until then.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use unfazed_wire::Threads;

use super::placement;

/// How long a thread spins before it parks. Longer than the gaps between sections of a step; short enough that two
/// threads that were put on one core do not keep each other from working for long.
const SPIN: Duration = Duration::from_micros(50);

/// The same where each thread has a processor of its own, so that none can keep another from working: long enough for
/// the time between two tokens, since to wake a parked thread takes a tenth of a millisecond.
const SPIN_PINNED: Duration = Duration::from_millis(1);

/// The clock is read once in so many spins.
const SPINS_PER_LOOK: u32 = 64;

/// Bits of the state: workers that are in, whether it is open, and the section's number above.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const SECTION: u64 = 1 << 17;

/// Workers beyond this would not fit into the count.
const MAX_THREADS: usize = 4096;

/// Keeps what different threads write on different cache lines.
#[repr(align(128))]
struct Line<T>(T);

/// What a section runs: thread and chunk.
type Work = dyn Fn(usize, usize) + Sync;

/// The section's work, without its lifetime. Read only between entering and leaving a section.
#[derive(Clone, Copy)]
struct Job {
    work: *const Work,
    chunks: usize,
}

struct Shared {
    state: Line<AtomicU64>,
    next: Line<AtomicUsize>,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    /// Threads that take part in a section: those with a lower number. Changed between sections only.
    taking_part: AtomicUsize,
    spin: Duration,
    /// Whether worker `i + 1` is parked or about to be.
    parked: Vec<Line<AtomicBool>>,
    caller_waits: AtomicBool,
    caller: (Mutex<()>, Condvar),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only part that is not safe to share. The caller alone writes it, while the section is closed and
// nobody is in; workers read it after they entered.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to work that is `Sync`, and is not used once its section has ended.
unsafe impl Send for Shared {}

/// A fixed number of threads, of which the caller is number 0.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of as many threads as the largest step has (at least one: the caller), where `threads` puts them. The
    /// caller is bound to its processors too, and with it the threads that it starts from then on.
    pub fn new(threads: &Threads) -> io::Result<Pool> {
        let count = threads.most().clamp(1, MAX_THREADS);
        let workers = count - 1;
        let alone = threads.pin && count <= threads.processors.len();
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            taking_part: AtomicUsize::new(count),
            spin: if alone { SPIN_PINNED } else { SPIN },
            parked: (0..workers).map(|_| Line(AtomicBool::new(false))).collect(),
            caller_waits: AtomicBool::new(false),
            caller: (Mutex::new(()), Condvar::new()),
            panic: Mutex::new(None),
        });
        // Made first, so that an error ends the workers that were started.
        let mut pool = Pool { shared, workers: Vec::new() };
        let (placed, all_placed) = channel();
        for worker in 1..=workers {
            let (shared, placed, threads) = (pool.shared.clone(), placed.clone(), threads.clone());
            let builder = thread::Builder::new().name(format!("unfazed-cpu-{worker}"));
            pool.workers.push(builder.spawn(move || {
                // The pool's maker waits for it, until all have said it.
                let _ = placed.send(placement::place(&threads, worker));
                drop(placed);
                shared.serve(worker);
            })?);
        }
        drop(placed);
        // Only after the workers were started, who would inherit it.
        placement::place(threads, 0)?;
        all_placed.into_iter().collect::<io::Result<()>>()?;
        Ok(pool)
    }

    /// Number of threads that take part in a section.
    pub fn threads(&self) -> usize {
        self.shared.taking_part.load(Ordering::Relaxed)
    }

    /// Threads that there are.
    pub fn capacity(&self) -> usize {
        self.workers.len() + 1
    }

    /// Lets so many threads take part in the sections that follow (at least one, at most all). The others park.
    pub fn take_part(&mut self, threads: usize) {
        // Seen by workers that see the next section, since its number is stored after it.
        self.shared.taking_part.store(threads.clamp(1, self.capacity()), Ordering::Relaxed);
    }

    /// Runs `work(thread, chunk)` for each chunk below `chunks`, on any thread, in any order; returns when all are done.
    /// A panic in it ends the section early and goes on in the caller.
    pub fn run(&mut self, chunks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        if self.threads() == 1 || chunks <= 1 {
            return (0..chunks).for_each(|chunk| work(0, chunk));
        }
        let shared = &*self.shared;
        shared.next.0.store(0, Ordering::Relaxed);
        // SAFETY: the lifetime that is taken off here is kept by not returning, nor unwinding, before nobody is in the
        // section any more; now it is closed and nobody is: `run` borrows the pool exclusively and leaves it so.
        let job = unsafe {
            let work = std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync), *const Work>(work);
            Job { work, chunks }
        };
        // SAFETY: as above, nobody reads the job now.
        unsafe { *shared.job.get() = Some(job) };
        shared.state.0.fetch_add(SECTION | OPEN, Ordering::SeqCst);
        self.wake(chunks - 1);
        shared.take_chunks(0, job);
        shared.state.0.fetch_and(!OPEN, Ordering::SeqCst);
        shared.wait_until_empty();
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Wakes up to `needed` workers that are parked, if the others are too few.
    fn wake(&self, needed: usize) {
        let needed = needed.min(self.threads() - 1);
        for (worker, parked) in self.workers.iter().zip(&self.shared.parked).take(needed) {
            if parked.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its work throws; there is nothing to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The life of a worker.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        while let Some(section) = self.wait_for_section(worker, seen) {
            seen = section;
            if !self.enter(section) {
                continue;
            }
            // SAFETY: we are in an open section, so the caller has written the job and waits for us.
            if let Some(job) = unsafe { *self.job.get() } {
                self.take_chunks(worker, job);
            }
            self.leave();
        }
    }

    /// Waits for an open section other than `seen`; `None` when the pool ends.
    fn wait_for_section(&self, worker: usize, seen: u64) -> Option<u64> {
        let open = || {
            let state = self.state.0.load(Ordering::SeqCst);
            let news = state & OPEN != 0 && state / SECTION != seen;
            (news && worker < self.taking_part.load(Ordering::Relaxed)).then_some(state / SECTION)
        };
        let ready = || self.stop.load(Ordering::SeqCst) || open().is_some();
        if !spin(self.spin, ready) {
            let parked = &self.parked[worker - 1].0;
            parked.store(true, Ordering::SeqCst);
            // The flag is up before the state is looked at again, and the caller looks at the flag after it changed
            // the state: one of the two sees the other.
            while !ready() {
                thread::park();
            }
            parked.store(false, Ordering::SeqCst);
        }
        if self.stop.load(Ordering::SeqCst) { None } else { Some(open().unwrap_or(seen)) }
    }

    /// Enters a section, unless it is over.
    fn enter(&self, section: u64) -> bool {
        let step = |state: u64| (state & OPEN != 0 && state / SECTION == section).then(|| state + 1);
        self.state.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step).is_ok()
    }

    fn leave(&self) {
        let before = self.state.0.fetch_sub(1, Ordering::SeqCst);
        if before & INSIDE == 1 && before & OPEN == 0 && self.caller_waits.load(Ordering::SeqCst) {
            let _guard = self.caller.0.lock().unwrap_or_else(PoisonError::into_inner);
            self.caller.1.notify_one();
        }
    }

    /// Works until the counter has run out. Called by those who are in the section alone.
    fn take_chunks(&self, thread: usize, job: Job) {
        let work = || {
            loop {
                let chunk = self.next.0.fetch_add(1, Ordering::Relaxed);
                if chunk >= job.chunks {
                    return;
                }
                // SAFETY: the caller of `run` keeps the work alive until everyone has left the section.
                unsafe { (*job.work)(thread, chunk) };
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            // Half of the range is beyond any number of chunks and leaves room for those who still count on.
            self.next.0.store(usize::MAX / 2, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// The caller's wait for those who are still in.
    fn wait_until_empty(&self) {
        let empty = || self.state.0.load(Ordering::SeqCst) & INSIDE == 0;
        if spin(self.spin, empty) {
            return;
        }
        let mut guard = self.caller.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.caller_waits.store(true, Ordering::SeqCst);
        while !empty() {
            guard = self.caller.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_waits.store(false, Ordering::SeqCst);
    }
}

/// Spins until `ready`, or until the time is over: then false.
fn spin(time: Duration, ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() >= time {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a section and counts how often each chunk was run.
    fn counts(pool: &mut Pool, chunks: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
        let threads = pool.threads();
        pool.run(chunks, &|thread, chunk| {
            assert!(thread < threads);
            counts[chunk].fetch_add(1, Ordering::SeqCst);
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_chunk_runs_once_in_many_tiny_sections() {
        for threads in [1, 2, 3, 9] {
            let mut pool = Pool::new(&threads.into()).unwrap();
            for section in 0..20_000 {
                let chunks = section % 17;
                assert!(counts(&mut pool, chunks).iter().all(|n| *n == 1), "section {section}");
            }
        }
    }

    #[test]
    fn workers_that_parked_are_woken_again() {
        let mut pool = Pool::new(&3.into()).unwrap();
        for _ in 0..20 {
            thread::sleep(SPIN * 20);
            // Each of the chunks waits until all have begun, so the workers must have come.
            let begun = AtomicUsize::new(0);
            pool.run(3, &|_, _| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_caller_waits_for_chunks_that_take_longer_than_it_spins() {
        let mut pool = Pool::new(&4.into()).unwrap();
        for _ in 0..20 {
            let done = AtomicUsize::new(0);
            pool.run(8, &|thread, _| {
                thread::sleep(if thread == 0 { Duration::ZERO } else { SPIN * 10 });
                done.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(done.into_inner(), 8);
        }
    }

    #[test]
    fn a_panic_in_any_thread_reaches_the_caller_and_the_pool_lives() {
        let mut pool = Pool::new(&4.into()).unwrap();
        for round in 0..50 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(100, &|_, chunk| assert!(chunk != round, "chunk {chunk} fails"));
            }));
            let message = result.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(*message, format!("chunk {round} fails"));
            assert!(counts(&mut pool, 40).iter().all(|n| *n == 1));
        }
    }

    #[test]
    fn only_those_who_take_part_run_chunks_and_the_others_come_back() {
        let mut pool = Pool::new(&4.into()).unwrap();
        for round in 0..2_000 {
            let taking_part = [4, 1, 2, 3][round % 4];
            pool.take_part(taking_part);
            assert_eq!((pool.threads(), pool.capacity()), (taking_part, 4));
            assert!(counts(&mut pool, 1 + round % 9).iter().all(|n| *n == 1));
            if round % 500 == 0 {
                thread::sleep(SPIN * 20);
            }
        }
        // All of them, since each chunk waits until all have begun.
        pool.take_part(9);
        let begun = AtomicUsize::new(0);
        pool.run(4, &|_, _| {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < 4 {
                thread::yield_now();
            }
        });
    }

    #[test]
    fn many_pools_share_few_cores() {
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let mut pool = Pool::new(&4.into()).unwrap();
                    for chunks in (0..300).map(|i| i % 13) {
                        assert!(counts(&mut pool, chunks).iter().all(|n| *n == 1));
                    }
                });
            }
        });
    }
}
