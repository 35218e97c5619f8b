//! When an engine has made no progress for too long.
//!
//! Progress is any message but a declared wait. A declared wait stops the clock while such messages keep coming, under a
//! limit of its own. An engine with nothing to do is not watched.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use unfazed_wire::ToFront;

/// An engine may be silent for this many times as long as it lately was between two messages.
const GAPS: u32 = 20;
/// Share of the limit below which a time between messages does not count: several messages tell of one step.
const GAP_SHARE: u32 = 1000;
/// Weight of the past in the moving average.
const PAST: u32 = 7;
/// A wait of this length is worth a line.
const WORTH_TELLING_MS: u64 = 1000;

/// How long an engine may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Silence, unless messages come far apart.
    pub(crate) stall: Duration,
    /// A declared wait.
    pub(crate) patience: Duration,
}

/// Why an engine is to be killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// It said nothing for so long.
    Silent(Duration),
    /// It waited for something outside for so long.
    Waited(String, Duration),
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stall::Silent(time) => write!(f, "it made no progress for {:.1} s", time.as_secs_f64()),
            Stall::Waited(what, time) => {
                write!(f, "it waited for {what} for {:.1} s (--storage-patience)", time.as_secs_f64())
            }
        }
    }
}

/// The clock of one engine. Times are counted from the engine's start.
#[derive(Debug)]
pub(crate) struct Watchdog {
    limits: Limits,
    /// Moving average of the time between messages.
    gap: Duration,
    /// When the engine was last heard, or last excused.
    heard: Duration,
    ticked: Duration,
    /// It has something to do: it loads, to begin with.
    busy: bool,
    wait: Option<Wait>,
    /// How long the engine said that it had waited, the last time; counts on over progress made by others.
    waited_ms: u64,
    /// That wait was told.
    told: bool,
}

#[derive(Debug)]
struct Wait {
    what: String,
    since: Duration,
}

impl Watchdog {
    pub(crate) fn new(limits: Limits) -> Watchdog {
        let zero = Duration::ZERO;
        Watchdog {
            limits,
            gap: zero,
            heard: zero,
            ticked: zero,
            busy: true,
            wait: None,
            waited_ms: 0,
            told: false,
        }
    }

    /// The engine said something.
    pub(crate) fn progress(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.heard);
        self.heard = now;
        if self.wait.take().is_none() && self.busy && gap >= self.limits.stall / GAP_SHARE {
            self.gap = if self.gap.is_zero() { gap } else { (self.gap * PAST + gap) / (PAST + 1) };
        }
    }

    /// The engine says that it has waited for `ms` milliseconds. True, once a wait, if that is worth a line.
    pub(crate) fn waiting(&mut self, what: &str, ms: u64, now: Duration) -> bool {
        self.heard = now;
        self.wait.get_or_insert_with(|| Wait { what: what.to_owned(), since: now });
        // Time that does not go on is another wait's.
        let told = self.told && ms > self.waited_ms;
        self.waited_ms = ms;
        self.told = told || ms >= WORTH_TELLING_MS;
        self.told && !told
    }

    /// To be called a few times within the limit, with whether the engine has something to do.
    pub(crate) fn tick(&mut self, busy: bool, now: Duration) -> Option<Stall> {
        let since_tick = now.saturating_sub(self.ticked);
        self.ticked = now;
        if !busy {
            self.busy = false;
            self.wait = None;
            return None;
        }
        // A tick this late means that this process did not run: stopped, or with the whole machine.
        let late = since_tick > self.limits.stall / 2;
        if late && let Some(wait) = &mut self.wait {
            wait.since += since_tick;
        }
        if late || !self.busy {
            self.busy = true;
            self.heard = now;
            return None;
        }
        let silent = now.saturating_sub(self.heard);
        match &self.wait {
            None => {
                let limit = self.limits.stall.max(self.gap.saturating_mul(GAPS));
                (silent >= limit).then_some(Stall::Silent(silent))
            }
            Some(_) if silent >= self.limits.stall => Some(Stall::Silent(silent)),
            Some(wait) => {
                let waited = now.saturating_sub(wait.since);
                (waited >= self.limits.patience).then(|| Stall::Waited(wait.what.clone(), waited))
            }
        }
    }
}

/// A watchdog at work: the engine's reader feeds it, a thread of its own reads it.
pub(super) struct Watch {
    dog: Mutex<Watchdog>,
    start: Instant,
    every: Duration,
    stall: OnceLock<Stall>,
}

impl Watch {
    pub(super) fn new(limits: Limits) -> Watch {
        let every = (limits.stall / 50).clamp(Duration::from_millis(5), Duration::from_millis(100));
        let dog = Mutex::new(Watchdog::new(limits));
        Watch { dog, start: Instant::now(), every, stall: OnceLock::new() }
    }

    /// Takes note of a message. True if it tells of a wait that is worth a line.
    pub(super) fn hear(&self, message: &ToFront) -> bool {
        let now = self.start.elapsed();
        if let ToFront::Waiting { what, ms } = message {
            return self.lock().waiting(what, *ms, now);
        }
        self.lock().progress(now);
        false
    }

    /// Watches until the other end of `ended` is dropped, or until the engine has stalled, when it calls `kill`.
    /// `busy` is asked at each tick whether the engine has something to do.
    pub(super) fn keep(&self, ended: &Receiver<()>, busy: impl Fn() -> bool, kill: impl FnOnce()) {
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(self.every) {
            let busy = busy();
            let stall = self.lock().tick(busy, self.start.elapsed());
            if let Some(stall) = stall {
                let _ = self.stall.set(stall);
                return kill();
            }
        }
    }

