//! How engines and requests fare, in full, for `/v1/status`.

use std::collections::VecDeque;
use std::time::Instant;

use serde::Serialize;

use super::troubles::RecentFault;
use super::{Engine, Health};
use crate::journal::{Record, Shares, Stage};

/// Sequences that ended of which is told.
const ENDED: usize = 20;

/// All that is known.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    /// As `/health`; `null` until an engine was ready for the first time.
    engine: Option<Health>,
    /// The last faults with what told of them, the newest first.
    faults: Vec<RecentFault>,
    /// Sequences that have not ended.
    requests: Vec<RequestStatus>,
    /// The last ones that have, the newest first.
    ended: Vec<RequestStatus>,
}

/// How a sequence fares, and where its time went.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RequestStatus {
    request: u64,
    stage: Stage,
    prompt_tokens: usize,
    prompt_computed: usize,
    generated_tokens: usize,
    #[serde(flatten)]
    time: Shares,
}

impl RequestStatus {
    fn of(record: &Record) -> RequestStatus {
        RequestStatus {
            request: record.submit.request.0,
            stage: record.stage(),
            prompt_tokens: record.submit.prompt.len(),
            prompt_computed: record.prefilled.min(record.submit.prompt.len()),
            generated_tokens: record.tokens.len(),
            time: record.spent.shares(Instant::now()),
        }
    }
}

/// The last sequences that ended.
#[derive(Debug, Default)]
pub(super) struct LastEnded(VecDeque<RequestStatus>);

impl LastEnded {
    pub(super) fn note(&mut self, record: &Record) {
        self.0.truncate(ENDED - 1);
        self.0.push_front(RequestStatus::of(record));
    }
}

impl Engine {
    /// How engines and requests fare.
    pub(crate) fn status(&self) -> Status {
        let engine = self.health();
        let state = self.shared.lock();
        Status {
            engine,
            faults: state.troubles.recent(true),
            requests: state.journal.iter().map(RequestStatus::of).collect(),
            ended: state.ended.0.iter().cloned().collect(),
        }
    }
}
