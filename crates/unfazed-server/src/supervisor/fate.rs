//! What becomes of a request when its engine dies: the one place that decides it.

use super::{Exit, Interruption};
use crate::journal::{Record, Stage};

/// What follows for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It goes to the next engine.
    Wait,
    /// It ends with an error.
    End(Interruption),
}

/// Decides. An engine takes the requests it had with it; those that it never had are untouched by its death.
pub(super) fn after_death(record: &Record, exit: Exit) -> Fate {
    match record.stage {
        Stage::Waiting => Fate::Wait,
        Stage::Queued | Stage::Running => {
            let tokens = record.tokens.len();
            Fate::End(Interruption::EngineDied(format!(
                "the engine stopped unexpectedly ({exit}) after {tokens} tokens of this answer; another is started"
            )))
        }
    }
}
