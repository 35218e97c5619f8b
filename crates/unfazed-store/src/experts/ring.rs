//! The ring: memory through which experts pass that get no slot. They are read in the order in which they are needed, as
//! far ahead as the memory goes, over the end of a layer as well.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Unit;
use crate::{Buffer, StoreError};

/// What passes through it.
pub(super) struct Ring {
    free: Vec<Buffer<u8>>,
    /// To be read, those needed first in front.
    queue: VecDeque<Unit>,
    under_way: BTreeSet<Unit>,
    /// Read and not yet taken.
    come: BTreeMap<Unit, Result<Buffer<u8>, StoreError>>,
}

/// An expert to be read past the slots.
pub(super) struct Stream {
    pub(super) unit: Unit,
    pub(super) buffer: Buffer<u8>,
}

impl Ring {
    /// At least two slots: one is used while another one is filled.
    pub(super) fn new(slots: usize, slot_bytes: usize) -> Result<Ring, StoreError> {
        let slots = 0..slots.max(2);
        let free = slots.map(|_| Buffer::zeroed("the ring for experts", slot_bytes));
        Ok(Ring {
            free: free.collect::<Result<_, _>>()?,
            queue: VecDeque::new(),
            under_way: BTreeSet::new(),
            come: BTreeMap::new(),
        })
    }

    /// These are needed now, in this order. What was read or was to be read besides is given up.
    pub(super) fn turn_to(&mut self, units: &[Unit]) {
        let needed: BTreeSet<Unit> = units.iter().copied().collect();
        let useless = self.come.extract_if(.., |unit, _| !needed.contains(unit));
        self.free.extend(useless.filter_map(|(_, read)| read.ok()));
        self.queue.clear();
        let missing = units.iter().filter(|unit| !self.is_coming(**unit)).copied();
        self.queue = missing.collect();
    }

    /// These are needed after what is needed already.
    pub(super) fn expect(&mut self, units: impl IntoIterator<Item = Unit>) {
        for unit in units {
            if !self.is_coming(unit) && !self.queue.contains(&unit) {
                self.queue.push_back(unit);
            }
        }
    }

    /// This is waited for: sees to it that it comes. Whether there is something to do for that.
    pub(super) fn ensure(&mut self, unit: Unit) -> bool {
        if self.is_coming(unit) {
            return false;
        }
        if self.queue.front() != Some(&unit) {
            self.queue.retain(|queued| *queued != unit);
            self.queue.push_front(unit);
        }
        // Memory may be full of what comes later.
        if self.free.is_empty()
            && self.under_way.is_empty()
            && let Some((last, read)) = self.come.pop_last()
        {
            self.free.extend(read.ok());
            self.queue.push_back(last);
        }
        !self.free.is_empty()
    }

    /// The next read, if there is memory for it.
    pub(super) fn next(&mut self) -> Option<Stream> {
        if self.free.is_empty() {
            return None;
        }
        let unit = self.queue.pop_front()?;
        self.under_way.insert(unit);
        Some(Stream { unit, buffer: self.free.pop()? })
    }

    /// A read has ended.
    pub(super) fn settle(&mut self, stream: Stream, read: Result<(), StoreError>) {
        let Stream { unit, buffer } = stream;
        self.under_way.remove(&unit);
        let read = match read {
            Ok(()) => Ok(buffer),
            Err(error) => {
                self.free.push(buffer);
                Err(error)
            }
        };
        if let Some(Ok(twice)) = self.come.insert(unit, read) {
            self.free.push(twice);
        }
    }

    /// What has come of a unit.
    pub(super) fn take(&mut self, unit: Unit) -> Option<Result<Buffer<u8>, StoreError>> {
        self.come.remove(&unit)
    }

    /// Memory that was taken is free again.
    pub(super) fn give_back(&mut self, buffer: Buffer<u8>) {
        self.free.push(buffer);
    }

    /// Nobody waits for these any more.
    pub(super) fn forget(&mut self, units: &[Unit]) {
        self.queue.retain(|unit| !units.contains(unit));
    }

    fn is_coming(&self, unit: Unit) -> bool {
        self.under_way.contains(&unit) || self.come.contains_key(&unit)
    }
}
