//! What the front knows of each sequence that has not ended: enough to compute it again from nothing that an engine
//! remembers.

use std::collections::BTreeMap;

use tokio::sync::mpsc::UnboundedSender;
use unfazed_wire::{RequestId, Submit};

use crate::supervisor::Update;

/// How far a sequence has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No engine has it.
    Waiting,
    /// The engine has it and has not begun.
    Queued,
    /// The engine computes it.
    Running,
}

/// One sequence.
#[derive(Debug)]
pub(crate) struct Record {
    /// Prompt, settings and seed.
    pub(crate) submit: Submit,
    /// Tokens verified so far.
    pub(crate) tokens: Vec<u32>,
    /// How far it has come.
    pub(crate) stage: Stage,
    /// Where its client listens. Unbounded, as the engine must never wait for a client; it holds at most the
    /// `max_tokens` that were admitted.
    pub(crate) updates: UnboundedSender<Update>,
}

/// All sequences that have not ended, in the order of their arrival (ids only grow).
#[derive(Debug, Default)]
pub(crate) struct Journal {
    records: BTreeMap<RequestId, Record>,
}

impl Journal {
    pub(crate) fn insert(&mut self, record: Record) {
        self.records.insert(record.submit.request, record);
    }

    pub(crate) fn get_mut(&mut self, request: RequestId) -> Option<&mut Record> {
        self.records.get_mut(&request)
    }

    pub(crate) fn remove(&mut self, request: RequestId) -> Option<Record> {
        self.records.remove(&request)
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn running(&self) -> usize {
        self.records.values().filter(|record| record.stage == Stage::Running).count()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.records.values_mut()
    }

    /// Takes out the records that `choose` picks, in order.
    pub(crate) fn take_if(&mut self, mut choose: impl FnMut(&mut Record) -> bool) -> Vec<Record> {
        self.records.extract_if(.., |_, record| choose(record)).map(|(_, record)| record).collect()
    }
}
