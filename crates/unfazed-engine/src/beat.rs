//! Signs of life from an engine that is busy for long: a thread that tells the front what gets on and what is waited for.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use unfazed_wire::ToFront;
use unfazed_wire::link::{self, LinkError};

use crate::waits::Waits;

/// Between two signs.
const EVERY: Duration = Duration::from_millis(200);
/// Waits shorter than this are nobody's concern.
const LONG: Duration = Duration::from_millis(500);

/// The sending half of the link, for several threads.
#[derive(Clone)]
pub(crate) struct Outgoing(Arc<Mutex<link::Sender>>);

impl Outgoing {
    pub(crate) fn new(sender: link::Sender) -> Outgoing {
        Outgoing(Arc::new(Mutex::new(sender)))
    }

    pub(crate) fn send(&self, message: &ToFront) -> Result<(), LinkError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send(message)
    }
}

/// What gets on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Bytes of weights in place, and in all.
    pub(crate) loaded: Arc<AtomicU64>,
    pub(crate) to_load: Arc<AtomicU64>,
    /// Layers computed.
    pub(crate) pulse: Arc<AtomicU64>,
    /// What is waited for.
    pub(crate) waits: Arc<Waits>,
}

impl Progress {
    /// How far loading is.
    pub(crate) fn loading(&self) -> ToFront {
        let [done, total] = [&self.loaded, &self.to_load].map(|count| count.load(Ordering::Relaxed));
        ToFront::Loading { done, total }
    }
}

/// The thread, until it is dropped.
pub(crate) struct Beat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Beat {
    pub(crate) fn start(progress: Progress, outgoing: Outgoing) -> io::Result<Beat> {
        let (stop, stopped) = channel();
        let mut signs = Signs::new(progress);
        let thread = thread::Builder::new().name("beat".to_owned()).spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                for sign in signs.next() {
                    // The thread that computes finds out by itself that the front is gone.
                    if outgoing.send(&sign).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(Beat { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say any more.
            let _ = thread.join();
        }
    }
}

struct Signs {
    progress: Progress,
    /// From this length on a wait is told.
    long: Duration,
    loaded: u64,
    pulse: u64,
}

impl Signs {
    /// Nothing is new yet.
    fn new(progress: Progress) -> Signs {
        let [loaded, pulse] = [&progress.loaded, &progress.pulse].map(|count| count.load(Ordering::Relaxed));
        Signs { progress, long: LONG, loaded, pulse }
    }

    /// What is new since the last call.
    fn next(&mut self) -> Vec<ToFront> {
        let mut signs = Vec::new();
        let loaded = self.progress.loaded.load(Ordering::Relaxed);
        if loaded != self.loaded {
            self.loaded = loaded;
            signs.push(self.progress.loading());
        }
        let pulse = self.progress.pulse.load(Ordering::Relaxed);
        if pulse != self.pulse {
            self.pulse = pulse;
            signs.push(ToFront::Working);
        }
        if let Some((what, since)) = self.progress.waits.longest()
            && since >= self.long
        {
            let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            signs.push(ToFront::Waiting { what, ms });
        }
        signs
    }
}

#[cfg(test)]
mod tests {
    use unfazed_store::WaitObserver;

    use super::*;

    #[test]
    fn signs_tell_what_is_new_and_nothing_twice() {
        let progress = Progress::default();
        let mut signs = Signs::new(progress.clone());
        assert_eq!(signs.next(), []);
        progress.to_load.store(10, Ordering::Relaxed);
        progress.loaded.store(3, Ordering::Relaxed);
        progress.pulse.store(1, Ordering::Relaxed);
        assert_eq!(signs.next(), [ToFront::Loading { done: 3, total: 10 }, ToFront::Working]);
        assert_eq!(signs.next(), []);
        progress.waits.began("a slow disk".to_owned());
        signs.long = Duration::MAX;
        assert_eq!(signs.next(), [], "a short wait is nobody's concern");
        signs.long = Duration::ZERO;
        assert!(matches!(&signs.next()[..], [ToFront::Waiting { what, .. }] if what == "a slow disk"));
    }
}
