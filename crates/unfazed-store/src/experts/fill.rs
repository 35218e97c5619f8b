//! Filling a slot, or memory of the ring: an expert's three parts are read, checked by their hashes and packed one by one, by
//! whichever thread is free, so that the first is packed while the last is read. Who ends the last one puts them together.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use twox_hash::XxHash3_64;
use unfazed_formats::Extent;
use unfazed_wire::memory::SlotRecord;

use super::Unit;
use super::ring::Stream;
use super::slots::digest;
use super::source::{PARTS, UnitLayout};
use super::state::{Cause, Fill};
use super::store::{Shared, identity};
use crate::{Buffer, ReadBuffer, StoreError};

/// Where an expert goes to.
pub(super) enum Goal {
    Slot(Fill),
    Ring(Stream),
}

/// One part of an expert, to be read and packed.
pub(super) struct Part {
    whole: Arc<Whole>,
    number: usize,
    /// Its place.
    buffer: Buffer<u8>,
}

/// An expert whose parts are under way.
struct Whole {
    unit: Unit,
    layout: UnitLayout,
    progress: Mutex<Progress>,
}

struct Progress {
    /// Without its memory, which the parts have.
    goal: Option<Goal>,
    /// Parts that have ended, and what lies behind them.
    parts: [Buffer<u8>; PARTS],
    rest: Buffer<u8>,
    digests: [u64; PARTS],
    failed: Option<StoreError>,
    left: usize,
}

impl Goal {
    fn unit(&self) -> Unit {
        match self {
            Goal::Slot(fill) => fill.unit,
            Goal::Ring(stream) => stream.unit,
        }
    }

    /// Whether nobody is known to need it.
    fn is_guessed(&self) -> bool {
        matches!(self, Goal::Slot(fill) if fill.cause != Cause::Demand)
    }

    fn buffer(&mut self) -> &mut Buffer<u8> {
        match self {
            Goal::Slot(fill) => &mut fill.buffer,
            Goal::Ring(stream) => &mut stream.buffer,
        }
    }
}

impl Shared {
    /// Begins with an expert: its parts become jobs.
    pub(super) fn begin(&self, mut goal: Goal) {
        if let Goal::Slot(fill) = &goal {
            self.records.clear(fill.slot);
        }
        let (unit, guessed) = (goal.unit(), goal.is_guessed());
        let layout = self.sources.layout(self.sources.units().id(unit));
        let split = layout.and_then(|layout| {
            let (parts, rest) = layout.split(mem::take(goal.buffer()))?;
            Some((layout, parts, rest))
        });
        // Slots are made for all layouts, so that there is always room.
        let Some((layout, parts, rest)) = split else { return };
        let progress = Progress {
            goal: Some(goal),
            parts: Default::default(),
            rest,
            digests: [0; PARTS],
            failed: None,
            left: PARTS,
        };
        let whole = Arc::new(Whole { unit, layout, progress: Mutex::new(progress) });
        let parts = parts.into_iter().enumerate();
        let jobs = parts.map(|(number, buffer)| Part { whole: Arc::clone(&whole), number, buffer });
        let mut state = self.lock();
        match guessed {
            true => state.guessed_parts.extend(jobs),
            false => state.parts.extend(jobs),
        }
        drop(state);
        self.work.notify_all();
    }

    /// Reads and packs a part; tells those who wait if it was the last one.
    pub(super) fn part(&self, part: Part) {
        let Part { whole, number, mut buffer } = part;
        let read = self.read_part(&whole, number, &mut buffer);
        let mut progress = whole.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.left -= 1;
        match read {
            Ok(digest) => {
                if let Some(kept) = progress.digests.get_mut(number) {
                    *kept = digest;
                }
            }
            Err(error) => {
                progress.failed.get_or_insert(error);
            }
        }
        if let Some(place) = progress.parts.get_mut(number) {
            *place = buffer;
        }
        if progress.left == 0 {
            self.finish(&whole, &mut progress);
        }
    }

    /// Puts an expert's parts together.
    fn finish(&self, whole: &Whole, progress: &mut Progress) {
        let [gate, up, down] = mem::take(&mut progress.parts);
        let rest = mem::take(&mut progress.rest);
        let joined = gate.join(up).and_then(|first| first.join(down)).and_then(|all| all.join(rest));
        // They were split from one another.
        let (Some(mut goal), Some(buffer)) = (progress.goal.take(), joined) else { return };
        *goal.buffer() = buffer;
        let read = match progress.failed.take() {
            Some(error) => Err(error),
            None => Ok(UnitLayout::digest_of(progress.digests)),
        };
        if let (Goal::Slot(fill), Ok(digest)) = (&goal, &read) {
            let identity = identity(&self.sources, self.files, whole.unit);
            let record = SlotRecord { identity, generation: fill.generation, digest: *digest };
            self.records.write(fill.slot, record);
        }
        self.lock().end(goal, read);
        self.changed.notify_all();
    }

    /// Reads a part and packs it; the digest of what is in its place then.
    fn read_part(&self, whole: &Whole, number: usize, place: &mut [u8]) -> Result<u64, StoreError> {
        let id = self.sources.units().id(whole.unit);
        let missing = || StoreError::Experts { reason: format!("there is no {id}") };
        let extents = self.sources.extents(id).ok_or_else(missing)?;
        let (name, extent) = extents.into_iter().nth(number).ok_or_else(missing)?;
        let rows = self.reader.begin(&name, extent).wait()?;
        let rows = self.checked(whole.unit, number, &name, extent, rows)?;
        let packed = whole.layout.pack(number, &rows, place).ok_or_else(missing)?;
        Ok(digest(packed))
    }

    /// Compares what was read with the hash of what was read before. Bytes that differ are read once more: they may have
    /// been damaged on their way.
    fn checked(
        &self,
        unit: Unit,
        part: usize,
        name: &str,
        extent: Extent,
        rows: ReadBuffer,
    ) -> Result<ReadBuffer, StoreError> {
        let check = |rows: &[u8]| {
            let hash = XxHash3_64::oneshot(rows);
            let checked = self.lock().profile.check(unit, part, hash);
            checked.map_err(|expected| (expected, hash))
        };
        let Err((expected, found)) = check(&rows) else { return Ok(rows) };
        let file = self.reader.file_name(extent.file);
        tracing::warn!(
            file,
            tensor = name,
            offset = extent.offset,
            "what was read has another hash than before ({found:016x}, not {expected:016x}): reading it again"
        );
        let again = self.reader.begin(name, extent).wait()?;
        let Err((expected, found)) = check(&again) else { return Ok(again) };
        let Extent { offset, len, .. } = extent;
        Err(StoreError::Damaged { file, tensor: name.to_owned(), offset, len, expected, found })
    }
}
