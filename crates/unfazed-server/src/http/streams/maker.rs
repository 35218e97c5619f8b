//! The task that makes a stream and keeps it for those who come back.

use std::pin::pin;
use std::sync::Weak;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;

use super::super::random_id::RandomId;
use super::super::sse::DONE;
use super::log::Audience;
use super::registry::{State, Streams};

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

    /// Makes the stream of these texts, each one event, and then `[DONE]`; then keeps it. The texts are dropped as soon
    /// as nobody waits for them, which cancels what they are made of.
    pub(crate) async fn run(mut self, texts: impl Stream<Item = String>) {
        self.make(texts).await;
        loop {
            // How long is counted from the last reader's end, or from the stream's.
            unheard(&mut self.audience, |audience| audience.keep).await;
            if self.with(State::expire).unwrap_or(true) {
                return;
            }
        }
    }

    async fn make(&self, texts: impl Stream<Item = String>) {
        let done = stream::once(std::future::ready(DONE.to_owned()));
        let mut texts = pin!(texts.chain(done));
        let mut audience = self.audience.clone();
        loop {
            // Nobody can come back to what is lost.
            let keep = |audience: &Audience| if audience.lost { Duration::ZERO } else { audience.keep };
            let mut unheard = pin!(unheard(&mut audience, keep));
            loop {
                let text = tokio::select! {
                    text = texts.next() => text,
                    () = &mut unheard => break,
                };
                let Some(text) = text else {
                    self.with(State::end);
                    return;
                };
                if !self.with(|state, id| state.append(id, text.into())).unwrap_or(false) {
                    return;
                }
            }
            // False if a reader has come in the last moment.
            if self.with(State::abandon).unwrap_or(true) {
                return;
            }
        }
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
