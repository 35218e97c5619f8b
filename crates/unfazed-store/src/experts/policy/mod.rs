//! Which expert leaves when another one comes.
//!
//! | module | what |
//! |---|---|
//! | [`lru`] | the one that was used longest ago |
//! | [`s3_fifo`] | three queues: what is used once leaves soon |
//! | [`lfu`] | the one that was used least, with older uses counting less |
//!
//! A policy knows which units are in slots, not which slots they are in. What it decides depends on the calls alone, in
//! their order: a trace that is replayed gives what the store would have done.

pub mod lfu;
pub mod lru;
pub mod s3_fifo;

use std::fmt;
use std::str::FromStr;

use super::Unit;

/// Decides over slots.
pub trait Policy: Send {
    /// A unit that is in a slot was used.
    fn touch(&mut self, unit: Unit);

    /// A unit gets a slot. If all slots are taken another one leaves, but none that is pinned: `None` if all of them are,
    /// and then nothing has changed. A unit that has a slot keeps it.
    fn admit(&mut self, unit: Unit, pinned: &dyn Fn(Unit) -> bool) -> Option<Admitted>;

    /// The unit that would leave next loses its slot. `None` if there is none that is not pinned, and then nothing has changed.
    /// Allocates nothing.
    fn leave(&mut self, pinned: &dyn Fn(Unit) -> bool) -> Option<Unit>;

    /// From now on there are so many slots: no fewer than units in slots, no more than at the beginning.
    fn resize(&mut self, slots: usize);

    /// A unit lost its slot for another reason: it could not be read, or memory was taken away.
    fn forget(&mut self, unit: Unit);

    /// Whether a unit is in a slot.
    fn contains(&self, unit: Unit) -> bool;

    /// Units in slots.
    fn len(&self) -> usize;

    /// Whether all slots are empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A unit has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The unit whose slot it is; `None` if a slot was empty, or the unit had one.
    pub evicted: Option<Unit>,
}

/// The policies, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// [`lru`].
    Lru,
    /// [`s3_fifo`].
    #[default]
    S3Fifo,
    /// [`lfu`].
    Lfu,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 3] = [PolicyKind::S3Fifo, PolicyKind::Lru, PolicyKind::Lfu];

    /// Its name in flags and tables.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::Lfu => "lfu",
        }
    }

    /// A policy over this many slots, for this many units.
    pub fn build(self, slots: usize, units: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(lru::Lru::new(slots, units)),
            PolicyKind::S3Fifo => Box::new(s3_fifo::S3Fifo::new(slots, units)),
            PolicyKind::Lfu => Box::new(lfu::Lfu::new(slots, units)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(name: &str) -> Result<PolicyKind, String> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("no such policy; there are {}", names.join(", "))
        })
    }
}
