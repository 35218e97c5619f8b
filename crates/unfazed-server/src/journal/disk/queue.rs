//! What waits for the writer. Nobody waits here: what is too much is dropped, and its stream is known to have a gap.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::error::JournalError;
use super::format::{MAX_RECORD_BYTES, RECORD_OVERHEAD, StreamKey};
use super::writer::{Item, Waiter};

/// Most bytes that wait for the disk.
pub(super) const MAX_QUEUED_BYTES: u64 = 64 << 20;
/// Entries that nobody waits for are written together with those of this time: a write for each would cost the tokens'
/// time.
const LINGER: Duration = Duration::from_millis(20);
/// So many bytes don't linger.
const LINGER_BYTES: u64 = 1 << 20;

/// Whether there is a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// Another process goes on. It may come back.
    Parked,
    /// It has ended.
    Closed,
}

struct State {
    items: Vec<Item>,
    /// Of `items`.
    bytes: u64,
    /// That the writer has and the disk has not.
    held_bytes: u64,
    /// Somebody waits.
    urgent: bool,
    /// Since when there is one that nobody waits for.
    since: Option<Instant>,
    phase: Phase,
    /// Nobody will give more.
    ended: bool,
    /// Streams that miss an entry.
    gaps: HashSet<StreamKey>,
    /// Those of which the writer has not heard, and why.
    new_gaps: Vec<(StreamKey, &'static str)>,
}

/// The way to the writer's thread.
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

/// What the writer gets.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    pub(super) new_gaps: Vec<(StreamKey, &'static str)>,
    /// Nothing more comes.
    pub(super) ended: bool,
}

impl Queue {
    pub(super) fn new() -> Queue {
        let state = State {
            items: Vec::new(),
            bytes: 0,
            held_bytes: 0,
            urgent: false,
            since: None,
            phase: Phase::Running,
            ended: false,
            gaps: HashSet::new(),
            new_gaps: Vec::new(),
        };
        Queue { state: Mutex::new(state), wake: Condvar::new() }
    }

    /// An admission; what comes back says when it is on the disk.
    pub(super) fn admit(&self, key: StreamKey, bytes: Vec<u8>) -> Answer {
        let (synced, answer) = oneshot::channel();
        let mut state = self.lock();
        let refused = match state.phase {
            Phase::Running => too_large(&bytes).or_else(|| state.overloaded(bytes.len())),
            Phase::Parked | Phase::Closed => Some(JournalError::HandedOver),
        };
        if let Some(error) = refused {
            return Answer::Known(error);
        }
        state.push(Item::Admit { key, bytes, synced });
        self.hurry(state);
        Answer::Coming(answer)
    }

    /// An entry that nobody waits for.
    pub(super) fn append(&self, key: StreamKey, bytes: Vec<u8>) {
        let mut state = self.lock();
        if state.take_entry(key, bytes, None).is_ok() {
            let first = state.since.is_none();
            state.since.get_or_insert_with(Instant::now);
            if first || (state.bytes >= LINGER_BYTES && !state.urgent) {
                state.urgent |= state.bytes >= LINGER_BYTES;
                drop(state);
                self.wake.notify_one();
            }
        }
    }

    /// An entry; what comes back says when the system has it.
    pub(super) fn append_written(&self, key: StreamKey, bytes: Vec<u8>) -> Answer {
        let (written, answer) = oneshot::channel();
        let mut state = self.lock();
        let parked = state.phase != Phase::Running;
        if let Err(error) = state.take_entry(key, bytes, Some(written).filter(|_| !parked)) {
            return Answer::Known(error);
        }
        self.hurry(state);
        if parked { Answer::Known(JournalError::HandedOver) } else { Answer::Coming(answer) }
    }

    /// Nobody waits for this either.
    pub(super) fn forget(&self, key: StreamKey) {
        let mut state = self.lock();
        state.gaps.remove(&key);
        if state.phase != Phase::Closed {
            state.push(Item::Forget { key });
            if state.since.is_none() {
                state.since = Some(Instant::now());
                drop(state);
                self.wake.notify_one();
            }
        }
    }

