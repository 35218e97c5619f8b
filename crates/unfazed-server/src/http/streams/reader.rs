//! A response's way through a stream.

use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;

use super::super::error::ApiError;
use super::super::random_id::RandomId;
use super::super::sse::{DONE, Message};
use super::log::Next;
use super::registry::Streams;

/// A reader. Dropping it leaves the stream, which ends it unless it is kept or others read it.
pub(crate) struct Reader {
    streams: Arc<Streams>,
    id: RandomId,
    number: u64,
    /// Events carry ids.
    resumable: bool,
    news: watch::Receiver<()>,
}

impl Reader {
    pub(super) fn new(
        streams: Arc<Streams>,
        id: RandomId,
        number: u64,
        resumable: bool,
        news: watch::Receiver<()>,
    ) -> Reader {
        Reader { streams, id, number, resumable, news }
    }

    /// The id by which the stream can be resumed, if it can.
    pub(crate) fn stream_id(&self) -> Option<RandomId> {
        self.resumable.then_some(self.id)
    }

    /// All events to the end.
    pub(crate) fn events(self) -> impl Stream<Item = Message> + Send {
        stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(message) => Some((vec![message?], Some(reader))),
                // Its maker is gone without a last word, which only a fault of ours brings about.
                Err(error) => {
                    let data = [error.body().to_string().into(), DONE.into()];
                    Some((data.map(|data| Message { id: None, data }).to_vec(), None))
                }
            }
        })
        .flat_map(stream::iter)
    }

    async fn next(&mut self) -> Result<Option<Message>, ApiError> {
        loop {
            let next = self.streams.lock().read(self.id, self.number);
            match next {
                None => {
                    return Err(ApiError::internal(
                        "the answer's task failed; the server's log has the cause",
                    ));
                }
                Some(Next::End) => return Ok(None),
                Some(Next::Event(number, data)) => {
                    let id = self.resumable.then(|| format!("{}-{number}", self.id));
                    return Ok(Some(Message { id, data }));
                }
                // An error is the stream's end: the next look says so.
                Some(Next::Wait) => drop(self.news.changed().await),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.streams.lock().leave(self.id, self.number);
    }
}
