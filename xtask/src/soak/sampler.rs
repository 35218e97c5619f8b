//! Looks at the server once a second: its memory, and whether it knows sequences that no client has.

use std::time::{Duration, Instant};

use super::board::Board;
use super::census::MemorySeries;
use super::processes;
use super::program::Program;

const EVERY: Duration = Duration::from_secs(1);
/// The front answers questions about itself whatever the engine, memory and storage do.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    pub(super) resident: MemorySeries,
    pub(super) anonymous: MemorySeries,
    /// Most sequences that the server knew at a time.
    pub(super) most_sequences: u64,
}

/// Samples until it is dropped.
pub(super) async fn sample(program: &Program, board: &Board, samples: &std::sync::Mutex<Samples>) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let since = Instant::now();
        let known = tokio::time::timeout(ANSWERS_WITHIN, program.sequences()).await;
        let known = match known {
            Ok(Ok(known)) => known,
            Ok(Err(error)) => {
                lose(board, format!("/metrics: {error:#}"));
                continue;
            }
            Err(_) => {
                lose(board, format!("/metrics is not answered within {ANSWERS_WITHIN:?}"));
                continue;
            }
        };
        if let Some(how) = too_many(known, board.may_know(since)) {
            lose(board, how);
        }
        let mut samples = samples.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        samples.most_sequences = samples.most_sequences.max(known);
        if let Some((resident, anonymous)) = processes::memory(program.front()) {
            samples.resident.push(resident);
            samples.anonymous.push(anonymous);
        }
    }
}

/// Says that the server knows sequences that no client has any more.
fn too_many(known: u64, may_know: u64) -> Option<String> {
    (known > may_know).then(|| {
        format!(
            "the server knows {known} sequences, clients have or lately had {may_know}: some were not cancelled"
        )
    })
}

fn lose(board: &Board, how: String) {
    board.lose("the server's numbers", how);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_whose_client_left_and_that_goes_on_is_found() {
        assert_eq!(too_many(3, 3), None);
        assert!(too_many(4, 3).is_some());
    }
}
