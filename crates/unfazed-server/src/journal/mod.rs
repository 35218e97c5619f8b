//! What the front knows of each sequence that has not ended: enough to compute it again from nothing that an engine
//! remembers. And what it knows of each answer: enough for another front.

pub(crate) mod disk;
mod spent;
mod store;
mod tape;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc::UnboundedSender;
use unfazed_wire::{Progress, RequestId, Submit};

use crate::supervisor::{Suspicion, Update};

pub use disk::read_journal;
pub(crate) use spent::{Shares, Spent};
pub(crate) use store::number;
pub(crate) use tape::{Recorded, StoreState, Tape, Tapes};

/// Where a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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
    /// Prompt tokens whose log probabilities were told so far.
    pub(crate) prompt_logprobs: usize,
    /// Prompt positions computed, by the engine that got furthest.
    pub(crate) prefilled: usize,
    /// Some engine has begun it.
    pub(crate) begun: bool,
    /// Where it is.
    stage: Stage,
    /// Where its time goes.
    pub(crate) spent: Spent,
    /// It got further in the engine that has it than in all before.
    pub(crate) gained: bool,
    /// What speaks against it.
    pub(crate) suspicion: Suspicion,
    /// Where its client listens. Unbounded, as the engine must never wait for a client; it holds at most the
    /// `max_tokens` that were admitted.
    pub(crate) updates: UnboundedSender<Update>,
}

impl Record {
    /// A sequence that no engine had yet.
    pub(crate) fn new(submit: Submit, updates: UnboundedSender<Update>) -> Record {
        Record {
            submit,
            tokens: Vec::new(),
            prompt_logprobs: 0,
            prefilled: 0,
            begun: false,
            stage: Stage::Waiting,
            spent: Spent::new(Instant::now()),
            gained: false,
            suspicion: Suspicion::default(),
            updates,
        }
    }

    /// Where it is.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// It comes to another stage. Returns the one that it was at.
    pub(crate) fn turn(&mut self, stage: Stage) -> Stage {
        self.spent.turn(stage, self.begun, Instant::now());
        std::mem::replace(&mut self.stage, stage)
    }

    /// The request as an engine gets it: from where it stands, if an engine has begun it.
    pub(crate) fn to_submit(&self) -> Submit {
        let progress = || Progress { tokens: self.tokens.clone(), prompt_logprobs: self.prompt_logprobs };
        Submit { resumed: self.begun.then(progress), ..self.submit.clone() }
    }

    /// Tells the client's side; one that has left hears nothing.
    pub(crate) fn tell(&self, update: Update) {
        let _ = self.updates.send(update);
    }
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

    pub(crate) fn get(&self, request: RequestId) -> Option<&Record> {
        self.records.get(&request)
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

    /// Sequences that the engine computes.
    pub(crate) fn running(&self) -> usize {
        self.iter().filter(|record| record.stage == Stage::Running).count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.records.values_mut()
    }

    /// The engine waited for storage in a step of those that it computes.
    pub(crate) fn waited(&mut self, time: Duration) {
        let running = self.records.values_mut().filter(|record| record.stage == Stage::Running);
        running.for_each(|record| record.spent.waited(time));
    }

    /// Takes out all of them, in order.
    pub(crate) fn take_all(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records).into_values().collect()
    }
}
