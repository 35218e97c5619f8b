//! Where answers are made: here, or by a successor.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, watch};

use super::message::{Answer, Answered, FromNew, FromOld, Key, Outgoing};

/// The way of every answer: who is in it keeps a hand-over from beginning, so whoever holds it sees each answer between two
/// steps.
#[derive(Default)]
pub(crate) struct Passage {
    place: RwLock<Option<Arc<Successor>>>,
    moved: watch::Sender<Option<Arc<Successor>>>,
    failed: AtomicU64,
}

/// Where an answer's next step is made.
pub(crate) enum Pass<'a> {
    /// Here, as long as this is held.
    Here(RwLockReadGuard<'a, Option<Arc<Successor>>>),
    /// There.
    There(Arc<Successor>),
}

impl Passage {
    /// Waits while a hand-over is under way.
    pub(crate) async fn enter(&self) -> Pass<'_> {
        let place = self.place.read().await;
        match place.as_ref() {
            None => Pass::Here(place),
            Some(successor) => Pass::There(Arc::clone(successor)),
        }
    }

    /// Whether a successor makes the answers.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.borrow().is_some()
    }

    /// Resolves once a successor makes the answers.
    pub(crate) async fn moved(&self) -> Arc<Successor> {
        let mut moved = self.moved.subscribe();
        match moved.wait_for(Option::is_some).await.ok().and_then(|moved| moved.clone()) {
            Some(successor) => successor,
            // The sender is in `self`: this is never reached.
            None => std::future::pending().await,
        }
    }

    /// Hand-overs that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// A hand-over failed.
    pub(super) fn has_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps everybody out.
    pub(super) async fn close(&self) -> Closed<'_> {
        Closed { place: self.place.write().await, moved: &self.moved }
    }
}

/// A passage that nobody is in. Dropping it opens it again.
pub(super) struct Closed<'a> {
    place: RwLockWriteGuard<'a, Option<Arc<Successor>>>,
    moved: &'a watch::Sender<Option<Arc<Successor>>>,
}

impl Closed<'_> {
    /// Opens it again, to a successor.
    pub(super) fn open_to(mut self, successor: Arc<Successor>) {
        *self.place = Some(Arc::clone(&successor));
        self.moved.send_replace(Some(successor));
    }
}

/// What comes of an answer that a successor makes.
pub(crate) enum Relayed {
    Text(String),
    End,
    Whole(Answered),
}

/// The front that took over, as the old one sees it.
pub(crate) struct Successor {
    outgoing: Mutex<Option<Outgoing<FromOld>>>,
    answers: Mutex<BTreeMap<Key, Follower>>,
}

/// Where what comes of an answer goes, and its other end until somebody takes it.
type Follower = (UnboundedSender<Relayed>, Option<UnboundedReceiver<Relayed>>);

impl Successor {
    /// One that these answers go to.
    pub(super) fn new(outgoing: Outgoing<FromOld>, answers: impl Iterator<Item = Key>) -> Successor {
        let follower = || {
            let (sender, receiver) = unbounded_channel();
            (sender, Some(receiver))
        };
        let answers = answers.map(|key| (key, follower())).collect();
        Successor { outgoing: Mutex::new(Some(outgoing)), answers: Mutex::new(answers) }
    }

    /// What comes of an answer that was handed over.
    pub(crate) fn follow(self: &Arc<Self>, key: u128) -> Followed {
        let taken = lock(&self.answers).get_mut(&Key(key)).and_then(|(_, receiver)| receiver.take());
        // One that was not handed over ends at once.
        let receiver = taken.unwrap_or_else(|| unbounded_channel().1);
        Followed { key: Key(key), receiver, successor: Arc::clone(self) }
    }

    /// Gives it a request that came after the hand-over.
    pub(crate) fn adopt(self: &Arc<Self>, key: u128, admission: Vec<u8>) -> Followed {
        let key = Key(key);
        let (sender, receiver) = unbounded_channel();
        lock(&self.answers).insert(key, (sender, None));
        let admission = String::from_utf8(admission).unwrap_or_default();
        let answer =
            Answer { key, admission, told: String::new(), events: 0, read: true, stored: false, same: false };
        self.send(FromOld::Answer(Box::new(answer)));
        Followed { key, receiver, successor: Arc::clone(self) }
    }

    /// Passes on what came.
    pub(super) fn take(&self, message: FromNew) {
        let (key, relayed) = match message {
            FromNew::Text(key, text) => (key, Relayed::Text(text)),
            FromNew::End(key) => (key, Relayed::End),
            FromNew::Whole(key, answered) => (key, Relayed::Whole(answered)),
            FromNew::Ready { .. } | FromNew::Taken => return,
        };
        if let Some((sender, _)) = lock(&self.answers).get(&key) {
            let _ = sender.send(relayed);
        }
    }

    /// Nothing more comes.
    pub(super) fn gone(&self) {
        lock(&self.answers).clear();
        lock(&self.outgoing).take();
    }

    fn send(&self, message: FromOld) {
        if let Some(outgoing) = &*lock(&self.outgoing) {
            outgoing.send(message);
        }
    }
}

/// An answer that a successor makes. Dropping it tells the successor that nobody waits for it here.
pub(crate) struct Followed {
    key: Key,
    receiver: UnboundedReceiver<Relayed>,
    successor: Arc<Successor>,
}

impl Followed {
    /// What comes next; `None` if the successor is gone.
    pub(crate) async fn next(&mut self) -> Option<Relayed> {
        self.receiver.recv().await
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if lock(&self.successor.answers).remove(&self.key).is_some() {
            self.successor.send(FromOld::Left(self.key));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks panics half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