    /// A [`Item::Flush`] or [`Item::Park`].
    pub(super) fn ask(&self, item: impl FnOnce(Waiter) -> Item) -> Answer {
        let (waiter, answer) = oneshot::channel();
        let mut state = self.lock();
        if state.phase != Phase::Running {
            return Answer::Known(JournalError::HandedOver);
        }
        state.push(item(waiter));
        self.hurry(state);
        Answer::Coming(answer)
    }

    fn hurry(&self, mut state: MutexGuard<'_, State>) {
        state.urgent = true;
        drop(state);
        self.wake.notify_one();
    }

    /// The writer holds so many bytes.
    pub(super) fn hold(&self, bytes: u64) {
        self.lock().held_bytes = bytes;
    }

    /// Waits for something to do, until `due` at most.
    pub(super) fn next(&self, due: Option<Instant>) -> Batch {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let lingered = state.since.map(|since| since + LINGER);
            let wake = lingered.into_iter().chain(due).min();
            if state.urgent || state.ended || wake.is_some_and(|wake| now >= wake) {
                return state.take();
            }
            state = match wake {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(wake) => {
                    let waited = self.wake.wait_timeout(state, wake.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The writer has given way to another process.
    pub(super) fn parked(&self) {
        self.lock().phase = Phase::Parked;
    }

    /// It is back.
    pub(super) fn resumed(&self) {
        self.lock().phase = Phase::Running;
    }

    /// There is no writer any more.
    pub(super) fn closed(&self) {
        let mut state = self.lock();
        state.phase = Phase::Closed;
        state.take();
    }

    /// Nobody will give more: the writer ends once it has written what there is.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.wake.notify_one();
    }

    /// Bytes that the disk does not surely have, and streams that miss entries.
    pub(super) fn waiting(&self) -> (u64, usize) {
        let state = self.lock();
        (state.bytes + state.held_bytes, state.gaps.len())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_entry(
        &mut self,
        key: StreamKey,
        bytes: Vec<u8>,
        written: Option<Waiter>,
    ) -> Result<(), JournalError> {
        if self.phase == Phase::Closed {
            return Err(JournalError::HandedOver);
        }
        if self.gaps.contains(&key) {
            return Err(JournalError::NotKept(key));
        }
        if let Some(error) = too_large(&bytes) {
            self.miss(key, "an entry is too large");
            return Err(error);
        }
        if let Some(error) = self.overloaded(bytes.len()) {
            self.miss(key, "too much waits for the disk");
            return Err(error);
        }
        self.push(Item::Append { key, bytes, written });
        Ok(())
    }

    fn miss(&mut self, key: StreamKey, why: &'static str) {
        self.gaps.insert(key);
        self.new_gaps.push((key, why));
    }

    fn overloaded(&self, len: usize) -> Option<JournalError> {
        let queued = self.bytes + self.held_bytes;
        // One record is always taken, however large.
        (queued > 0 && queued + (len + RECORD_OVERHEAD) as u64 > MAX_QUEUED_BYTES)
            .then_some(JournalError::Overloaded { queued })
    }

    fn push(&mut self, item: Item) {
        self.bytes += match &item {
            Item::Admit { bytes, .. } | Item::Append { bytes, .. } => (bytes.len() + RECORD_OVERHEAD) as u64,
            Item::Forget { .. } => RECORD_OVERHEAD as u64,
            Item::Flush { .. } | Item::Park { .. } => 0,
        };
        self.items.push(item);
    }

    fn take(&mut self) -> Batch {
        self.held_bytes += std::mem::take(&mut self.bytes);
        self.urgent = false;
        self.since = None;
        Batch {
            items: std::mem::take(&mut self.items),
            new_gaps: std::mem::take(&mut self.new_gaps),
            ended: self.ended,
        }
    }
}

fn too_large(bytes: &[u8]) -> Option<JournalError> {
    let bytes = bytes.len();
    (bytes > MAX_RECORD_BYTES).then_some(JournalError::TooLarge { bytes, most: MAX_RECORD_BYTES })
}

/// When somebody hears.
pub(super) enum Answer {
    Known(JournalError),
    Coming(oneshot::Receiver<Result<(), JournalError>>),
}

impl Answer {
    pub(super) async fn wait(self) -> Result<(), JournalError> {
        match self {
            Answer::Known(error) => Err(error),
            Answer::Coming(answer) => answer.await.unwrap_or(Err(JournalError::HandedOver)),
        }
    }
}
