//! What the writer's thread does with what it is given: one write for all that waits, one sync for all that wait for it. It
//! keeps what is not synced, so that after an error it is written again, elsewhere.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::error::{Dropped, JournalError, JournalEvent};
use super::format::{Kind, Record, StreamKey, chain};
use super::index::Stream;
use super::log::Log;
use super::replay::{Kept, replay};

/// Longest time that something written is not synced: what a loss of power can cost.
pub(super) const SYNC_AFTER: Duration = Duration::from_secs(1);
/// Sync earlier if so much was written.
const SYNC_BYTES: u64 = 8 << 20;
/// After an error, tries again so often.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Looks after age and size so often, and when a segment is full.
pub(super) const UPKEEP_AFTER: Duration = Duration::from_secs(60);

/// Somebody who waits for something to be on the disk, or in the system's hands.
pub(super) type Waiter = oneshot::Sender<Result<(), JournalError>>;

/// Where [`JournalEvent`]s go.
pub(crate) type JournalEvents = Arc<dyn Fn(JournalEvent) + Send + Sync>;

/// What the thread is given.
pub(super) enum Item {
    Admit {
        key: StreamKey,
        bytes: Vec<u8>,
        synced: Waiter,
    },
    Append {
        key: StreamKey,
        bytes: Vec<u8>,
        written: Option<Waiter>,
    },
    Forget {
        key: StreamKey,
    },
    Flush {
        synced: Waiter,
    },
    /// As `Flush`, and the writer ends.
    Park {
        parked: Waiter,
    },
}

/// A moment, by two clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// Milliseconds since 1970; may jump.
    pub(super) wall_ms: u64,
    /// Since some moment; only grows.
    pub(super) since: Duration,
}

struct Broken {
    reason: String,
    retry: Duration,
}

/// The writer.
pub(super) struct Writer {
    pub(super) log: Log,
    events: JournalEvents,
    /// To be written.
    pending: Vec<Record<Vec<u8>>>,
    /// Written, not synced.
    unsynced: Vec<Record<Vec<u8>>>,
    /// Bytes of both.
    held_bytes: u64,
    admissions: Vec<(StreamKey, Waiter)>,
    written: Vec<Waiter>,
    flushes: Vec<Waiter>,
    park: Option<Waiter>,
    /// What those who wait will hear.
    answers: Vec<(Waiter, Result<(), JournalError>)>,
    broken: Option<Broken>,
    stuck: Option<String>,
    /// Streams that lost records since the start.
    gaps: u64,
    sync_due: Option<Duration>,
    upkeep_due: Duration,
    /// The segment that was written at the last upkeep.
    kept_up: Option<u64>,
}

impl Writer {
    /// One that forgets some streams first.
    pub(super) fn new(log: Log, forget: Vec<StreamKey>, events: JournalEvents, now: Moment) -> Writer {
        let mut writer = Writer {
            log,
            events,
            pending: Vec::new(),
            unsynced: Vec::new(),
            held_bytes: 0,
            admissions: Vec::new(),
            written: Vec::new(),
            flushes: Vec::new(),
            park: None,
            answers: Vec::new(),
            broken: None,
            stuck: None,
            gaps: 0,
            sync_due: None,
            upkeep_due: now.since,
            kept_up: None,
        };
        for key in forget {
            writer.say_forgotten(key, now);
        }
        writer
    }

    /// Takes what has come, and does what cannot wait. Then [`Writer::answer`] tells, and [`Writer::keep_up`] does what can.
    pub(super) fn step(&mut self, items: impl IntoIterator<Item = Item>, now: Moment) {
        for item in items {
            self.take(item, now);
        }
        if self.broken.as_ref().is_some_and(|broken| now.since < broken.retry) {
            self.refuse_all();
            return;
        }
        let result = if self.broken.is_some() { self.mend(now) } else { self.work(now) };
        if let Err(error) = result {
            return self.fail(&error, now);
        }
        // Not before a sync that was due: where that fails the system may have lost what it was given.
        self.answers.extend(self.written.drain(..).map(|written| (written, Ok(()))));
        if self.broken.take().is_some() {
            self.tell(JournalEvent::Mended);
        }
    }

    /// Tells those who wait for what was done, or failed.
    pub(super) fn answer(&mut self) {
        for (waiter, result) in self.answers.drain(..) {
            // Somebody who has gone hears nothing.
            let _ = waiter.send(result);
        }
    }

