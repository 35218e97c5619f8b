//! A folder that fails at any operation, and loses power at any: of what was not synced the disk then has anything, of
//! files and of the list of files.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::folder::{Contents, Folder, SegmentFile};

/// What is lost or kept at a time.
const SECTOR_BYTES: usize = 64;

/// SplitMix64: one seed, one run.
#[derive(Debug)]
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }

    /// What the disk may have of bytes that were not synced.
    fn torn(&mut self, bytes: &[u8]) -> Vec<u8> {
        let len = match self.below(4) {
            0 => 0,
            1 => bytes.len(),
            _ => self.below(bytes.len() + 1),
        };
        let mut torn = bytes[..len].to_vec();
        if self.below(3) == 0 {
            for sector in torn.chunks_mut(SECTOR_BYTES) {
                if self.below(2) == 0 {
                    sector.fill(0);
                }
            }
        }
        torn
    }
}

#[derive(Debug, Default)]
struct Inode {
    bytes: Vec<u8>,
    /// The disk has so many of them.
    synced: usize,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Linked(u64, usize),
    Unlinked(u64),
}

impl Change {
    fn apply(self, files: &mut BTreeMap<u64, usize>) {
        match self {
            Change::Linked(segment, inode) => drop(files.insert(segment, inode)),
            Change::Unlinked(segment) => drop(files.remove(&segment)),
        }
    }
}

#[derive(Debug)]
struct State {
    draw: Draw,
    inodes: Vec<Inode>,
    files: BTreeMap<u64, usize>,
    /// The same as the disk has it, and what it may have beside.
    files_synced: BTreeMap<u64, usize>,
    changes: Vec<Change>,
    operations: u64,
    /// Power goes at this operation.
    cut_at: Option<u64>,
    /// These fail.
    failing: std::ops::Range<u64>,
    off: bool,
}

/// A computer with one folder. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct World(Arc<Mutex<State>>);

