//! One stream's events and its readers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::super::auth::Caller;

/// Memory that an event takes beside its text.
const EVENT_BYTES: usize = 64;

/// What a reader gets.
pub(super) enum Next {
    /// Its server ends before it does: whoever comes back to the next one gets the rest.
    Cut,
    /// An event by its number.
    Event(u64, Arc<str>),
    /// There is none yet.
    Wait,
    /// There will be none.
    End,
}

/// Who is there for a stream: what its maker looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Audience {
    pub(super) readers: usize,
    /// Readers that ever came: one may come and leave between two looks.
    pub(super) visits: u64,
    /// How long it is kept without a reader.
    pub(super) keep: Duration,
    /// It can be read to its end, and not be resumed.
    pub(super) lost: bool,
}

/// Events are numbered from 1.
pub(super) struct Log {
    pub(super) owner: Caller,
    /// Events that are held, the first one's number, and the memory that they take.
    events: VecDeque<Arc<str>>,
    first: u64,
    bytes: usize,
    /// Readers with the numbers of their next events.
    readers: BTreeMap<u64, u64>,
    next_reader: u64,
    /// No event follows.
    ended: bool,
    /// Another server goes on with it.
    cut: bool,
    /// Another process began it: its clients may know of events that are not made again yet, and whether those will be the
    /// same.
    restored: Option<bool>,
    /// Since when nobody reads and nothing is made.
    quiet_since: Instant,
    audience: watch::Sender<Audience>,
    news: watch::Sender<()>,
}

/// Memory that an event takes.
pub(super) fn cost(text: &str) -> usize {
    text.len().saturating_add(EVENT_BYTES)
}

impl Log {
    /// An empty one. One that is kept for no time cannot be resumed.
    pub(super) fn new(owner: Caller, keep: Duration) -> Log {
        Log {
            owner,
            events: VecDeque::new(),
            first: 1,
            bytes: 0,
            readers: BTreeMap::new(),
            next_reader: 0,
            ended: false,
            cut: false,
            restored: None,
            quiet_since: Instant::now(),
            audience: watch::Sender::new(Audience { readers: 0, visits: 0, keep, lost: false }),
            news: watch::Sender::new(()),
        }
    }

    pub(super) fn audience(&self) -> watch::Receiver<Audience> {
        self.audience.subscribe()
    }

    /// Tells of every new event.
    pub(super) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// Whether it was opened to be resumed.
    pub(super) fn resumable(&self) -> bool {
        !self.audience.borrow().keep.is_zero()
    }

    /// Whether all events are held, so that it can be resumed.
    pub(super) fn is_kept(&self) -> bool {
        self.resumable() && !self.audience.borrow().lost
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Since when it has neither reader nor maker; `None` while it has one.
    pub(super) fn quiet_since(&self) -> Option<Instant> {
        (self.ended && !self.has_readers()).then_some(self.quiet_since)
    }

    /// The newest event's number; 0 if there is none.
    pub(super) fn last(&self) -> u64 {
        self.first.saturating_add(self.events.len() as u64).saturating_sub(1)
    }

    /// Adds an event.
    pub(super) fn push(&mut self, text: Arc<str>) {
        self.bytes = self.bytes.saturating_add(cost(&text));
        self.events.push_back(text);
        self.trim();
        self.news.send_replace(());
    }

    /// No event follows.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.quiet_since = Instant::now();
        self.news.send_replace(());
    }

    /// No event follows from this server.
    pub(super) fn cut(&mut self) {
        self.cut = true;
        self.end();
    }

    /// Another process began it; `exact`: events that are made again are the same.
    pub(super) fn restore(&mut self, exact: bool) {
        self.restored = Some(exact);
    }

    /// Whether a client that has more events than there are will find the rest behind them.
    pub(super) fn is_exact(&self) -> bool {
        self.restored == Some(true) && !self.ended
    }

    /// The newest event that a client may say it has.
    pub(super) fn last_told(&self) -> u64 {
        if self.restored.is_some() { u64::MAX - 1 } else { self.last() }
    }

    /// Stops holding what its readers have read.
    pub(super) fn lose(&mut self) {
        self.audience.send_if_modified(|audience| !std::mem::replace(&mut audience.lost, true));
        self.trim();
    }

    /// Throws away what its readers have not read: they go on with the next event.
    pub(super) fn skip(&mut self) {
        self.first = self.last().saturating_add(1);
        self.events.clear();
        self.bytes = 0;
    }

    /// Adds a reader of everything behind event `from`; returns its number.
    pub(super) fn enter(&mut self, from: u64) -> u64 {
        let reader = self.next_reader;
        self.next_reader += 1;
        self.readers.insert(reader, from.saturating_add(1));
        self.count();
        reader
    }

    pub(super) fn leave(&mut self, reader: u64) {
        self.readers.remove(&reader);
        self.quiet_since = Instant::now();
        self.trim();
        self.count();
    }

    /// The reader's next event.
    pub(super) fn read(&mut self, reader: u64) -> Next {
        let Some(number) = self.readers.get_mut(&reader) else { return Next::End };
        *number = (*number).max(self.first);
        let current = *number;
        let at = usize::try_from(current.saturating_sub(self.first)).unwrap_or(usize::MAX);
        match self.events.get(at).cloned() {
            Some(text) => {
                *number = current.saturating_add(1);
                self.trim();
                Next::Event(current, text)
            }
            None if self.cut => Next::Cut,
            None if self.ended => Next::End,
            None => Next::Wait,
        }
    }

    /// Drops what nobody will read.
    fn trim(&mut self) {
        if self.is_kept() {
            return;
        }
        let needed = self.readers.values().copied().min().unwrap_or(u64::MAX);
        while self.first < needed
            && let Some(text) = self.events.pop_front()
        {
            self.first += 1;
            self.bytes = self.bytes.saturating_sub(cost(&text));
        }
    }

    fn count(&self) {
        let readers = self.readers.len();
        let visits = self.next_reader;
        self.audience.send_modify(|audience| (audience.readers, audience.visits) = (readers, visits));
    }
}
