//! All streams: who may read which, and the memory that they take together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderValue;

use super::super::auth::Caller;
use super::super::error::ApiError;
use super::super::random_id::RandomId;
use super::super::sse::DONE;
use super::log::{Log, Next, cost};
use super::maker::Maker;
use super::reader::Reader;
use super::resume::{Keep, position};

/// Most resumable streams at a time.
const MAX_KEPT: usize = 1024;
/// Memory that the unread events of any stream may take, however little is left.
const UNREAD_BYTES: usize = 256 << 10;

/// All streams.
pub(crate) struct Streams {
    state: Mutex<State>,
}

pub(super) struct State {
    logs: BTreeMap<RandomId, Log>,
    /// Memory that events take, and how much of it there is.
    bytes: usize,
    budget: usize,
}

/// A new stream: its maker's end and its first reader.
pub(crate) struct Opened {
    pub(crate) maker: Maker,
    pub(crate) reader: Reader,
}

/// How a client comes back to a stream.
pub(super) enum Resumed {
    Reading(Reader),
    /// It has got everything already.
    Delivered,
}

impl Streams {
    /// Streams whose events take at most `budget` bytes together.
    pub(crate) fn new(budget: usize) -> Streams {
        Streams { state: Mutex::new(State { logs: BTreeMap::new(), bytes: 0, budget }) }
    }

    /// A stream for a new answer, which may be resumed if `keep` says so.
    pub(crate) fn open(self: &Arc<Self>, id: RandomId, keep: Option<Keep>) -> Result<Opened, ApiError> {
        let mut state = self.lock();
        if keep.is_some() && !state.make_place() {
            let message =
                format!("{MAX_KEPT} streams are kept already; try again later, or without resuming");
            return Err(ApiError::no_room("too_many_streams", message));
        }
        drop(state);
        Ok(self.insert(id, keep, 0))
    }

    /// The stream of an answer that another process began; its reader goes on behind event `from`. `exact`: events that are
    /// not there yet will be those that its clients may have got already.
    pub(crate) fn restore(
        self: &Arc<Self>,
        id: RandomId,
        keep: Option<Keep>,
        from: u64,
        exact: bool,
    ) -> Opened {
        let opened = self.insert(id, keep, from);
        self.lock().change(id, |log| log.restore(exact));
        opened
    }

    fn insert(self: &Arc<Self>, id: RandomId, keep: Option<Keep>, from: u64) -> Opened {
        let (owner, time) = keep.map_or((Caller::default(), Duration::ZERO), |keep| (keep.owner, keep.time));
        let mut log = Log::new(owner, time);
        let (number, news, audience) = (log.enter(from), log.news(), log.audience());
        self.lock().logs.insert(id, log);
        let reader = Reader::new(Arc::clone(self), id, number, keep.is_some(), news);
        Opened { maker: Maker::new(Arc::downgrade(self), id, audience), reader }
    }

    /// How many events a stream has, and whether it has readers.
    pub(crate) fn told(&self, id: RandomId) -> Option<(u64, bool)> {
        self.lock().logs.get(&id).map(|log| (log.last(), log.has_readers()))
    }