    /// Why the engine was killed, if it was.
    pub(super) fn stall(&self) -> Option<&Stall> {
        self.stall.get()
    }

    fn lock(&self) -> MutexGuard<'_, Watchdog> {
        self.dog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { stall: Duration::from_secs(5), patience: Duration::from_secs(60) };
    const TICK: u64 = 100;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Ticks from one time to another; the first stall and when.
    fn ticks(dog: &mut Watchdog, busy: bool, from: u64, to: u64) -> Option<(u64, Stall)> {
        (from..=to).step_by(TICK as usize).find_map(|ms| Some((ms, dog.tick(busy, at(ms))?)))
    }

    #[test]
    fn an_engine_that_never_says_a_word_is_stalled() {
        let mut dog = Watchdog::new(LIMITS);
        assert_eq!(ticks(&mut dog, true, 100, 9000), Some((5000, Stall::Silent(at(5000)))));
    }

    #[test]
    fn an_idle_engine_is_not_watched_and_its_clock_starts_with_its_next_work() {
        let mut dog = Watchdog::new(LIMITS);
        dog.progress(at(10));
        assert_eq!(ticks(&mut dog, false, 100, 100_000), None);
        assert_eq!(ticks(&mut dog, true, 100_100, 104_900), None);
        assert!(ticks(&mut dog, true, 105_000, 106_000).is_some());
    }

    #[test]
    fn an_engine_whose_messages_come_far_apart_may_be_silent_for_twenty_such_times() {
        let mut dog = Watchdog::new(LIMITS);
        for step in 1..=50 {
            // Two messages a step, as a step's tokens and its prompt's progress are.
            dog.progress(at(step * 1000));
            dog.progress(at(step * 1000 + 1));
            assert_eq!(ticks(&mut dog, true, step * 1000 + 100, step * 1000 + 900), None);
        }
        let (when, _) = ticks(&mut dog, true, 51_000, 100_000).unwrap();
        assert!((68_000..=71_000).contains(&when), "{when}");
    }

    #[test]
    fn a_declared_wait_stops_the_clock_under_its_own_limit_and_is_told_once() {
        let mut dog = Watchdog::new(LIMITS);
        let mut told = 0;
        let mut stall = None;
        for ms in (100..70_000).step_by(100) {
            told += u32::from(dog.waiting("a disk", ms - 100, at(ms)));
            stall = dog.tick(true, at(ms)).map(|stall| (ms, stall));
            if stall.is_some() {
                break;
            }
        }
        assert_eq!(stall, Some((60_100, Stall::Waited("a disk".to_owned(), at(60_000)))));
        assert_eq!(told, 1);
    }

    #[test]
    fn a_wait_that_is_declared_no_more_is_a_stall() {
        let mut dog = Watchdog::new(LIMITS);
        dog.waiting("a disk", 0, at(100));
        assert_eq!(ticks(&mut dog, true, 100, 9000), Some((5100, Stall::Silent(at(5000)))));
    }

    #[test]
    fn progress_ends_a_wait() {
        let mut dog = Watchdog::new(LIMITS);
        for ms in (100..200_000).step_by(100) {
            dog.waiting("a disk", 0, at(ms));
            if ms % 50_000 == 0 {
                dog.progress(at(ms));
            }
            assert_eq!(dog.tick(true, at(ms)), None);
        }
    }

    #[test]
    fn the_time_for_which_the_front_itself_was_stopped_does_not_count() {
        let mut dog = Watchdog::new(LIMITS);
        dog.progress(at(100));
        assert_eq!(ticks(&mut dog, true, 100, 3000), None);
        assert_eq!(dog.tick(true, at(500_000)), None, "stopped for minutes");
        assert_eq!(ticks(&mut dog, true, 500_100, 504_900), None);
        assert!(ticks(&mut dog, true, 505_000, 506_000).is_some());
        let mut dog = Watchdog::new(LIMITS);
        dog.waiting("a disk", 0, at(100));
        assert_eq!(dog.tick(true, at(100)), None);
        assert_eq!(dog.tick(true, at(500_000)), None);
        dog.waiting("a disk", 0, at(500_100));
        assert_eq!(dog.tick(true, at(500_100)), None);
    }

    proptest! {
        #[test]
        fn an_engine_that_speaks_within_the_limit_lives_and_one_that_falls_silent_is_found(
            gaps in prop::collection::vec((1u64..4900, prop::bool::ANY), 1..40),
        ) {
            let mut dog = Watchdog::new(LIMITS);
            let mut now = 0;
            for (gap, waits) in gaps {
                let next = now + gap;
                let first = now.next_multiple_of(TICK).max(TICK);
                prop_assert_eq!(ticks(&mut dog, true, first, next), None);
                now = next;
                if waits {
                    dog.waiting("a disk", 0, at(now));
                    dog.progress(at(now));
                } else {
                    dog.progress(at(now));
                }
            }
            let longest = LIMITS.stall.max(at(4900) * GAPS).as_millis() as u64;
            let first = now.next_multiple_of(TICK).max(TICK);
            let (found, _) = ticks(&mut dog, true, first, now + longest + 2 * TICK).unwrap();
            prop_assert!(found >= now + 5000);
        }
    }
}
