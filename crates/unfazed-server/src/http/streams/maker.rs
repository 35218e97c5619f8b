//! The task that makes a stream and keeps it for those who come back.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;

use super::super::random_id::RandomId;
use super::super::sse::DONE;
use super::log::Audience;
use super::registry::{State, Streams};
use crate::handover::{Followed, Pass, Passage, Relayed, Successor};
use crate::journal::Tape;

/// The texts of what was told at once, each one event.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// What was told, for the tape.
    pub(crate) entry: Option<Vec<u8>>,
    pub(crate) texts: Vec<String>,
    /// The answer has several choices.
    pub(crate) several: bool,
    /// The server ends before the answer does.
    pub(crate) interrupted: bool,
    /// It is the last one, behind all that is made.
    pub(crate) done: bool,
}

/// How making a stream ended.
enum Made {
    /// It is whole, and kept.
    Ended,
    /// Nobody waits for it.
    Left,
    /// The server ends first.
    Cut,
    /// Another process makes it.
    Moved(Arc<Successor>),
}

/// How long a stream is made that nobody reads: nobody can come back to what is lost.
fn needed(audience: &Audience) -> Duration {
    if audience.lost { Duration::ZERO } else { audience.keep }
}

/// A stream's maker. Dropping it takes the stream away.
pub(crate) struct Maker {
    /// Streams end with their server: this task does not keep them.
    streams: Weak<Streams>,
    id: RandomId,
    audience: watch::Receiver<Audience>,
}

impl Maker {
    pub(super) fn new(streams: Weak<Streams>, id: RandomId, audience: watch::Receiver<Audience>) -> Maker {
        Maker { streams, id, audience }
    }

    /// Makes the stream of these steps and then `[DONE]`, and keeps it. The steps are dropped as soon as nobody waits for
    /// them, which cancels what they are made of, or as soon as another process makes them.
    pub(crate) async fn run(mut self, tape: Tape, passage: Arc<Passage>, steps: impl Stream<Item = Step>) {
        match self.make(&tape, &passage, steps).await {
            Made::Ended => {}
            Made::Left => return self.forget(tape),
            // Its readers see that it is not whole.
            Made::Cut => return unheard(&mut self.audience, |_| Duration::ZERO).await,
            Made::Moved(successor) => {
                let followed = successor.follow(self.id.number());
                return self.relay(followed).await;
            }
        }
        // How long is counted from the last reader's end, or from the stream's.
        tokio::select! {
            () = self.expired() => self.forget(tape),
            // The other process keeps it. Whoever reads here does so to the end.
            _ = passage.moved() => unheard(&mut self.audience, |_| Duration::ZERO).await,
        }
    }

    /// Nobody will ask for it any more, unless it is the server that is gone: then somebody may ask the next one.
    fn forget(&self, tape: Tape) {
        if self.streams.upgrade().is_some() {
            tape.forget();
        }
    }

    async fn expired(&self) {
        let mut audience = self.audience.clone();
        loop {
            unheard(&mut audience, |audience| audience.keep).await;
            if self.with(State::expire).unwrap_or(true) {
                return;
            }
        }
    }

    async fn make(&self, tape: &Tape, passage: &Passage, steps: impl Stream<Item = Step>) -> Made {
        let done = stream::once(std::future::ready(Step { done: true, ..Step::default() }));
        let mut steps = pin!(steps.chain(done));
        let mut audience = self.audience.clone();
        loop {
            let mut unheard = pin!(unheard(&mut audience, needed));
            loop {
                let step = tokio::select! {
                    step = steps.next() => step,
                    () = &mut unheard => break,
                    successor = passage.moved() => return Made::Moved(successor),
                };
                let Some(step) = step else { return Made::Ended };
                match passage.enter().await {
                    // What was told last is told again there.
                    Pass::There(successor) => return Made::Moved(successor),
                    Pass::Here(_here) => {
                        if let Some(made) = self.take(tape, step).await {
                            return made;
                        }
                    }
                }
            }
            // False if a reader has come in the last moment.
            if self.with(State::abandon).unwrap_or(true) {
                return Made::Left;
            }
        }
    }

    /// Takes the texts of a step into the stream. What that is the end of, if it is one.
    async fn take(&self, tape: &Tape, step: Step) -> Option<Made> {
        if step.interrupted && tape.is_stored() {
            self.with(State::cut);
            return Some(Made::Cut);
        }
        if let Some(entry) = step.entry {
            // The order among several choices is chance: it must be known before anybody sees it.
            tape.record(entry, step.several).await;
        }
        let taken = self.take_texts(step.texts.into_iter().chain(step.done.then(|| DONE.to_owned())));
        if step.done {
            self.with(State::end);
        }
        // One that ends for want of memory says so in its last event.
        (step.done || !taken).then_some(Made::Ended)
    }

    /// False if that ended the stream.
    pub(crate) fn take_texts(&self, texts: impl IntoIterator<Item = String>) -> bool {
        let append = |text: String| self.with(|state, id| state.append(id, text.into())).unwrap_or(false);
        texts.into_iter().all(append)
    }

    /// Takes what another process makes, for those who read it here.
    pub(crate) async fn relay(self, mut followed: Followed) {
        let mut audience = self.audience.clone();
        let mut unheard = pin!(unheard(&mut audience, |_| Duration::ZERO));
        loop {
            let told = tokio::select! {
                told = followed.next() => told,
                () = &mut unheard => return,
            };
            let goes_on = match told {
                Some(Relayed::Text(text)) => self.take_texts([text]),
                Some(Relayed::End) => {
                    self.with(State::end);
                    false
                }
                // The other process is gone: clients of streams that can be resumed come back to the next one.
                Some(Relayed::Whole(_)) | None => {
                    self.with(State::cut);
                    false
                }
            };
            if !goes_on {
                break;
            }
        }
        unheard.await;
    }

    /// `None` once the server has ended.
    fn with<T>(&self, act: impl FnOnce(&mut State, RandomId) -> T) -> Option<T> {
        let streams = self.streams.upgrade()?;
        let mut state = streams.lock();
        Some(act(&mut state, self.id))
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.with(State::remove);
    }
}

/// Returns once the stream has had no reader for as long as `keep` says.
async fn unheard(audience: &mut watch::Receiver<Audience>, keep: fn(&Audience) -> Duration) {
    loop {
        // An error is the stream's end.
        let Ok((time, visits)) =
            audience.wait_for(|audience| audience.readers == 0).await.map(|now| (keep(&now), now.visits))
        else {
            return;
        };
        let changed = audience.wait_for(|audience| audience.visits != visits || keep(audience) != time);
        match tokio::time::timeout(time, changed).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
