//! What follows from a fault.
//!
//! ```
//! use std::time::Duration;
//! use unfazed_fault::{Action, Class, Policy};
//!
//! let mut policy = Policy::default();
//! let second = Duration::from_secs(1);
//! assert_eq!(policy.decide(Class::Timeout, second, 0.5).action, Action::RebuildDevice);
//! assert_eq!(policy.decide(Class::SubmissionsIgnored, second, 0.5).action, Action::NewEngine);
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Backoff, Class};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Compute the step again as it was.
    RetryStep,
    /// Make another device in this process and compute the step again, after a time-out in shorter command buffers.
    RebuildDevice,
    /// Start another process.
    NewEngine,
    /// One rung down the [`Ladder`](crate::Ladder), in another process. At the lowest rung another process is all that is
    /// left, and enough: what the ladder takes away is what failed.
    StepDown,
    /// End the request with an error, and no other.
    FailRequest,
    /// Try again in place, as long as patience lasts.
    Wait,
    /// It is over, and not for this process to mend.
    Nothing,
}

impl Action {
    /// Its name in events.
    pub const fn name(self) -> &'static str {
        match self {
            Action::RetryStep => "retry_step",
            Action::RebuildDevice => "rebuild_device",
            Action::NewEngine => "new_engine",
            Action::StepDown => "step_down",
            Action::FailRequest => "fail_request",
            Action::Wait => "wait",
            Action::Nothing => "nothing",
        }
    }
}

/// When an action is preceded by a wait, which doubles up to the ceiling of [`Backoff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Never.
    No,
    /// From the second attempt on.
    Later,
    /// From the first on.
    First,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The class.
    pub class: Class,
    /// What is done at the first attempt, the second, and so on; the last is repeated. [`Action::Wait`] is repeated before
    /// what comes after it, until patience is spent.
    pub actions: &'static [Action],
    /// What it waits for.
    pub pause: Pause,
}

const fn row(class: Class, pause: Pause, actions: &'static [Action]) -> Row {
    Row { class, actions, pause }
}

/// The table.
#[rustfmt::skip]
pub const POLICY: [Row; Class::ALL.len()] = {
    use {Action::*, Class::*, Pause::*};
    [
        // The machine was down: whoever reads this reads a report of it.
        row(PrepareCountUnderflow, No,    &[Nothing]),
        row(PendingMemorySet,      No,    &[Nothing]),
        row(RemoveMemoryObject,    No,    &[Nothing]),
        row(ContextStoreTimeout,   No,    &[Nothing]),
        row(WatchdogNoCheckins,    No,    &[Nothing]),
        // Nothing works again in this process.
        row(SubmissionsIgnored,    Later, &[NewEngine, NewEngine, StepDown]),
        row(Hang,                  Later, &[NewEngine, NewEngine, StepDown]),
        // The same kernels in the same places are tried once more and not again.
        row(PageFault,             No,    &[RebuildDevice, StepDown]),
        row(DeviceLost,            Later, &[RebuildDevice, NewEngine, StepDown]),
        row(OutOfMemory,           No,    &[StepDown]),
        row(Timeout,               No,    &[RebuildDevice, RebuildDevice, NewEngine, StepDown]),
        row(Interactivity,         No,    &[RebuildDevice, RebuildDevice, NewEngine, StepDown]),
        row(InnocentVictim,        First, &[RetryStep, RetryStep, RebuildDevice, NewEngine, StepDown]),
        row(Discarded,             No,    &[RebuildDevice, NewEngine, StepDown]),
        row(DescriptorLeak,        No,    &[NewEngine]),
        row(CompletionAbort,       Later, &[NewEngine, NewEngine, StepDown]),
        row(CommandBufferFailed,   Later, &[RebuildDevice, NewEngine, StepDown]),
        row(OutOfMemoryKilled,     Later, &[StepDown]),
        row(BusError,              Later, &[NewEngine, NewEngine, StepDown]),
        row(StorageGone,           First, &[Wait, FailRequest]),
        row(StorageCorrupt,        No,    &[RetryStep, FailRequest]),
        row(StorageTransient,      First, &[Wait, FailRequest]),
        row(StorageSlow,           First, &[Wait, FailRequest]),
        row(NonFinite,             No,    &[RetryStep, FailRequest]),
        row(Stalled,               Later, &[NewEngine, NewEngine, StepDown]),
        row(WireBroken,            Later, &[NewEngine]),
        row(Bug,                   Later, &[NewEngine]),
        row(RunnerPanic,           Later, &[NewEngine, NewEngine, StepDown]),
        // Nobody's doing but of who sent the signal: the same again.
        row(Killed,                Later, &[NewEngine]),
        row(Exited,                Later, &[NewEngine, NewEngine, NewEngine, StepDown]),
        row(Unknown,               Later, &[NewEngine]),
    ]
};

