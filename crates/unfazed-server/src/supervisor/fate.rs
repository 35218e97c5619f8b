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
    let alone = journal.iter().filter(|record| record.stage() != Stage::Waiting).count() == 1;
    let blamed = if journal.running() > 0 { Stage::Running } else { Stage::Queued };
    let mut found = Vec::new();
    for record in journal.iter_mut() {
        let stage = record.turn(Stage::Waiting);
        if stage != blamed || record.gained || !cause.is_from_within() {
            continue;
        }
        match record.suspicion.died(cause, alone) {
            Some(deaths) => found.push((record.submit.request, deaths)),
            None if record.suspicion.is_suspect() => {
                aftermath.suspected.push((record.submit.request, record.suspicion.deaths()));
            }
            None => {}
        }
    }
    let take = |(request, deaths)| Some((journal.remove(request)?, deaths));
    aftermath.ended = found.into_iter().filter_map(take).collect();
    aftermath
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::super::simulation::submit;
    use super::*;

    const NONE: [u64; 0] = [];

    /// Requests that are at these stages, and whether they gained anything.
    fn journal(requests: &[(Stage, bool)]) -> Journal {
        let mut journal = Journal::default();
        for (number, (stage, gained)) in requests.iter().enumerate() {
            let mut record = Record::new(submit(number as u64, 5), unbounded_channel().0);
            record.turn(*stage);
            record.gained = *gained;
            journal.insert(record);
        }
        journal
    }

    /// Who is suspected after two such deaths.
    fn suspected(journal: &mut Journal, cause: Cause) -> Vec<u64> {
        let stages: Vec<Stage> = journal.iter().map(|record| record.stage()).collect();
        assert!(after_death(journal, cause).suspected.is_empty(), "one death says nothing");
        for (record, stage) in journal.iter_mut().zip(stages) {
            record.turn(stage);
        }
        let aftermath = after_death(journal, cause);
        assert!(aftermath.ended.is_empty());
        assert!(
            journal.iter().all(|record| record.stage() == Stage::Waiting),
            "all wait for the next engine"
        );
        aftermath.suspected.iter().map(|(request, _)| request.0).collect()
    }

    #[test]
    fn a_death_speaks_against_those_that_ran_and_gained_nothing() {
        use Stage::{Queued, Running, Waiting};
        let requests = [(Running, true), (Running, false), (Queued, false), (Waiting, false)];
        assert_eq!(suspected(&mut journal(&requests), Cause::Signal(6)), [1]);
        assert_eq!(suspected(&mut journal(&requests), Cause::Stalled), [1]);
        assert_eq!(suspected(&mut journal(&requests), Cause::Signal(9)), NONE);
        assert_eq!(suspected(&mut journal(&requests), Cause::OutOfMemory), NONE);
        assert_eq!(suspected(&mut journal(&[(Running, true), (Queued, false)]), Cause::Signal(6)), NONE);
    }

    #[test]
    fn where_none_ran_a_death_speaks_against_those_that_were_handed_over() {
        let requests = [(Stage::Queued, false), (Stage::Queued, false), (Stage::Waiting, false)];
        assert_eq!(suspected(&mut journal(&requests), Cause::Code(101)), [0, 1]);
    }

    #[test]
    fn a_suspect_is_given_up_once_it_alone_has_ended_engines_twice_in_the_same_way() {
        let mut journal = journal(&[(Stage::Running, false), (Stage::Waiting, false)]);
        // It is a suspect from the second death on. The fourth looks different, so what it did alone begins anew.
        for (cause, ended) in [(6, 0), (6, 0), (6, 0), (11, 0), (11, 1)] {
            if let Some(record) = journal.iter_mut().next() {
                record.turn(Stage::Running);
            }
            let aftermath = after_death(&mut journal, Cause::Signal(cause));
            assert_eq!(aftermath.ended.len(), ended, "signal {cause}");
        }
        assert_eq!(journal.len(), 1, "the other one waits");
    }
}
