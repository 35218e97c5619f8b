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

/// The server ends before the stream does; another one goes on with it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the server ends; the stream can be resumed from the next one")]
pub(crate) struct Cut;

/// What came next.
enum Read {
    Message(Message),
    End,
    Cut,
    Lost,
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

    /// All events to the end. An error cuts the answer off, so that its client knows that it is not whole.
    pub(crate) fn events(self) -> impl Stream<Item = Result<Message, Cut>> + Send {
        stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Read::Message(message) => Some((vec![Ok(message)], Some(reader))),
                Read::Cut => Some((vec![Err(Cut)], None)),
                Read::End => None,
                // Its maker is gone without a last word, which only a fault of ours brings about.
                Read::Lost => {
                    let error =
                        ApiError::internal("the answer's task failed; the server's log has the cause");
                    let data = [error.body().to_string().into(), DONE.into()];
                    Some((data.map(|data| Ok(Message { id: None, data })).to_vec(), None))
                }
            }
        })
        .flat_map(stream::iter)
    }

    /// The next event without its id; `None` at the end.
    pub(crate) async fn text(&mut self) -> Result<Option<Arc<str>>, Cut> {
        match self.next().await {
            Read::Message(message) => Ok(Some(message.data)),
            Read::End => Ok(None),
            Read::Cut | Read::Lost => Err(Cut),
        }
    }

    async fn next(&mut self) -> Read {
        loop {
            let next = self.streams.lock().read(self.id, self.number);
            match next {
                None => return Read::Lost,
                Some(Next::Cut) => return Read::Cut,
                Some(Next::End) => return Read::End,
                Some(Next::Event(number, data)) => {
                    let id = self.resumable.then(|| format!("{}-{number}", self.id));
                    return Read::Message(Message { id, data });
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
