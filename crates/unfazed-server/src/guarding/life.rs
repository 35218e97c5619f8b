//! One process of the guarded server, from its start to its end: who is being answered by it, and what moves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use unfazed_fault::Class;

use super::output::Tail;
use crate::Process;
use crate::supervisor::{Cause, ChildProcess};

/// A process of the guarded server.
pub(super) struct Life {
    /// 1 for the first.
    pub(super) number: u64,
    /// Its private port.
    pub(super) port: u16,
    /// Its process, which leads a group of the same number.
    pub(super) pid: u32,
    pub(super) process: Arc<ChildProcess>,
    pub(super) tail: Tail,
    pub(super) born: Instant,
    condemned: OnceLock<Condemned>,
    over: watch::Sender<Option<Death>>,
    flights: Mutex<Flights>,
    busy: watch::Sender<bool>,
    /// Counts what requests got.
    moved: AtomicU64,
    /// A request got something, or was answered.
    useful: AtomicBool,
    /// It told of a fault of its device.
    faulty: AtomicBool,
}

/// Why the guard ends a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condemned {
    /// Nothing moves.
    Stalled(String),
    /// Its output says that its device cannot be used any more.
    Device(Class, String),
}

/// How a process ended for those who were being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    pub(super) cause: Cause,
    /// Requests that it had.
    pub(super) requests: usize,
}

#[derive(Default)]
struct Flights {
    next: u64,
    /// Whether each flows: it has given bytes, and gives more as they are computed.
    open: BTreeMap<u64, bool>,
}

impl Life {
    pub(super) fn new(number: u64, port: u16, pid: u32, process: Arc<ChildProcess>, tail: Tail) -> Life {
        Life {
            number,
            port,
            pid,
            process,
            tail,
            born: Instant::now(),
            condemned: OnceLock::new(),
            over: watch::Sender::new(None),
            flights: Mutex::default(),
            busy: watch::Sender::new(false),
            moved: AtomicU64::new(0),
            useful: AtomicBool::new(false),
            faulty: AtomicBool::new(false),
        }
    }

    /// A request goes to this process.
    pub(super) fn enter(self: &Arc<Self>) -> Flight {
        let mut flights = self.lock();
        let number = flights.next;
        flights.next += 1;
        flights.open.insert(number, false);
        self.busy.send_replace(true);
        Flight { life: Arc::clone(self), number }
    }

    /// Ends the process, for the first reason that is given.
    pub(super) fn condemn(&self, why: Condemned) {
        if self.condemned.set(why).is_ok() {
            self.process.kill();
        }
    }

    pub(super) fn condemned(&self) -> Option<&Condemned> {
        self.condemned.get()
    }

    /// It is over: those who are being answered learn how.
    pub(super) fn end(&self, cause: Cause) {
        let requests = self.requests();
        self.over.send_replace(Some(Death { cause, requests }));
    }

    /// Resolves once it is over.
    pub(super) async fn death(&self) -> Death {
        let mut over = self.over.subscribe();
        loop {
            if let Some(death) = *over.borrow_and_update() {
                return death;
            }
            if over.changed().await.is_err() {
                // The sender is in `self`.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Requests that it has.
    pub(super) fn requests(&self) -> usize {
        self.lock().open.len()
    }

    /// Whether it has requests, as a value to wait for.
    pub(super) fn busy(&self) -> watch::Receiver<bool> {
        self.busy.subscribe()
    }

    /// A request of it may be computed without any byte to be seen.
    pub(super) fn has_hidden_work(&self) -> bool {
        self.lock().open.values().any(|flows| !flows)
    }

    /// Rises with whatever requests got.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// A request was answered, or got something.
    pub(super) fn was_useful(&self) -> bool {
        self.useful.load(Ordering::Relaxed)
    }

    pub(super) fn tell_faulty(&self) {
        self.faulty.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_faulty(&self) -> bool {
        self.faulty.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in a process. Hold it until what became of it is known; dropping it ends it.
pub(super) struct Flight {
    pub(super) life: Arc<Life>,
    number: u64,
}

impl Flight {
    /// It got something. `flows`: silence from now on means that nothing is computed for it.
    pub(super) fn moved(&self, flows: bool) {
        self.life.moved.fetch_add(1, Ordering::Relaxed);
        self.life.useful.store(true, Ordering::Relaxed);
        if let Some(open) = self.life.lock().open.get_mut(&self.number) {
            *open = flows;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut flights = self.life.lock();
        flights.open.remove(&self.number);
        let busy = !flights.open.is_empty();
        self.life.busy.send_replace(busy);
    }
}
