//! What all clients together have got and have open: the clock of the faults, and the account that the server's own
//! numbers are held against.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// By then a sequence whose client left, or whose last event came, is gone from the server's numbers.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(30);

/// What was received last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Events with tokens that clients have received.
    pub(super) tokens: u64,
    /// When the last one came.
    pub(super) last: Instant,
}

/// Shared by clients, faults and reports.
pub(super) struct Board {
    received: watch::Sender<Received>,
    account: Mutex<Account>,
    tally: Mutex<Tally>,
}

/// Requests by how they went.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    /// Ran to their end.
    pub(super) answered: u64,
    /// Tokens of those, as the server counted them.
    pub(super) tokens: u64,
    /// Their clients left in the middle.
    pub(super) left: u64,
    /// Connections of resumable streams that were cut and continued.
    pub(super) cuts: u64,
    /// Went through the OpenAI package.
    pub(super) openai: u64,
    /// Failed by the server by name.
    pub(super) failed_by_name: u64,
    /// Faults so far.
    pub(super) faults: u64,
    pub(super) losses: Vec<Loss>,
}

/// A promise that was broken.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Loss {
    /// Which request, or what else.
    pub(super) what: String,
    /// The difference.
    pub(super) how: String,
    /// Faults before it.
    pub(super) after_faults: u64,
}

/// Sequences that clients have open, and those that they had until lately.
#[derive(Default)]
struct Account {
    open: u64,
    /// The most that were open since it was asked last.
    most_open: u64,
    closed: VecDeque<(Instant, u64)>,
}

impl Board {
    pub(super) fn new() -> Board {
        Board {
            received: watch::Sender::new(Received { tokens: 0, last: Instant::now() }),
            account: Mutex::default(),
            tally: Mutex::default(),
        }
    }

    /// A client received tokens.
    pub(super) fn receive(&self) {
        self.received.send_modify(|received| {
            *received = Received { tokens: received.tokens + 1, last: Instant::now() };
        });
    }

    pub(super) fn received(&self) -> Received {
        *self.received.borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Received> {
        self.received.subscribe()
    }

    pub(super) fn open(&self, sequences: u64) {
        let account = &mut lock(&self.account);
        account.open += sequences;
        account.most_open = account.most_open.max(account.open);
    }

    /// The client has left or got the last event.
    pub(super) fn close(&self, sequences: u64) {
        lock(&self.account).close(sequences, Instant::now());
    }

    pub(super) fn open_sequences(&self) -> u64 {
        lock(&self.account).open
    }

    /// The most sequences that the server may know: those that were open at some time since this was asked last, and those
    /// that were closed within [`GONE_WITHIN`] before `since`.
    pub(super) fn may_know(&self, since: Instant) -> u64 {
        lock(&self.account).may_know(since)
    }

    pub(super) fn tally(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut lock(&self.tally));
    }

    /// A promise was broken.
    pub(super) fn lose(&self, what: &str, how: String) {
        self.tally(|tally| {
            let after_faults = tally.faults;
            tally.losses.push(Loss { what: what.to_owned(), how, after_faults });
        });
    }

    pub(super) fn tallied(&self) -> Tally {
        lock(&self.tally).clone()
    }
}

impl Account {
    fn close(&mut self, sequences: u64, now: Instant) {
        self.open = self.open.saturating_sub(sequences);
        self.closed.push_back((now, sequences));
    }

    fn may_know(&mut self, since: Instant) -> u64 {
        self.closed.retain(|(when, _)| *when + GONE_WITHIN > since);
        let most_open = std::mem::replace(&mut self.most_open, self.open);
        most_open + self.closed.iter().map(|(_, sequences)| sequences).sum::<u64>()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_count_while_they_are_open_and_some_time_after_and_then_no_more() {
        let mut account = Account { open: 5, most_open: 5, ..Account::default() };
        let left = Instant::now();
        account.close(2, left);
        assert_eq!(account.may_know(left), 5 + 2, "they were open since it was asked last");
        assert_eq!(account.may_know(left + GONE_WITHIN / 2), 3 + 2);
        assert_eq!(account.may_know(left + GONE_WITHIN), 3, "one more is one that was not cancelled");
    }
}
