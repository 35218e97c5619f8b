//! Who is told what is waited for.

/// Told of each read that somebody waits for, as long as it lasts: long ones are worth an event.
pub trait WaitObserver: Send + Sync {
    /// A wait begins. `what` is for people: `reading NAME`, and what is wrong with it if something is. Returns a number
    /// that stands for the wait.
    fn began(&self, what: String) -> u64;
    /// What is waited for is another thing now; the wait goes on.
    fn changed(&self, wait: u64, what: String);
    /// It is over.
    fn ended(&self, wait: u64);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl WaitObserver for Unobserved {
    fn began(&self, _what: String) -> u64 {
        0
    }

    fn changed(&self, _wait: u64, _what: String) {}

    fn ended(&self, _wait: u64) {}
}

/// A wait, until it is dropped.
#[must_use = "the wait is over when it is dropped"]
pub struct Wait<'o> {
    observer: &'o dyn WaitObserver,
    number: u64,
}

impl<'o> Wait<'o> {
    /// A wait begins; see [`WaitObserver::began`].
    pub fn new(observer: &'o dyn WaitObserver, what: String) -> Wait<'o> {
        Wait { observer, number: observer.began(what) }
    }

    pub(crate) fn changed(&self, what: String) {
        self.observer.changed(self.number, what);
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.observer.ended(self.number);
    }
}
