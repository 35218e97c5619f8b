//! Work for the system by threads that wait for it: reads, and whatever else may hang with a mount.
//!
//! A thread that is stuck in the system cannot be ended. Its waiter goes on when the deadline passes, another thread
//! takes its place, and its work, when it ends at last, is dropped.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Threads that may be stuck before no more are started.
const MOST_STUCK: usize = 64;

/// Threads, started when there is work for them.
#[derive(Debug)]
pub(crate) struct Threads(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    most: usize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    /// Without those that are stuck.
    threads: usize,
    stuck: usize,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Queue { jobs, idle, threads, stuck, .. } = self;
        write!(f, "{} jobs, {threads} threads, {idle} idle, {stuck} stuck", jobs.len())
    }
}

struct Job {
    state: Arc<AtomicU8>,
    work: Box<dyn FnOnce() + Send>,
}

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const ABANDONED: u8 = 2;

/// A result that is on its way.
pub(crate) struct Awaited<T> {
    result: Receiver<T>,
    state: Arc<AtomicU8>,
    threads: Arc<Shared>,
}

impl Threads {
    /// Up to `most` threads that are not stuck.
    pub(crate) fn new(most: usize) -> Threads {
        let (queue, work, most) = (Mutex::default(), Condvar::new(), most.max(1));
        Threads(Arc::new(Shared { queue, work, most }))
    }

    /// Has something done.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Awaited<T> {
        let (sender, result) = channel();
        let state = Arc::new(AtomicU8::new(WAITING));
        let work = move || {
            // Nobody waits any more if this fails.
            let _ = sender.send(work());
        };
        let mut queue = self.0.lock();
        queue.jobs.push_back(Job { state: Arc::clone(&state), work: Box::new(work) });
        self.0.provide(&mut queue);
        drop(queue);
        Awaited { result, state, threads: Arc::clone(&self.0) }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that the first job in the queue finds a thread.
    fn provide(self: &Arc<Shared>, queue: &mut Queue) {
        if queue.idle >= queue.jobs.len() {
            self.work.notify_one();
            return;
        }
        if queue.threads >= self.most || queue.stuck >= MOST_STUCK {
            return;
        }
        let shared = Arc::clone(self);
        let started = thread::Builder::new().name("unfazed-read".to_owned()).spawn(move || shared.work());
        // Without another thread those that exist do the work; without any the waiter's deadline passes.
        queue.threads += usize::from(started.is_ok());
    }

    fn work(self: Arc<Shared>) {
        let mut queue = self.lock();
        loop {
            while let Some(job) = queue.jobs.pop_front() {
                let taken =
                    job.state.compare_exchange(WAITING, RUNNING, Ordering::Relaxed, Ordering::Relaxed);
                if taken.is_err() {
                    continue;
                }
                drop(queue);
                (job.work)();
                queue = self.lock();
                // Under the lock, as is the other half of this in `Awaited::wait`.
                if job.state.load(Ordering::Relaxed) == ABANDONED {
                    queue.stuck = queue.stuck.saturating_sub(1);
                    if queue.threads >= self.most {
                        return;
                    }
                    queue.threads += 1;
                }
            }
            if queue.closed {
                return;
            }
            queue.idle += 1;
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle = queue.idle.saturating_sub(1);
        }
    }
}

impl<T> Awaited<T> {
    /// Waits for the result. After `limit` it is given up.
    ///
    /// # Errors
    ///
    /// `TimedOut` after `limit`.
    pub(crate) fn wait(self, limit: Duration) -> io::Result<T> {
        if let Ok(result) = self.result.recv_timeout(limit) {
            return Ok(result);
        }
        let mut queue = self.threads.lock();
        // It may have come while the lock was waited for.
        if let Ok(result) = self.result.try_recv() {
            return Ok(result);
        }
        if self.state.swap(ABANDONED, Ordering::Relaxed) == RUNNING {
            queue.threads = queue.threads.saturating_sub(1);
            queue.stuck += 1;
            if !queue.jobs.is_empty() {
                self.threads.provide(&mut queue);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {:.1} s", limit.as_secs_f64())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn as_many_jobs_run_at_a_time_as_there_may_be_threads() {
        let threads = Threads::new(3);
        let barrier = Arc::new(Barrier::new(3));
        let jobs: Vec<_> = (0..9)
            .map(|number| {
                let barrier = Arc::clone(&barrier);
                threads.run(move || {
                    barrier.wait();
                    number
                })
            })
            .collect();
        let done: Vec<_> = jobs.into_iter().map(|job| job.wait(LONG).unwrap()).collect();
        assert_eq!(done, (0..9).collect::<Vec<_>>());
        assert_eq!(threads.0.lock().threads, 3);
    }

    #[test]
    fn a_thread_that_is_stuck_is_replaced_and_what_it_brings_in_the_end_goes_nowhere() {
        let threads = Threads::new(1);
        let (free, stuck) = mpsc::channel::<()>();
        let (dropped, told) = mpsc::channel();
        struct Tells(mpsc::Sender<()>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let job = threads.run(move || {
            let _ = stuck.recv();
            Tells(dropped)
        });
        while job.state.load(Ordering::Relaxed) != RUNNING {
            thread::yield_now();
        }
        let queued = threads.run(|| 1);
        assert_eq!(job.wait(Duration::ZERO).err().unwrap().kind(), io::ErrorKind::TimedOut);
        assert_eq!(queued.wait(LONG).unwrap(), 1);
        assert_eq!(threads.0.lock().stuck, 1);
        free.send(()).unwrap();
        told.recv_timeout(LONG).unwrap();
        assert_eq!(threads.run(|| 2).wait(LONG).unwrap(), 2);
    }

    #[test]
    fn a_job_that_was_given_up_in_the_queue_is_never_run() {
        let threads = Threads::new(1);
        let (free, stuck) = mpsc::channel::<()>();
        let first = threads.run(move || stuck.recv());
        let (ran, told) = mpsc::channel();
        let second = threads.run(move || ran.send(()));
        assert!(second.wait(Duration::ZERO).is_err());
        free.send(()).unwrap();
        first.wait(LONG).unwrap().unwrap();
        threads.run(|| ()).wait(LONG).unwrap();
        assert!(told.try_recv().is_err());
    }
}