impl Row {
    /// The row of a class.
    pub fn of(class: Class) -> &'static Row {
        const UNKNOWN: Row = row(Class::Unknown, Pause::Later, &[Action::NewEngine]);
        POLICY.iter().find(|row| row.class == class).unwrap_or(&UNKNOWN)
    }
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happened.
    pub class: Class,
    /// What to do.
    pub action: Action,
    /// How often this class came in a row, from 1.
    pub attempt: u32,
    /// How long to wait before it.
    pub wait: Duration,
}

/// Faults of a class, in a row.
#[derive(Debug)]
struct Trouble {
    class: Class,
    attempt: u32,
    since: Duration,
    last: Duration,
    backoff: Backoff,
    /// Attempts that were waits.
    waited: u32,
}

/// Remembers what was tried. Keep one for each thing that fails by itself: one for a device and its engine, one for a
/// file, and for what is a request's own ([`Class::NonFinite`]) one for each request; an idle one costs nothing.
#[derive(Debug)]
pub struct Policy {
    patience: Duration,
    quiet: Duration,
    troubles: Vec<Trouble>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy::new(Policy::PATIENCE, Policy::QUIET)
    }
}

impl Policy {
    /// So many steps in a row that go well overcome what a device had: then call [`Policy::recovered`].
    pub const GOOD_STEPS: u32 = 16;
    /// How long [`Action::Wait`] is repeated, unless told otherwise.
    pub const PATIENCE: Duration = Duration::from_secs(600);
    /// After how long without a class its next fault is a first one, unless told otherwise.
    pub const QUIET: Duration = Duration::from_secs(600);

    /// A policy that waits for storage for `patience`, and forgets a class after `quiet` without it.
    pub fn new(patience: Duration, quiet: Duration) -> Self {
        Policy { patience, quiet, troubles: Vec::new() }
    }

    /// What to do about a fault at `now`, a time since any fixed moment. `chance` is a random number from 0 to 1; waits
    /// are spread by it.
    pub fn decide(&mut self, class: Class, now: Duration, chance: f64) -> Decision {
        let (patience, quiet) = (self.patience, self.quiet);
        self.troubles.retain(|trouble| now.saturating_sub(trouble.last) < quiet);
        let row = Row::of(class);
        let trouble = self.trouble(class, now);
        trouble.attempt = trouble.attempt.saturating_add(1);
        trouble.last = now;
        let step = trouble.attempt.saturating_sub(1).saturating_sub(trouble.waited);
        let mut action = at(row.actions, step);
        if action == Action::Wait {
            if now.saturating_sub(trouble.since) < patience {
                trouble.waited = trouble.waited.saturating_add(1);
            } else {
                action = at(row.actions, step.saturating_add(1));
            }
        }
        if trouble.attempt == 1 && row.pause == Pause::First {
            // The first death of a back-off is followed by no wait.
            trouble.backoff.died(true, chance);
        }
        let wait = if row.pause == Pause::No { Duration::ZERO } else { trouble.backoff.died(true, chance) };
        // Once patience is spent, and for what cannot be mended, there is nothing to wait for.
        let ends = matches!(action, Action::FailRequest | Action::Nothing);
        Decision { class, action, attempt: trouble.attempt, wait: if ends { Duration::ZERO } else { wait } }
    }

    /// What failed works again: the next fault of this class is a first one.
    pub fn recovered(&mut self, class: Class) {
        self.troubles.retain(|trouble| trouble.class != class);
    }

    fn trouble(&mut self, class: Class, now: Duration) -> &mut Trouble {
        let at = self.troubles.iter().position(|trouble| trouble.class == class).unwrap_or_else(|| {
            let backoff = Backoff::default();
            self.troubles.push(Trouble { class, attempt: 0, since: now, last: now, backoff, waited: 0 });
            self.troubles.len() - 1
        });
        &mut self.troubles[at]
    }
}

/// The action of a step, of which the last is repeated.
fn at(actions: &[Action], step: u32) -> Action {
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    actions.get(step).or(actions.last()).copied().unwrap_or(Action::Nothing)
}
