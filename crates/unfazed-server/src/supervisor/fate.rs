//! What becomes of requests when their engine dies: the one place that decides it.

use unfazed_wire::RequestId;

use super::cause::Cause;
use crate::journal::{Journal, Record, Stage};

/// What an engine's death did.
#[derive(Debug, Default)]
pub(super) struct Aftermath {
    /// Requests that end, taken out of the journal: they ended the engine by themselves, so many times.
    pub(super) ended: Vec<(Record, u32)>,
    /// Requests that are tested alone from now on, with the deaths that speak against them.
    pub(super) suspected: Vec<(RequestId, u32)>,
}

/// Decides. Every request waits for the next engine, but for one that was found to kill engines.
///
/// A death speaks against the requests that were being computed and had gained nothing from that engine. If none was
/// being computed yet, against those that were handed over: one of them may have killed the engine before its first step.
pub(super) fn after_death(journal: &mut Journal, cause: Cause) -> Aftermath {
    let mut aftermath = Aftermath::default();
    let alone = journal.iter().filter(|record| record.stage != Stage::Waiting).count() == 1;
    let blamed = if journal.running() > 0 { Stage::Running } else { Stage::Queued };
    let mut found = Vec::new();
    for record in journal.iter_mut() {
        let stage = std::mem::replace(&mut record.stage, Stage::Waiting);
        if stage != blamed || record.gained || !cause.is_from_within() {
            continue;
        }
        match record.suspicion.died(cause, alone) {
            Some(deaths) => found.push((record.submit.request, deaths)),
            None => aftermath.suspected.push((record.submit.request, record.suspicion.deaths())),
        }
    }
    let take = |(request, deaths)| Some((journal.remove(request)?, deaths));
    aftermath.ended = found.into_iter().filter_map(take).collect();
    aftermath
}
