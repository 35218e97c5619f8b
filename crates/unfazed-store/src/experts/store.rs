//! The expert store: experts in slots, read when they are missed.
//!
//! A step asks for the experts that its router chose ([`ExpertStore::fetch`]), computes with those that are there, and
//! waits for the others one by one ([`ExpertStore::wait_any`]). It holds pins: an expert stays in its slot as long as a pin
//! of it lives, and cannot be used without one. Threads of the store read and pack what was missed; who finds all of its
//! experts waits for nobody.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use unfazed_kernels::panel::PackedMatrix;
use unfazed_wire::memory::mix;

use super::look_ahead::LookAhead;
use super::policy::PolicyKind;
use super::profile::{Profile, ProfileKey};
use super::slots::{Records, SlotMemory, digest};
use super::source::{ExpertSources, UnitLayout};
use super::state::{ExpertCounts, Filled, Job, Slot, State};
use super::{ExpertId, Unit};
use crate::{Buffer, Reader, StoreError};

/// How the store works.
pub struct ExpertConfig {
    /// Which expert leaves when another one comes.
    pub policy: PolicyKind,
    /// Threads that read and pack. Each has the three parts of an expert read at a time.
    pub threads: usize,
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
    state: Mutex<State>,
    /// A slot was filled, or could not be.
    pub(super) changed: Condvar,
    /// There is a job.
    pub(super) work: Condvar,
}

/// What a step gets.
#[derive(Default)]
pub struct Fetched {
    /// Experts that were in slots, pinned.
    pub ready: Vec<ExpertPin>,
    /// Experts that are being read.
    pub pending: Vec<PendingExpert>,
}

/// An expert that stays where it is.
pub struct ExpertPin {
    shared: Arc<Shared>,
    id: ExpertId,
    generation: u64,
    layout: UnitLayout,
    /// `None` only while it is dropped.
    data: Option<Arc<Buffer<u8>>>,
}

/// An expert that is waited for. Its slot, once it has one, stays its own until it was used or this is dropped.
pub struct PendingExpert {
    shared: Arc<Shared>,
    unit: Unit,
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
        if sizes.slots == 0 || sizes.slot_bytes != sources.slot_bytes() {
            let need = sources.slot_bytes();
            return Err(StoreError::Experts {
                reason: format!(
                    "{} slots of {} bytes; there must be one at least, of {need} bytes",
                    sizes.slots, sizes.slot_bytes
                ),
            });
        }
        let SlotMemory { buffers, records } = memory;
        let threads = config.threads.max(1);
        let mut state = new_state(&sources, buffers, config.policy, config.profile, config.files);
        let kept = adopt(&mut state, &records, &identities(&sources, config.files));
        let gib = (sizes.slots as f64 * sizes.slot_bytes as f64) / f64::from(1 << 30);
        tracing::info!(policy = %config.policy, kept, "expert cache {} slots, {gib:.2} GiB of memory", sizes.slots);
        let (state, changed, work) = (Mutex::new(state), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { sources, reader, records, files: config.files, state, changed, work });
        let store = ExpertStore(shared);
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

    /// Asks for experts of a layer. Never waits.
    ///
    /// # Errors
    ///
    /// [`StoreError::Experts`] for an expert that the model does not have.
    pub fn fetch(&self, layer: u32, experts: &[u32]) -> Result<Fetched, StoreError> {
        let units = self.units(layer, experts)?;
        let mut state = self.0.lock();
        state.look_ahead.compare(layer, &units);
        let (all, mut fetched) = (state.units, Fetched::default());
        // What was predicted for this layer is needed now or was wrong.
        state.ahead.retain(|unit| all.id(*unit).layer != layer);
        for unit in units {
            state.profile.count(unit);
            state.counts.uses += 1;
            match self.0.ready(&mut state, unit) {
                Some(pin) => {
                    state.policy.touch(unit);
                    state.counts.hits += 1;
                    fetched.ready.push(pin);
                }
                None => {
                    state.want(unit);
                    fetched.pending.push(PendingExpert::new(&self.0, &mut state, unit));
                }
            }
        }
        if !fetched.pending.is_empty() {
            self.0.work.notify_all();
        }
        Ok(fetched)
    }