    /// Looks after age and size, if it is time. Nobody waits for it.
    pub(super) fn keep_up(&mut self, now: Moment) {
        let new_segment = self.log.current().is_some() && self.log.current() != self.kept_up;
        if self.broken.is_none()
            && (new_segment || now.since >= self.upkeep_due)
            && let Err(error) = self.upkeep(now)
        {
            self.fail(&error, now);
        }
    }

    /// When it has something to do if nothing comes.
    pub(super) fn due(&self) -> Option<Duration> {
        if let Some(broken) = &self.broken {
            return Some(broken.retry);
        }
        let upkeep = (!self.log.index.segments.is_empty()).then_some(self.upkeep_due);
        self.sync_due.into_iter().chain(upkeep).min()
    }

    /// Bytes of records that the disk does not surely have.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Why nothing can be written now.
    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_ref().map(|broken| broken.reason.as_str())
    }

    /// Streams that lost records since the start.
    pub(super) fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Tells its owner.
    pub(super) fn tell(&self, event: JournalEvent) {
        (self.events)(event);
    }

    /// Why a segment that is not needed is still there.
    pub(super) fn stuck(&self) -> Option<&str> {
        self.stuck.as_deref()
    }

    /// Who is to be told once the writer has ended: everything is on the disk.
    pub(super) fn take_parking(&mut self) -> Option<Waiter> {
        self.park.take()
    }

    fn take(&mut self, item: Item, now: Moment) {
        match item {
            Item::Admit { key, bytes, synced } => self.admit(key, bytes, synced, now),
            Item::Append { key, bytes, written } => match self.append(key, bytes, now) {
                Ok(()) => self.written.extend(written),
                Err(error) => self.answers.extend(written.map(|written| (written, Err(error)))),
            },
            Item::Forget { key } => {
                if self.log.index.forget(key) {
                    if self.broken.is_some() {
                        self.let_go(key);
                    }
                    self.say_forgotten(key, now);
                }
            }
            Item::Flush { synced } => self.flushes.push(synced),
            Item::Park { parked } => self.park = Some(parked),
        }
    }

    fn admit(&mut self, key: StreamKey, bytes: Vec<u8>, synced: Waiter, now: Moment) {
        if self.log.index.knows(key) {
            return self.answers.push((synced, Err(JournalError::Known(key))));
        }
        if let Some(broken) = self.broken.as_ref().filter(|broken| now.since < broken.retry) {
            return self.answers.push((synced, Err(JournalError::Broken { reason: broken.reason.clone() })));
        }
        self.log.index.streams.insert(key, Stream::admitted(&bytes, now.wall_ms));
        self.hold(Kind::Admission, key, (0, 0), bytes, now);
        self.admissions.push((key, synced));
    }

    fn append(&mut self, key: StreamKey, bytes: Vec<u8>, now: Moment) -> Result<(), JournalError> {
        let stream = self.log.index.streams.get_mut(&key).filter(|stream| !stream.gap);
        let stream = stream.ok_or(JournalError::NotKept(key))?;
        let (ordinal, follows) = (stream.next, stream.chain);
        let Some(next) = ordinal.checked_add(1) else {
            stream.gap = true;
            self.gaps += 1;
            return Err(JournalError::NotKept(key));
        };
        stream.next = next;
        stream.chain = chain(follows, &bytes);
        stream.last_ms = stream.last_ms.max(now.wall_ms);
        self.hold(Kind::Entry, key, (ordinal, follows), bytes, now);
        Ok(())
    }

    fn say_forgotten(&mut self, key: StreamKey, now: Moment) {
        self.hold(Kind::Forgotten, key, (0, 0), Vec::new(), now);
    }

    fn hold(
        &mut self,
        kind: Kind,
        key: StreamKey,
        (ordinal, follows): (u32, u64),
        bytes: Vec<u8>,
        now: Moment,
    ) {
        let epoch = self.log.epoch;
        let record = Record { kind, epoch, key, ordinal, follows, time_ms: now.wall_ms, bytes };
        self.held_bytes += record.size();
        self.pending.push(record);
    }

    /// Records of a stream need not be written.
    fn let_go(&mut self, key: StreamKey) {
        let held_bytes = &mut self.held_bytes;
        self.pending.retain(|record| {
            let goes = record.key == key;
            *held_bytes -= if goes { record.size() } else { 0 };
            !goes
        });
    }

    fn work(&mut self, now: Moment) -> io::Result<()> {
        self.write(now)?;
        let asked = !self.admissions.is_empty() || !self.flushes.is_empty() || self.park.is_some();
        let due = self.sync_due.is_some_and(|due| now.since >= due);
        if asked || due || self.held_bytes >= SYNC_BYTES {
            self.sync()?;
        }
        Ok(())
    }

    fn write(&mut self, now: Moment) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.log.write(&self.pending, now.wall_ms)?;
        self.unsynced.append(&mut self.pending);
        self.sync_due.get_or_insert(now.since + SYNC_AFTER);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.log.sync()?;
        self.unsynced.clear();
        self.held_bytes = self.pending.iter().map(Record::size).sum();
        self.sync_due = None;
        let admissions = self.admissions.drain(..).map(|(_, synced)| synced);
        self.answers.extend(admissions.chain(self.flushes.drain(..)).map(|synced| (synced, Ok(()))));
        Ok(())
    }

    /// Drops what is too old or too much, and gives its space back.
    fn upkeep(&mut self, now: Moment) -> io::Result<()> {
        self.upkeep_due = now.since + UPKEEP_AFTER;
        let old = self.log.index.older_than(self.log.limits.oldest_ms(now.wall_ms));
        self.drop_streams(old, Dropped::Age, now);
        let over = self.log.index.over(self.log.limits.live());
        self.drop_streams(over, Dropped::Size, now);
        self.write(now)?;
        self.sync()?;
        let tidied = self.log.tidy(now.wall_ms)?;
        for segment in tidied.damaged {
            let message = "what is in it cannot be read as it was written".to_owned();
            self.tell(JournalEvent::Damaged { segment: self.log.name(segment), message });
        }
        self.stuck = tidied.stuck.map(|error| {
            format!("what is needed of a segment cannot be copied, or it cannot be deleted: {error}")
        });
        self.kept_up = self.log.current();
        Ok(())
    }

    fn drop_streams(&mut self, keys: Vec<StreamKey>, why: Dropped, now: Moment) {
        for key in &keys {
            self.log.index.forget(*key);
            self.say_forgotten(*key, now);
        }
        if !keys.is_empty() {
            self.tell(JournalEvent::Dropped { keys, why });
        }
    }

    /// Nothing can be written: those who wait hear so, and the rest is kept to be written again.
    fn fail(&mut self, error: &io::Error, now: Moment) {
        let reason = format!("{}: {error}", self.log.folder.dir().display());
        self.log.abandon();
        self.sync_due = None;
        self.unsynced.append(&mut self.pending);
        std::mem::swap(&mut self.unsynced, &mut self.pending);
        let first = self.broken.is_none();
        self.broken = Some(Broken { reason: reason.clone(), retry: now.since + RETRY_AFTER });
        // An admission that nobody counts on must not come back, should its record be there.
        for (key, synced) in std::mem::take(&mut self.admissions) {
            self.log.index.forget(key);
            self.let_go(key);
            self.say_forgotten(key, now);
            self.answers.push((synced, Err(JournalError::Broken { reason: reason.clone() })));
        }
        self.refuse_all();
        if first {
            self.tell(JournalEvent::Broken { message: reason });
        }
    }

    fn refuse_all(&mut self) {
        let reason = self.broken().unwrap_or_default().to_owned();
        let waiting = self.written.drain(..).chain(self.flushes.drain(..)).chain(self.park.take());
        self.answers
            .extend(waiting.map(|waiter| (waiter, Err(JournalError::Broken { reason: reason.clone() }))));
    }

    /// Goes on in a new segment, if that can be had.
    fn mend(&mut self, now: Moment) -> io::Result<()> {
        self.log.folder.check()?;
        for key in self.log.settle()? {
            self.gaps += 1;
            self.tell(JournalEvent::Gap { key, why: "records of it were deleted" });
        }
        self.log.begin_anew(now.wall_ms)?;
        self.write(now)?;
        self.sync()?;
        self.work(now)
    }

    /// Reads the folder again, which another process had. Returns the streams that came there meanwhile.
    pub(super) fn reread(&mut self, now: Moment) -> Result<Vec<Kept>, JournalError> {
        let replayed = replay(self.log.folder.as_ref(), &self.log.limits, now.wall_ms)?;
        let new = replayed.kept.into_iter().filter(|kept| !self.log.index.streams.contains_key(&kept.key));
        let new = new.collect();
        self.log.reread(replayed.index);
        self.upkeep_due = now.since;
        Ok(new)
    }
}
