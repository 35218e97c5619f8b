//! The expert store: experts in slots, read when they are missed.
//!
//! A step asks for the experts that its router chose ([`ExpertStore::supply`]), computes with those that are there, and
//! takes the others as they come. It holds pins: an expert stays in its slot as long as a pin of it lives, and cannot be
//! used without one. Threads of the store read and pack what was missed; who finds all of its experts waits for nobody.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use unfazed_wire::memory::mix;

use super::giving_up::Closed;
use super::look_ahead::LookAhead;
use super::policy::PolicyKind;
use super::profile::{Profile, ProfileKey};
use super::ring::Ring;
use super::slots::{Records, SlotMemory};
use super::source::ExpertSources;
use super::state::{ExpertCounts, Filled, Job, Slot, State};
use super::supply::{ExpertPin, Place};
use super::{ExpertId, Unit};
use crate::{Buffer, Reader, StoreError};

/// How the store works.
pub struct ExpertConfig {
    /// Which expert leaves when another one comes.
    pub policy: PolicyKind,
    /// Threads that read and pack. Each has one of the three parts of an expert read at a time.
    pub threads: usize,
    /// Slots of the ring for experts that get no slot of their own; two at least.
    pub ring: usize,
    /// Stands for the model's files: their sizes and times of change. What an earlier process left for other files is not
    /// used.
    pub files: u64,
    /// Uses and hashes of earlier runs.
    pub profile: Option<Profile>,
}

/// Experts in slots. Its threads end when it is dropped.
pub struct ExpertStore(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) sources: ExpertSources,
    pub(super) reader: Arc<dyn Reader>,
    pub(super) records: Records,
    pub(super) files: u64,
    /// Layers that have experts.
    layers: usize,
    pub(super) closed: Closed,
    state: Mutex<State>,
    /// A slot was filled, or could not be.
    pub(super) changed: Condvar,
    /// There is a job.
    pub(super) work: Condvar,
}

impl ExpertStore {
    /// A store over these slots. What an earlier process left in them is used if it checks.
    ///
    /// # Errors
    ///
    /// [`StoreError::Experts`] for no slots or slots of another size; the system gives no thread.
    pub fn new(
        sources: ExpertSources,
        reader: Arc<dyn Reader>,
        memory: SlotMemory,
        config: ExpertConfig,
    ) -> Result<ExpertStore, StoreError> {
        let sizes = memory.sizes();
        if sizes.slots == 0 || sizes.slot_bytes < sources.slot_bytes() {
            let need = sources.slot_bytes();
            return Err(StoreError::Experts {
                reason: format!(
                    "{} slots of {} bytes; there must be one, of at least {need} bytes",
                    sizes.slots, sizes.slot_bytes
                ),
            });
        }
        let SlotMemory { buffers, records, open, least } = memory;
        let threads = config.threads.max(1);
        let ring = Ring::new(config.ring, sources.slot_bytes())?;
        let (layers, closed) = (sources.layers(), Closed::new(sizes.slots, least));
        let mut state = new_state(&sources, buffers, ring, config.policy, config.profile, config.files);
        let kept = adopt(&mut state, &records, &identities(&sources, config.files));
        let gib = (sizes.slots as f64 * sizes.slot_bytes as f64) / f64::from(1 << 30);
        tracing::info!(policy = %config.policy, kept, "expert cache {} slots, {gib:.2} GiB of memory", sizes.slots);
        tracing::info!("experts of prompts pass through a {}-slot ring", config.ring.max(2));
        let (state, changed, work) = (Mutex::new(state), Condvar::new(), Condvar::new());
        let files = config.files;
        let shared =
            Arc::new(Shared { sources, reader, records, files, layers, closed, state, changed, work });
        let store = ExpertStore(shared);
        let shut = store.close(u64::MAX, sizes.slots.saturating_sub(open));
        if shut.slots > 0 {
            tracing::info!(bytes = shut.bytes, "{} of the slots are closed, as memory was short", shut.slots);
        }
        for _ in 0..threads {
            let shared = Arc::clone(&store.0);
            let started =
                thread::Builder::new().name("unfazed-expert".to_owned()).spawn(move || shared.work());
            started.map_err(|error| StoreError::Experts {
                reason: format!("no thread to read with: {error}"),
            })?;
        }
        Ok(store)
    }

    /// The next layer's router was asked early and chose these. They are read if nothing else is and predictions have been
    /// right often enough.
    ///
    /// # Errors
    ///
    /// [`StoreError::Experts`] for an expert that the model does not have.
    pub fn look_ahead(&self, layer: u32, experts: &[u32]) -> Result<(), StoreError> {
        let units = self.units(layer, experts)?;
        let mut state = self.0.lock();
        let missing: Vec<Unit> = units.into_iter().filter(|unit| state.place(*unit).is_none()).collect();
        state.ahead.clear();
        if state.look_ahead.predict(layer, missing.iter().copied()) {
            state.ahead.extend(missing);
            self.0.work.notify_one();
        }
        Ok(())
    }

    /// The bytes of all slots, once those that are open are filled.
    pub fn full(&self) -> Option<usize> {
        let full = self.0.lock().empty.is_empty();
        full.then(|| self.0.records.mapping().len())
    }

    /// What happened so far.
    pub fn counts(&self) -> ExpertCounts {
        self.0.lock().counts
    }