    /// Waits until one of these has come, takes it off the list and pins it. How long a read may take is the reader's
    /// affair.
    ///
    /// # Errors
    ///
    /// The error of the read of one of them, which is taken off the list; [`StoreError::Experts`] if the list is empty.
    pub fn wait_any(&self, pending: &mut Vec<PendingExpert>) -> Result<ExpertPin, StoreError> {
        let mut state = self.0.lock();
        loop {
            if pending.is_empty() {
                return Err(StoreError::Experts { reason: "nothing is waited for".to_owned() });
            }
            for index in 0..pending.len() {
                let Some(unit) = pending.get(index).map(|expert| expert.unit) else { continue };
                let come = match self.0.ready(&mut state, unit) {
                    Some(pin) => Ok(pin),
                    None => match state.failed.remove(&unit) {
                        Some(error) => Err(error),
                        None => {
                            // Another who waited for it was told that it could not be read: this is another attempt.
                            if state.want(unit) {
                                self.0.work.notify_one();
                            }
                            continue;
                        }
                    },
                };
                // It takes the lock when it is dropped.
                drop(state);
                drop(pending.swap_remove(index));
                return come;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
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

    fn units(&self, layer: u32, experts: &[u32]) -> Result<Vec<Unit>, StoreError> {
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
        demand: Default::default(),
        streams: Default::default(),
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
            if filled.data.get(..layout.bytes()).map(digest) != Some(filled.digest) {
                tracing::warn!(expert = %id, slot, "an expert is not what was put into its slot: it is read again");
                state.distrust(unit);
                return None;
            }
            if let Some(Slot::Filled(filled)) = state.slots.get_mut(slot) {
                filled.trusted = true;
            }
        }
        let (_, filled) = state.filled(unit)?;
        let (generation, data) = (filled.generation, Some(Arc::clone(&filled.data)));
        Some(ExpertPin { shared: Arc::clone(self), id, generation, layout, data })
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
                Job::Fill(fill) => self.fill(fill),
                Job::Stream(stream) => self.stream(stream),
            }
            // Others wait for the end of a job: for a prediction's sake, or for a slot.
            self.work.notify_one();
            state = self.lock();
        }
    }
}

impl ExpertPin {
    /// Which expert it is.
    pub fn id(&self) -> ExpertId {
        self.id
    }

    /// Grows each time that a slot is filled: no two experts, nor two fillings with the same one, have the same.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// `[width, hidden]`.
    pub fn gate(&self) -> PackedMatrix<'_> {
        self.layout.matrix(0, self.slot())
    }

    /// `[width, hidden]`.
    pub fn up(&self) -> PackedMatrix<'_> {
        self.layout.matrix(1, self.slot())
    }

    /// `[hidden, width]`.
    pub fn down(&self) -> PackedMatrix<'_> {
        self.layout.matrix(2, self.slot())
    }

    pub(super) fn slot(&self) -> &Buffer<u8> {
        #[expect(clippy::expect_used, reason = "it is taken by `drop` alone")]
        self.data.as_ref().expect("a pin holds its slot until it is dropped")
    }
}

impl Drop for ExpertPin {
    fn drop(&mut self) {
        let state = self.shared.lock();
        self.data = None;
        if !state.demand.is_empty() {
            self.shared.work.notify_one();
        }
    }
}

impl PendingExpert {
    pub(super) fn new(shared: &Arc<Shared>, state: &mut State, unit: Unit) -> PendingExpert {
        *state.interest.entry(unit).or_default() += 1;
        PendingExpert { shared: Arc::clone(shared), unit }
    }

    /// Which expert it is.
    pub fn id(&self) -> ExpertId {
        self.shared.sources.units().id(self.unit)
    }
}

impl Drop for PendingExpert {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(interest) = state.interest.get_mut(&self.unit) {
            *interest = interest.saturating_sub(1);
            if *interest == 0 {
                state.interest.remove(&self.unit);
                state.failed.remove(&self.unit);
            }
        }
        if !state.demand.is_empty() {
            self.shared.work.notify_one();
        }
    }
}
