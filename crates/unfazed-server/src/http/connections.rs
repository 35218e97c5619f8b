//! Which connections are open, and which one goes when another needs its place: clients that send slowly, or nothing,
//! never keep out one that sends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

/// Whose turn it is on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The client's, since then: to send a head, the rest of a body, or another request.
    Waiting(Instant),
    /// Ours: its request is being answered.
    Answering,
    /// Ours until the last bytes of the answer are out.
    Flushing,
    /// It was told to make room and is about to end.
    Closing,
}

/// All open connections, at most so many.
#[derive(Clone)]
pub(super) struct Connections(Arc<Shared>);

struct Shared {
    most: usize,
    table: Mutex<Table>,
    /// A place became free, or its connection one that may be closed.
    changed: Notify,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    phase: Phase,
    close: Option<oneshot::Sender<()>>,
}

/// A connection's place. Dropping it frees it.
pub(super) struct Place {
    number: u64,
    shared: Arc<Shared>,
    /// Bytes have come that belong to no complete request.
    unread: AtomicBool,
    /// The request that is answered was refused before it was complete.
    refused: AtomicBool,
}

impl Connections {
    pub(super) fn new(most: usize) -> Connections {
        Connections(Arc::new(Shared { most, table: Mutex::default(), changed: Notify::new() }))
    }

    /// A place for a new connection, and what resolves when it has to go. If none is free the connection goes that has
    /// waited longest for its client. Where all are being answered this waits for one that is not.
    pub(super) async fn enter(&self) -> (Arc<Place>, oneshot::Receiver<()>) {
        loop {
            if let Some(entered) = self.try_enter() {
                return entered;
            }
            self.0.changed.notified().await;
        }
    }

    fn try_enter(&self) -> Option<(Arc<Place>, oneshot::Receiver<()>)> {
        let mut table = self.0.lock();
        if table.open.len() >= self.0.most {
            table.make_room();
            return None;
        }
        let number = table.next;
        table.next += 1;
        let (close, closed) = oneshot::channel();
        let phase = Phase::Waiting(Instant::now());
        table.open.insert(number, Open { phase, close: Some(close) });
        let (unread, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        let place = Place { number, shared: Arc::clone(&self.0), unread, refused };
        Some((Arc::new(place), closed))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing under this lock panics half-way through a change.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Closes the connection that has waited longest, unless one is ending already.
    fn make_room(&mut self) {
        if self.open.values().any(|open| open.phase == Phase::Closing) {
            return;
        }
        let waiting = self.open.values_mut().filter_map(|open| match open.phase {
            Phase::Waiting(since) => Some((since, open)),
            Phase::Answering | Phase::Flushing | Phase::Closing => None,
        });
        if let Some((_, open)) = waiting.min_by_key(|(since, _)| *since) {
            open.phase = Phase::Closing;
            // One whose task has ended meanwhile has nobody to tell.
            let _ = open.close.take().map(|close| close.send(()));
        }
    }
}

impl Place {
    /// Bytes came from the client.
    pub(super) fn heard(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Whether bytes have come that belong to no complete request: of a head that is none, or of a body that was
    /// refused.
    pub(super) fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// Whether the request that is answered was refused before it was complete: no other can follow it.
    pub(super) fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// A head is complete and its body is not.
    pub(super) fn receiving(&self) {
        self.refused.store(false, Ordering::Relaxed);
        self.turn(|_| Phase::Waiting(Instant::now()));
    }

    /// Nothing more is expected of the client: its request is complete, or refused as it is.
    pub(super) fn answering(&self, complete: bool) {
        self.refused.store(!complete, Ordering::Relaxed);
        if complete {
            self.unread.store(false, Ordering::Relaxed);
        }
        self.turn(|_| Phase::Answering);
    }

    /// The answer is made.
    pub(super) fn flushing(&self) {
        self.turn(|_| Phase::Flushing);
    }

    /// All bytes are out.
    pub(super) fn flushed(&self) {
        self.turn(|phase| match phase {
            Phase::Flushing => Phase::Waiting(Instant::now()),
            other => other,
        });
    }

    fn turn(&self, next: impl FnOnce(Phase) -> Phase) {
        let mut table = self.shared.lock();
        let Some(open) = table.open.get_mut(&self.number) else { return };
        let before = open.phase;
        if before != Phase::Closing {
            open.phase = next(before);
        }
        if before != open.phase && matches!(open.phase, Phase::Waiting(_)) {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.lock().open.remove(&self.number);
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(connections: &Connections) -> (Arc<Place>, oneshot::Receiver<()>) {
        connections.try_enter().expect("a free place")
    }

    #[test]
    fn the_connection_that_has_waited_longest_makes_room_and_one_that_is_answered_never_does() {
        let connections = Connections::new(3);
        let [(answered, mut first), (idle, mut second), (_slow, mut third)] =
            std::array::from_fn(|_| enter(&connections));
        answered.answering(true);
        // It waits from the end of its last answer on: the third one has waited longer.
        idle.answering(true);
        idle.flushing();
        idle.flushed();
        assert!(connections.try_enter().is_none(), "a place is free once its connection has ended");
        assert!(third.try_recv().is_ok());
        assert!(connections.try_enter().is_none());
        assert!(first.try_recv().is_err() && second.try_recv().is_err(), "one that ends is enough");
    }

    #[tokio::test]
    async fn where_all_are_answered_a_new_connection_waits_for_the_first_that_is_not() {
        let connections = Connections::new(1);
        let (place, closed) = enter(&connections);
        place.answering(true);
        let waits = tokio::spawn(async move { connections.enter().await.0.number });
        tokio::task::yield_now().await;
        place.flushing();
        place.flushed();
        closed.await.expect("it is told to make room");
        drop(place);
        assert_eq!(waits.await.unwrap(), 1);
    }

    #[test]
    fn a_body_that_is_refused_leaves_bytes_unread_and_a_complete_one_does_not() {
        let (place, _closed) = enter(&Connections::new(1));
        place.heard();
        place.receiving();
        place.answering(false);
        assert!(place.has_unread() && place.has_refused());
        place.receiving();
        place.answering(true);
        assert!(!place.has_unread() && !place.has_refused());
    }
}