    /// Continues a stream behind the event that the client got last. Whatever keeps somebody else from it is the same
    /// error as a stream that never was.
    pub(super) fn resume(
        self: &Arc<Self>,
        id: &str,
        caller: Caller,
        last_event: Option<&HeaderValue>,
    ) -> Result<Resumed, ApiError> {
        let unknown =
            || ApiError::not_found("there is no such stream: it never was, or is not kept any more");
        let id = RandomId::parse(id).ok_or_else(unknown)?;
        let mut state = self.lock();
        let log = state.logs.get_mut(&id);
        let log = log.filter(|log| log.resumable() && log.owner == caller).ok_or_else(unknown)?;
        if !log.is_kept() {
            return Err(ApiError::gone("the stream took more memory than there is for kept streams"));
        }
        let from = position(id, last_event, log.last_told())?;
        if from > log.last() && !log.is_exact() {
            return Err(ApiError::gone(
                "the server ended before the end of this stream was safe; ask again, the same seed gives the same answer",
            ));
        }
        if log.ended() && from == log.last() {
            return Ok(Resumed::Delivered);
        }
        let (number, news) = (log.enter(from), log.news());
        drop(state);
        Ok(Resumed::Reading(Reader::new(Arc::clone(self), id, number, true, news)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds an event. False if that ended the stream, for lack of memory and of a client that reads.
    pub(super) fn append(&mut self, id: RandomId, text: Arc<str>) -> bool {
        let size = cost(&text);
        self.make_room(size);
        let full = |state: &State| state.bytes.saturating_add(size) > state.budget;
        if full(self) {
            self.change(id, Log::lose);
        }
        let unread = self.logs.get(&id).map_or(0, Log::bytes);
        if full(self) && unread.saturating_add(size) > UNREAD_BYTES {
            let error = ApiError::unread(unread).body().to_string();
            self.change(id, |log| {
                log.skip();
                log.push(error.into());
                log.push(DONE.into());
                log.end();
            });
            return false;
        }
        self.change(id, |log| log.push(text));
        true
    }

    /// No event follows.
    pub(super) fn end(&mut self, id: RandomId) {
        self.change(id, Log::end);
    }

    /// This server ends before the stream does.
    pub(super) fn cut(&mut self, id: RandomId) {
        self.change(id, Log::cut);
    }

    /// Forgets a stream that nobody reads; false if somebody does. One that was lost stays, without its events, so that
    /// its client learns of it.
    pub(super) fn abandon(&mut self, id: RandomId) -> bool {
        let Some(log) = self.logs.get(&id) else { return true };
        if log.has_readers() {
            return false;
        }
        if log.is_kept() || !log.resumable() {
            self.remove(id);
        } else {
            self.change(id, |log| {
                log.skip();
                log.end();
            });
        }
        true
    }

    /// Forgets a stream that has ended, unless somebody reads it.
    pub(super) fn expire(&mut self, id: RandomId) -> bool {
        let read = self.logs.get(&id).is_some_and(Log::has_readers);
        if !read {
            self.remove(id);
        }
        !read
    }

    pub(super) fn remove(&mut self, id: RandomId) {
        if let Some(log) = self.logs.remove(&id) {
            self.bytes = self.bytes.saturating_sub(log.bytes());
        }
    }

    /// The reader's next event; `None` if the stream is not there any more.
    pub(super) fn read(&mut self, id: RandomId, reader: u64) -> Option<Next> {
        self.change(id, |log| log.read(reader))
    }

    pub(super) fn leave(&mut self, id: RandomId, reader: u64) {
        self.change(id, |log| log.leave(reader));
    }

    /// Whether one more stream may be kept. Where there are most already, the one goes that nobody makes or reads and
    /// that has been so for longest.
    fn make_place(&mut self) -> bool {
        if self.logs.values().filter(|log| log.resumable()).count() < MAX_KEPT {
            return true;
        }
        let resumable = self.logs.iter().filter(|(_, log)| log.resumable());
        let quiet = resumable.filter_map(|(id, log)| Some((log.quiet_since()?, *id)));
        let Some((_, id)) = quiet.min() else { return false };
        self.remove(id);
        true
    }

    /// Loses streams that nobody makes or reads, those first that have been so for longest, until there is room.
    fn make_room(&mut self, size: usize) {
        while self.bytes.saturating_add(size) > self.budget {
            let holding = self.logs.iter().filter(|(_, log)| log.bytes() > 0);
            let quiet = holding.filter_map(|(id, log)| Some((log.quiet_since()?, *id)));
            let Some((_, id)) = quiet.min() else { return };
            self.change(id, Log::lose);
        }
    }

    /// Changes a stream and counts its memory.
    fn change<T>(&mut self, id: RandomId, change: impl FnOnce(&mut Log) -> T) -> Option<T> {
        let log = self.logs.get_mut(&id)?;
        let before = log.bytes();
        let result = change(log);
        self.bytes = self.bytes.saturating_sub(before).saturating_add(log.bytes());
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::super::maker::Step;
    use super::*;
    use crate::journal::Tapes;

    fn keep() -> Option<Keep> {
        Some(Keep { time: Duration::from_secs(60), owner: Caller::default() })
    }

    /// Makes a stream of these texts.
    fn run(
        maker: Maker,
        texts: impl futures::Stream<Item = String> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let (tape, _) = Arc::new(Tapes::default()).begin(0, Vec::new(), false);
        let steps = texts.map(|text| Step { texts: vec![text], ..Step::default() });
        tokio::spawn(maker.run(tape, Arc::default(), steps))
    }

    fn open(streams: &Arc<Streams>, keep: Option<Keep>) -> Result<Opened, ApiError> {
        streams.open(RandomId::new()?, keep)
    }

    fn id(opened: &Opened) -> RandomId {
        opened.reader.stream_id().unwrap()
    }

    fn comes_back(streams: &Arc<Streams>, id: RandomId) -> u16 {
        let resumed = streams.resume(&id.to_string(), Caller::default(), None);
        resumed.map_or_else(|error| error.status.as_u16(), |_| 200)
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_loses_its_answer_only_once_memory_is_short_and_learns_why() {
        let streams = Arc::new(Streams::new(2 * UNREAD_BYTES));
        let opened = open(&streams, None).unwrap();
        let text = "x".repeat(1000);
        let makes = run(opened.maker, futures::stream::repeat(text.clone()));
        // It never awaits the maker's end before its own: the maker ends for want of memory alone.
        while !streams.lock().logs.values().all(Log::ended) {
            tokio::task::yield_now().await;
        }
        let events: Vec<_> =
            opened.reader.events().map(|message| message.unwrap().data.to_string()).collect().await;
        assert_eq!(events.len(), 2, "what was not read is gone");
        assert!(events[0].contains("client_too_slow") && events[1] == DONE, "{events:?}");
        makes.await.unwrap();
        let state = streams.lock();
        assert_eq!((state.logs.len(), state.bytes), (0, 0));
    }

    #[tokio::test]
    async fn a_client_that_reads_is_served_though_others_fill_the_memory() {
        let streams = Arc::new(Streams::new(10_000));
        let full = open(&streams, keep()).unwrap();
        streams.lock().append(id(&full), "x".repeat(9_000).into());
        let texts = futures::stream::iter(0..1000).then(|n| async move {
            tokio::task::yield_now().await;
            format!("{n:0>1000}")
        });
        let opened = open(&streams, None).unwrap();
        run(opened.maker, texts);
        assert_eq!(opened.reader.events().count().await, 1001);
        assert_eq!(comes_back(&streams, id(&full)), 200, "only what has ended makes room for others");
    }

    #[test]
    fn ended_streams_make_room_oldest_first_and_then_the_one_that_grows_is_lost() {
        let streams = Arc::new(Streams::new(3_500));
        let opened: Vec<_> = (0..3).map(|_| open(&streams, keep()).unwrap()).collect();
        let ids: Vec<_> = opened.iter().map(id).collect();
        let (_makers, mut readers): (Vec<_>, Vec<_>) =
            opened.into_iter().map(|o| (o.maker, o.reader)).unzip();
        let append = |at: usize| streams.lock().append(ids[at], "x".repeat(1000).into());
        let back = || ids.iter().map(|id| comes_back(&streams, *id)).collect::<Vec<_>>();
        for at in [0, 1] {
            append(at);
            streams.lock().end(ids[at]);
        }
        // The second one is left first: it is the older one.
        drop(readers.remove(1));
        drop(readers.remove(0));
        append(2);
        assert_eq!(back(), [200, 200, 200]);
        // Looking made the second one the older one again, as it is looked at later.
        append(2);
        assert_eq!(back(), [410, 200, 200]);
        append(2);
        assert_eq!(back(), [410, 410, 200]);
        append(2);
        assert_eq!(back(), [410, 410, 410], "it goes on for its reader alone");
        assert_eq!(streams.lock().bytes, 4 * cost(&"x".repeat(1000)));
    }

    #[test]
    fn so_many_streams_are_kept_and_no_more_and_others_are_opened_all_the_same() {
        let streams = Arc::new(Streams::new(1000));
        let mut kept: Vec<_> = (0..MAX_KEPT).map(|_| open(&streams, keep()).unwrap()).collect();
        let error = open(&streams, keep()).map(drop).unwrap_err();
        assert_eq!(error.status.as_u16(), 429);
        assert!(open(&streams, None).is_ok());
        kept.pop();
        assert!(open(&streams, keep()).is_ok());
    }

    #[test]
    fn a_stream_that_ended_gives_its_place_up_the_one_first_that_was_left_first() {
        let streams = Arc::new(Streams::new(1000));
        let kept: Vec<_> = (0..MAX_KEPT).map(|_| open(&streams, keep()).unwrap()).collect();
        let ids: Vec<_> = kept.iter().map(id).collect();
        let (_makers, mut readers): (Vec<_>, Vec<_>) = kept.into_iter().map(|o| (o.maker, o.reader)).unzip();
        let back = || ids[..4].iter().map(|id| comes_back(&streams, *id)).collect::<Vec<_>>();
        // The first one is still read, the second one is still made.
        for at in [0, 2, 3] {
            streams.lock().end(ids[at]);
        }
        for at in [3, 2, 1] {
            drop(readers.remove(at));
        }
        let mut later = vec![open(&streams, keep()).unwrap()];
        assert_eq!(back()[..2], [200, 200]);
        assert!(!streams.lock().logs.contains_key(&ids[3]), "it was left first");
        later.push(open(&streams, keep()).unwrap());
        assert_eq!(back(), [200, 200, 404, 404]);
        let error = open(&streams, keep()).map(drop).unwrap_err();
        assert_eq!(error.status.as_u16(), 429, "all others are made or read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_kept_for_its_time_after_its_last_reader_and_then_forgotten() {
        let streams = Arc::new(Streams::new(1000));
        let opened = open(&streams, keep()).unwrap();
        let (id, maker) = (id(&opened), run(opened.maker, futures::stream::pending()));
        let seconds = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        seconds(100).await;
        drop(opened.reader);
        seconds(59).await;
        let again = streams.resume(&id.to_string(), Caller::default(), None);
        seconds(100).await;
        drop(again);
        seconds(59).await;
        assert!(!maker.is_finished());
        // One that comes and leaves between two looks of the maker counts as well.
        drop(streams.resume(&id.to_string(), Caller::default(), None));
        seconds(59).await;
        assert!(!maker.is_finished());
        seconds(2).await;
        assert!(maker.is_finished(), "what it was made of is dropped");
        assert_eq!(comes_back(&streams, id), 404);
    }
}
