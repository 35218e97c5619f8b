//! Output whose reader may be slow, stopped or gone: those who have something to say never wait for it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Most items that wait to be written.
const CAPACITY: usize = 4096;
/// How long the program's end waits for them.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A queue of items, and a thread that writes them. The thread lives as long as the program.
pub(crate) struct Output<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
}

struct Queue<T> {
    /// Each with how many were dropped right before it.
    items: VecDeque<(T, u64)>,
    /// Dropped since the last item.
    dropped: u64,
    /// An item is being written.
    writing: bool,
}

impl<T> Clone for Output<T> {
    fn clone(&self) -> Self {
        Output { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Send + 'static> Output<T> {
    /// Starts the thread. `write` gets each item, and how many were dropped right before it.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn start(name: &str, mut write: impl FnMut(T, u64) + Send + 'static) -> io::Result<Output<T>> {
        let queue = Queue { items: VecDeque::new(), dropped: 0, writing: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), changed: Condvar::new() });
        let output = Output { shared: Arc::clone(&shared) };
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            loop {
                let (item, dropped) = shared.take();
                write(item, dropped);
            }
        })?;
        Ok(output)
    }

    /// Has an item written. Where too many wait already it is dropped, and the next one that is not tells.
    pub(crate) fn send(&self, item: T) {
        let mut queue = self.shared.lock();
        if queue.items.len() >= CAPACITY {
            queue.dropped = queue.dropped.saturating_add(1);
            return;
        }
        let dropped = std::mem::take(&mut queue.dropped);
        queue.items.push_back((item, dropped));
        self.shared.changed.notify_all();
    }

    /// Waits until everything was written, for a second at most.
    pub(crate) fn flush(&self) {
        self.flush_within(LAST_WAIT);
    }

    /// The same with another limit.
    pub(crate) fn flush_within(&self, limit: Duration) {
        let waits = |queue: &mut Queue<T>| queue.writing || !queue.items.is_empty();
        // What was not written by then is not waited for: nobody reads it.
        drop(self.shared.changed.wait_timeout_while(self.shared.lock(), limit, waits));
    }
}

impl<T> Shared<T> {
    /// The next item to write, once there is one.
    fn take(&self) -> (T, u64) {
        let mut queue = self.lock();
        queue.writing = false;
        self.changed.notify_all();
        loop {
            if let Some(next) = queue.items.pop_front() {
                queue.writing = true;
                return next;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // Nothing under this lock panics half-way through a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// An output that writes an item only when its reader takes it.
    fn unread() -> (Output<usize>, Receiver<(usize, u64)>) {
        let (reader, written): (SyncSender<_>, _) = sync_channel(0);
        let write = move |item, dropped| reader.send((item, dropped)).unwrap_or_default();
        (Output::start("a test", write).unwrap(), written)
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_dropped_is_told_where_it_is_missing() {
        let (output, written) = unread();
        output.send(0);
        // The thread holds the first one, so that the queue has room for exactly so many.
        while !output.shared.lock().writing {
            thread::yield_now();
        }
        for item in 1..=CAPACITY + 7 {
            output.send(item);
        }
        for item in 0..=CAPACITY {
            assert_eq!(written.recv(), Ok((item, 0)));
        }
        output.send(9999);
        assert_eq!(written.recv(), Ok((9999, 7)));
        output.send(10_000);
        assert_eq!(written.recv(), Ok((10_000, 0)));
    }

    #[test]
    fn the_end_waits_for_what_is_read_and_not_for_what_is_not() {
        let (output, written) = unread();
        output.send(1);
        output.flush();
        output.send(2);
        let reads = thread::spawn(move || [written.recv(), written.recv()]);
        assert_eq!(reads.join().unwrap(), [Ok((1, 0)), Ok((2, 0))]);
        output.flush();
        assert!(!output.shared.lock().writing);
    }
}