    /// The share of predictions that were right of late, from 0 to 1.
    pub fn look_ahead_accuracy(&self) -> f64 {
        self.0.lock().look_ahead.accuracy()
    }

    /// Uses and hashes so far, to be saved.
    pub fn profile(&self) -> Profile {
        self.0.lock().profile.clone()
    }

    pub(super) fn units(&self, layer: u32, experts: &[u32]) -> Result<Vec<Unit>, StoreError> {
        experts.iter().map(|expert| self.0.sources.unit(ExpertId { layer, expert: *expert })).collect()
    }
}

impl Drop for ExpertStore {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_all();
    }
}

fn new_state(
    sources: &ExpertSources,
    buffers: Vec<Buffer<u8>>,
    ring: Ring,
    policy: PolicyKind,
    profile: Option<Profile>,
    files: u64,
) -> State {
    let units = sources.units();
    let count = units.count().unwrap_or(0);
    let key = ProfileKey { units, experts: sources.fingerprint(), files };
    State {
        units,
        policy: policy.build(buffers.len(), count),
        empty: (0..buffers.len()).rev().collect(),
        slots: buffers.into_iter().map(Slot::Empty).collect(),
        places: vec![None; count as usize],
        parts: Default::default(),
        guessed_parts: Default::default(),
        demand: Default::default(),
        ring,
        profiled: Default::default(),
        ahead: Default::default(),
        interest: HashMap::new(),
        failed: HashMap::new(),
        busy: 0,
        generation: 0,
        profile: profile.unwrap_or_else(|| Profile::new(key)),
        look_ahead: LookAhead::new(),
        counts: ExpertCounts::default(),
        closed: false,
    }
}

/// What stands for an expert in a slot's record.
pub(super) fn identity(sources: &ExpertSources, files: u64, unit: Unit) -> u64 {
    mix([sources.fingerprint(), files, u64::from(unit.0)])
}

fn identities(sources: &ExpertSources, files: u64) -> HashMap<u64, Unit> {
    let units = 0..sources.units().count().unwrap_or(0);
    units.map(|unit| (identity(sources, files, Unit(unit)), Unit(unit))).collect()
}

/// Takes over the slots that an earlier process filled, those that were used most last, as if they had been used last.
/// Their bytes are checked when they are first used. Returns how many there are.
fn adopt(state: &mut State, records: &Records, known: &HashMap<u64, Unit>) -> usize {
    let mut found: Vec<_> = (0..state.slots.len())
        .filter_map(|slot| {
            let record = records.read(slot)?;
            Some((*known.get(&record.identity)?, slot, record))
        })
        .collect();
    found.sort_by(|a, b| state.profile.uses(a.0).total_cmp(&state.profile.uses(b.0)).then(a.1.cmp(&b.1)));
    for (unit, slot, record) in &found {
        state.generation = state.generation.max(record.generation);
        // Of two slots with the same expert one is enough.
        if state.place(*unit).is_some() {
            continue;
        }
        let Some(place) = state.slots.get_mut(*slot) else { continue };
        let Slot::Empty(buffer) = std::mem::replace(place, Slot::Filling) else { continue };
        let (generation, digest) = (record.generation, record.digest);
        *place = Slot::Filled(Filled { generation, digest, data: Arc::new(buffer), trusted: false });
        if let Some(place) = state.places.get_mut(unit.0 as usize) {
            *place = Some(*slot);
        }
        state.policy.admit(*unit, &|_| true);
    }
    let filled: Vec<bool> = state.slots.iter().map(|slot| matches!(slot, Slot::Filled(_))).collect();
    state.empty.retain(|slot| !filled.get(*slot).copied().unwrap_or(false));
    filled.into_iter().filter(|filled| *filled).count()
}

impl Shared {
    /// Slots for each layer: who needs more experts of one passes them through the ring.
    pub(super) fn share(&self, state: &State) -> usize {
        (state.open_slots() / self.layers).max(1)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins a unit, if it is in a slot. One that an earlier process left is checked before: that takes a fraction of a
    /// millisecond, once, and is done under the lock because nobody may use it meanwhile.
    pub(super) fn ready(self: &Arc<Shared>, state: &mut State, unit: Unit) -> Option<ExpertPin> {
        let id = state.units.id(unit);
        let layout = self.sources.layout(id)?;
        let (slot, filled) = state.filled(unit)?;
        if !filled.trusted {
            if layout.digest(&filled.data) != Some(filled.digest) {
                tracing::warn!(expert = %id, slot, "an expert is not what was put into its slot: it is read again");
                state.distrust(unit);
                return None;
            }
            if let Some(Slot::Filled(filled)) = state.slots.get_mut(slot) {
                filled.trusted = true;
            }
        }
        let (_, filled) = state.filled(unit)?;
        let place = Place::Slot { generation: filled.generation, data: Arc::clone(&filled.data) };
        Some(ExpertPin::new(self, id, layout, place))
    }

    /// A thread of the store: fills slots and reads for prompts, until the store is closed.
    fn work(self: Arc<Shared>) {
        let mut state = self.lock();
        while !state.closed {
            let Some(job) = state.next_job() else {
                // Who waits for the end of pre-filling learns it here.
                self.changed.notify_all();
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            match job {
                Job::Begin(goal) => self.begin(goal),
                Job::Part(part) => self.part(part),
            }
            // Others wait for the end of a job: for a prediction's sake, or for a slot.
            self.work.notify_one();
            state = self.lock();
        }
    }
}
