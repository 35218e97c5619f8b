//! The journal over a simulated folder, beside a model of what it was given.

mod damage;
mod keeping;
mod promise;
mod real;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::error::{Dropped, JournalError, JournalEvent};
use super::format::StreamKey;
use super::limits::Limits;
use super::log::Log;
use super::replay::{Found, Kept, replay};
use super::simulated::World;
use super::writer::{Item, JournalEvents, Moment, Writer};

/// When the simulated time begins.
const START_MS: u64 = 1_800_000_000_000;

type Answer = oneshot::Receiver<Result<(), JournalError>>;

fn key(number: u64) -> StreamKey {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    StreamKey(key)
}

fn small() -> Limits {
    Limits { segment_bytes: 4096, total_bytes: 32 << 10, age: Duration::from_secs(3600) }
}

/// What was told, in order.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<JournalEvent>>>);

impl Told {
    fn sink(&self) -> JournalEvents {
        let told = Arc::clone(&self.0);
        Arc::new(move |event| told.lock().unwrap().push(event))
    }

    fn take(&self) -> Vec<JournalEvent> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A process that has the journal.
struct Process {
    writer: Writer,
    told: Told,
    now: Moment,
}

impl Process {
    /// Opens what the world holds.
    fn open(world: &World, limits: Limits, now: Moment) -> Result<(Process, Vec<Kept>, Found), JournalError> {
        let folder = world.folder();
        let replayed = replay(folder.as_ref(), &limits, now.wall_ms)?;
        let told = Told::default();
        let log = Log::new(folder, limits, replayed.index);
        let writer = Writer::new(log, replayed.over_size, told.sink(), now);
        Ok((Process { writer, told, now }, replayed.kept, replayed.found))
    }

    fn later(&mut self, time: Duration) {
        self.now.since += time;
        self.now.wall_ms += time.as_millis() as u64;
    }

    fn step(&mut self, items: Vec<Item>) {
        self.writer.step(items, self.now);
        self.writer.answer();
        self.writer.keep_up(self.now);
        self.writer.answer();
    }

    fn admit(&mut self, number: u64, bytes: &[u8]) -> Result<(), JournalError> {
        let (item, answer) = admission(number, bytes);
        self.step(vec![item]);
        said(answer)
    }

    fn append(&mut self, number: u64, bytes: &[u8]) {
        self.step(vec![Item::Append { key: key(number), bytes: bytes.to_vec(), written: None }]);
    }

    fn forget(&mut self, number: u64) {
        self.step(vec![Item::Forget { key: key(number) }]);
    }

    fn flush(&mut self) -> Result<(), JournalError> {
        let (synced, answer) = oneshot::channel();
        self.step(vec![Item::Flush { synced }]);
        said(answer)
    }
}

fn admission(number: u64, bytes: &[u8]) -> (Item, Answer) {
    let (synced, answer) = oneshot::channel();
    (Item::Admit { key: key(number), bytes: bytes.to_vec(), synced }, answer)
}

/// An answer that has to be there.
fn said(mut answer: Answer) -> Result<(), JournalError> {
    answer.try_recv().expect("the writer answers in the step in which it was asked")
}

fn start() -> Moment {
    Moment { wall_ms: START_MS, since: Duration::ZERO }
}

/// What is found by a process that comes after a killed one, by number.
fn found(world: &World, limits: Limits, now: Moment) -> (BTreeMap<u64, Kept>, Found) {
    let (_, kept, found) = Process::open(world, limits, now).unwrap();
    let number = |kept: &Kept| u64::from_le_bytes(kept.key.0[..8].try_into().unwrap());
    (kept.into_iter().map(|kept| (number(&kept), kept)).collect(), found)
}

fn entries(kept: &BTreeMap<u64, Kept>, number: u64) -> Vec<&[u8]> {
    kept[&number].entries.iter().map(Vec::as_slice).collect()
}
