//! Where a sequence's time goes.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::Stage;

/// Times of a sequence so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    arrived: Instant,
    stage: Stage,
    since: Instant,
    queue: Duration,
    restart: Duration,
    running: Duration,
    /// Of the running time.
    storage: Duration,
    /// Engines that died while it was in them.
    engines_lost: u32,
}

/// The same as numbers. Shares are of the whole time, in per cent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Shares {
    total_ms: f64,
    queue_percent: f64,
    restart_percent: f64,
    storage_percent: f64,
    compute_percent: f64,
    engines_lost: u32,
}

impl Spent {
    pub(super) fn new(now: Instant) -> Spent {
        Spent {
            arrived: now,
            stage: Stage::Waiting,
            since: now,
            queue: Duration::ZERO,
            restart: Duration::ZERO,
            running: Duration::ZERO,
            storage: Duration::ZERO,
            engines_lost: 0,
        }
    }

    /// It comes to another stage; `begun`: some engine has begun it, so that it waits for another one.
    pub(super) fn turn(&mut self, stage: Stage, begun: bool, now: Instant) {
        let time = now.saturating_duration_since(self.since);
        match self.stage {
            Stage::Running => self.running += time,
            _ if begun && self.engines_lost > 0 => self.restart += time,
            _ => self.queue += time,
        }
        if self.stage == Stage::Running && stage == Stage::Waiting {
            self.engines_lost = self.engines_lost.saturating_add(1);
        }
        (self.stage, self.since) = (stage, now);
    }

    /// Its engine waited for storage in a step.
    pub(super) fn waited(&mut self, time: Duration) {
        self.storage = self.storage.saturating_add(time);
    }

    /// How the time until `now` divides.
    pub(crate) fn shares(mut self, now: Instant) -> Shares {
        self.turn(self.stage, self.engines_lost > 0, now);
        let total = now.saturating_duration_since(self.arrived);
        let percent = |part: Duration| 100.0 * part.as_secs_f64() / total.as_secs_f64().max(1e-9);
        let storage = self.storage.min(self.running);
        Shares {
            total_ms: total.as_secs_f64() * 1e3,
            queue_percent: percent(self.queue),
            restart_percent: percent(self.restart),
            storage_percent: percent(storage),
            compute_percent: percent(self.running - storage),
            engines_lost: self.engines_lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_time_goes_somewhere_and_to_one_place_alone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut spent = Spent::new(start);
        spent.turn(Stage::Queued, false, at(1));
        spent.turn(Stage::Running, false, at(2));
        spent.waited(Duration::from_secs(2));
        spent.turn(Stage::Waiting, true, at(7));
        spent.turn(Stage::Queued, true, at(8));
        spent.turn(Stage::Running, true, at(9));
        let shares = spent.shares(at(10));
        let all = [20.0, 20.0, 20.0, 40.0];
        let Shares { queue_percent, restart_percent, storage_percent, compute_percent, .. } = shares;
        assert_eq!([queue_percent, restart_percent, storage_percent, compute_percent], all);
        assert_eq!((shares.total_ms, shares.engines_lost), (10_000.0, 1));
    }
}