impl World {
    pub(super) fn new(seed: u64) -> World {
        World(Arc::new(Mutex::new(State {
            draw: Draw(seed),
            inodes: Vec::new(),
            files: BTreeMap::new(),
            files_synced: BTreeMap::new(),
            changes: Vec::new(),
            operations: 0,
            cut_at: None,
            failing: 0..0,
            off: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn folder(&self) -> Box<dyn Folder> {
        Box::new(SimulatedFolder(self.clone()))
    }

    /// Power goes in so many operations.
    pub(super) fn cut_in(&self, operations: u64) {
        let mut state = self.lock();
        state.cut_at = Some(state.operations + operations);
    }

    /// In `operations`, so many fail.
    pub(super) fn fail_in(&self, operations: u64, many: u64) {
        let mut state = self.lock();
        let from = state.operations + operations;
        state.failing = from..from.saturating_add(many);
    }

    pub(super) fn is_off(&self) -> bool {
        self.lock().off
    }

    pub(super) fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Power is lost, unless it was already, and comes back.
    pub(super) fn power_cycle(&self) {
        let mut state = self.lock();
        let State { draw, inodes, files, files_synced, changes, .. } = &mut *state;
        for inode in inodes {
            let torn = draw.torn(&inode.bytes[inode.synced..]);
            inode.bytes.truncate(inode.synced);
            inode.bytes.extend(torn);
            inode.synced = inode.bytes.len();
        }
        for change in changes.drain(..).filter(|_| draw.below(2) == 0) {
            change.apply(files_synced);
        }
        *files = files_synced.clone();
        state.restart();
    }

    /// The process is killed, and the computer goes on.
    pub(super) fn process_killed(&self) {
        self.lock().restart();
    }

    /// The bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.lock();
        state.files.values().map(|inode| state.inodes[*inode].bytes.len() as u64).sum()
    }

    /// Changes a segment behind the journal's back.
    pub(super) fn damage(&self, segment: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        let inode = state.files[&segment];
        change(&mut state.inodes[inode].bytes);
        state.inodes[inode].synced = state.inodes[inode].bytes.len();
    }

    /// Deletes one behind its back.
    pub(super) fn lose(&self, segment: u64) {
        let mut state = self.lock();
        state.files.remove(&segment);
        state.files_synced.remove(&segment);
    }

    pub(super) fn segments(&self) -> Vec<u64> {
        self.lock().files.keys().copied().collect()
    }
}

impl State {
    fn restart(&mut self) {
        (self.cut_at, self.failing, self.off) = (None, 0..0, false);
    }

    /// One operation. An error where it fails; what came of it then is the caller's to draw.
    fn operate(&mut self) -> io::Result<()> {
        if self.off {
            return Err(io::Error::other("no power"));
        }
        let operation = self.operations;
        self.operations += 1;
        if self.cut_at == Some(operation) {
            self.off = true;
            return Err(io::Error::other("no power"));
        }
        if self.failing.contains(&operation) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Whether an operation that failed came into effect.
    fn happened(&mut self) -> bool {
        self.draw.below(2) == 0
    }
}

struct SimulatedFolder(World);

impl Folder for SimulatedFolder {
    fn dir(&self) -> &Path {
        Path::new("/simulated")
    }

    fn segments(&self) -> io::Result<Vec<u64>> {
        let mut state = self.0.lock();
        state.operate()?;
        Ok(state.files.keys().copied().collect())
    }

    fn read(&self, segment: u64, limit: u64) -> io::Result<Contents> {
        let mut state = self.0.lock();
        state.operate()?;
        let inode = *state.files.get(&segment).ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = state.inodes[inode].bytes.clone();
        let unread = (bytes.len() as u64).saturating_sub(limit);
        bytes.truncate(limit as usize);
        Ok(Contents { bytes, unread })
    }

    fn sync_segment(&self, segment: u64) -> io::Result<()> {
        let inode = *self.0.lock().files.get(&segment).ok_or(io::ErrorKind::NotFound)?;
        SimulatedFile { world: self.0.clone(), inode }.sync()
    }

    fn create(&mut self, segment: u64) -> io::Result<Box<dyn SegmentFile>> {
        let mut state = self.0.lock();
        if state.files.contains_key(&segment) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let result = state.operate();
        let inode = state.inodes.len();
        if result.is_ok() || state.happened() {
            state.inodes.push(Inode::default());
            state.files.insert(segment, inode);
            state.changes.push(Change::Linked(segment, inode));
        }
        result.map(|()| Box::new(SimulatedFile { world: self.0.clone(), inode }) as Box<dyn SegmentFile>)
    }

    fn remove(&mut self, segment: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        let result = state.operate();
        if (result.is_ok() || state.happened()) && state.files.remove(&segment).is_some() {
            state.changes.push(Change::Unlinked(segment));
        }
        result
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.operate()?;
        state.files_synced = state.files.clone();
        state.changes.clear();
        Ok(())
    }

    fn check(&mut self) -> io::Result<()> {
        self.0.lock().operate()
    }
}

struct SimulatedFile {
    world: World,
    inode: usize,
}

impl SegmentFile for SimulatedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.world.lock();
        let was_off = state.off;
        let result = state.operate();
        let len = if result.is_ok() { bytes.len() } else { state.draw.below(bytes.len() + 1) };
        if !was_off {
            state.inodes[self.inode].bytes.extend(&bytes[..len]);
        }
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.world.lock();
        let was_off = state.off;
        let result = state.operate();
        let State { draw, inodes, off, .. } = &mut *state;
        let inode = &mut inodes[self.inode];
        if result.is_err() && !was_off && !*off {
            // As after a real one: what was to be synced is lost in part, and the next sync says that all is well.
            let torn = draw.torn(&inode.bytes[inode.synced..]);
            inode.bytes.truncate(inode.synced);
            inode.bytes.extend(torn);
        }
        if !*off {
            inode.synced = inode.bytes.len();
        }
        result
    }
}
