//! Experts for a prompt: nearly all of a layer's are used once a chunk, so those in slots are used in place, and the others
//! pass through a ring without taking a slot from anybody.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use unfazed_kernels::panel::PackedMatrix;

use super::source::UnitLayout;
use super::state::{Stream, Streamed};
use super::store::{ExpertPin, ExpertStore, PendingExpert};
use super::{ExpertId, Unit};
use crate::{Buffer, StoreError};

/// Numbers of rings.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Memory through which experts pass.
pub struct ExpertRing {
    store: Arc<ExpertStore>,
    number: u64,
    free: Vec<Buffer<u8>>,
    /// Reads that were asked for and have not been taken.
    under_way: usize,
    sender: Sender<Streamed>,
    receiver: Receiver<Streamed>,
}

/// The experts of a layer, one after the other.
pub struct ExpertStream<'r> {
    ring: &'r mut ExpertRing,
    resident: Vec<ExpertPin>,
    missing: VecDeque<Unit>,
    /// Those that a step is having read into slots: they are not read twice.
    pending: Vec<PendingExpert>,
    current: Option<Current>,
}

enum Current {
    Slot(ExpertPin),
    Ring(ExpertId, UnitLayout, Buffer<u8>),
}

/// An expert, until the next one is asked for.
pub struct StreamedExpert<'s>(&'s Current);

impl ExpertRing {
    /// A ring of at least two slots: one is used while the others are filled.
    ///
    /// # Errors
    ///
    /// The memory cannot be had.
    pub fn new(store: &Arc<ExpertStore>, slots: usize) -> Result<ExpertRing, StoreError> {
        let (slots, bytes) = (slots.max(2), store.0.sources.slot_bytes());
        let free: Result<Vec<_>, _> =
            (0..slots).map(|_| Buffer::zeroed("the ring for a prompt's experts", bytes)).collect();
        let free = free?;
        tracing::info!("experts of prompts pass through a {slots}-slot ring");
        let (sender, receiver) = channel();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(ExpertRing { store: Arc::clone(store), number, free, under_way: 0, sender, receiver })
    }

    /// Begins to give out these experts of a layer, each once: first those that are in slots, then the others as they come.
    ///
    /// # Errors
    ///
    /// [`StoreError::Experts`] for an expert that the model does not have.
    pub fn stream(&mut self, layer: u32, experts: &[u32]) -> Result<ExpertStream<'_>, StoreError> {
        let shared = &self.store.0;
        let mut units = Vec::with_capacity(experts.len());
        for expert in experts {
            units.push(shared.sources.unit(ExpertId { layer, expert: *expert })?);
        }
        units.sort_unstable();
        units.dedup();
        let (mut resident, mut missing, mut pending) = (Vec::new(), VecDeque::new(), Vec::new());
        {
            let mut state = shared.lock();
            for unit in units {
                if let Some(pin) = shared.ready(&mut state, unit) {
                    resident.push(pin);
                } else if state.is_coming(unit) {
                    pending.push(PendingExpert::new(shared, &mut state, unit));
                } else {
                    missing.push_back(unit);
                }
            }
        }
        let mut stream = ExpertStream { ring: self, resident, missing, pending, current: None };
        stream.ask();
        Ok(stream)
    }

    /// Takes a read that has come. `None` if none is under way.
    fn take(&mut self) -> Option<Streamed> {
        if self.under_way == 0 {
            return None;
        }
        // This holds a sender as well, so it cannot fail.
        let come = self.receiver.recv().ok();
        self.under_way -= 1;
        come
    }
}

impl ExpertStream<'_> {
    /// The next expert; `None` after the last one.
    ///
    /// # Errors
    ///
    /// An expert could not be read.
    #[expect(
        clippy::should_implement_trait,
        reason = "what it gives borrows from it: the ring has few slots"
    )]
    pub fn next(&mut self) -> Result<Option<StreamedExpert<'_>>, StoreError> {
        if let Some(Current::Ring(_, _, buffer)) = self.current.take() {
            self.ring.free.push(buffer);
        }
        self.ask();
        self.current = if let Some(pin) = self.resident.pop() {
            Some(Current::Slot(pin))
        } else if let Some((unit, buffer, read)) = self.ring.take() {
            let sources = &self.ring.store.0.sources;
            let id = sources.units().id(unit);
            let layout = sources.layout(id);
            if let Err(error) = read {
                self.ring.free.push(buffer);
                return Err(error);
            }
            layout.map(|layout| Current::Ring(id, layout, buffer))
        } else if !self.pending.is_empty() {
            let store = Arc::clone(&self.ring.store);
            Some(Current::Slot(store.wait_any(&mut self.pending)?))
        } else {
            None
        };
        Ok(self.current.as_ref().map(StreamedExpert))
    }

    /// Asks for as many experts as the ring has room for.
    fn ask(&mut self) {
        let shared = Arc::clone(&self.ring.store.0);
        let mut state = shared.lock();
        while !self.ring.free.is_empty()
            && let Some(unit) = self.missing.pop_front()
            && let Some(buffer) = self.ring.free.pop()
        {
            let (ring, done) = (self.ring.number, self.ring.sender.clone());
            state.streams.push_back(Stream { ring, unit, buffer, done });
            self.ring.under_way += 1;
            shared.work.notify_one();
        }
    }
}

impl Drop for ExpertStream<'_> {
    /// What nobody has begun to read is not read. What is being read is waited for: its memory is the ring's.
    fn drop(&mut self) {
        if let Some(Current::Ring(_, _, buffer)) = self.current.take() {
            self.ring.free.push(buffer);
        }
        let shared = Arc::clone(&self.ring.store.0);
        let mut ours = Vec::new();
        {
            let mut state = shared.lock();
            for job in std::mem::take(&mut state.streams) {
                if job.ring == self.ring.number {
                    ours.push(job);
                } else {
                    state.streams.push_back(job);
                }
            }
        }
        self.ring.under_way -= ours.len();
        self.ring.free.extend(ours.into_iter().map(|job| job.buffer));
        while let Some((_, buffer, _)) = self.ring.take() {
            self.ring.free.push(buffer);
        }
    }
}

impl StreamedExpert<'_> {
    /// Which expert it is.
    pub fn id(&self) -> ExpertId {
        match self.0 {
            Current::Slot(pin) => pin.id(),
            Current::Ring(id, ..) => *id,
        }
    }

    /// Whether it is in a slot.
    pub fn is_resident(&self) -> bool {
        matches!(self.0, Current::Slot(_))
    }

    /// `[width, hidden]`.
    pub fn gate(&self) -> PackedMatrix<'_> {
        self.matrix(0)
    }

    /// `[width, hidden]`.
    pub fn up(&self) -> PackedMatrix<'_> {
        self.matrix(1)
    }

    /// `[hidden, width]`.
    pub fn down(&self) -> PackedMatrix<'_> {
        self.matrix(2)
    }

    fn matrix(&self, number: usize) -> PackedMatrix<'_> {
        match self.0 {
            Current::Slot(pin) => match number {
                0 => pin.gate(),
                1 => pin.up(),
                _ => pin.down(),
            },
            Current::Ring(_, layout, buffer) => layout.matrix(number, buffer),
        }
    }
}
