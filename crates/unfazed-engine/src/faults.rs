//! Faults of the device: what is done about each, and what is left of keys and values afterwards.

use std::sync::Arc;
use std::time::Duration;

use unfazed_device::{Device, DeviceError, Fault};
use unfazed_fault::{Action, Class, Decision, Policy};
use unfazed_store::{Clock, Wait, WaitObserver};
use unfazed_wire::{FaultReport, ToFront};

use crate::Engine;
use crate::clock::milliseconds;
use crate::kept::Found;

/// Engines of one machine share no device queue, so waits need not be spread.
const CHANCE: f64 = 0.5;

/// What was tried so far.
#[derive(Default)]
pub(crate) struct Faults {
    policy: Policy,
    /// Steps since the last fault that went well.
    good: u32,
    /// Classes whose faults are not overcome yet.
    open: Vec<Class>,
    /// Nothing can be computed in this process any more.
    pub(crate) over: bool,
    /// Is told of waits.
    pub(crate) waits: Option<Arc<dyn WaitObserver>>,
}

impl Faults {
    /// Goes on where an earlier engine ended: how often each class had come.
    pub(crate) fn go_on(&mut self, troubles: &[(Class, u32)], now: Duration) {
        for &(class, attempts) in troubles {
            for _ in 0..attempts.min(u32::from(u8::MAX)) {
                self.decide(class, now);
            }
        }
    }

    pub(crate) fn decide(&mut self, class: Class, now: Duration) -> Decision {
        self.good = 0;
        if !self.open.contains(&class) {
            self.open.push(class);
        }
        self.policy.decide(class, now, CHANCE)
    }

    /// A step was verified.
    pub(crate) fn went_well(&mut self) {
        self.good = self.good.saturating_add(1);
        if self.good >= Policy::GOOD_STEPS {
            self.open.drain(..).for_each(|class| self.policy.recovered(class));
        }
    }

    fn wait(&self, clock: &dyn Clock, class: Class, time: Duration) {
        if time.is_zero() {
            return;
        }
        let what = || format!("the device to recover ({})", class.name());
        let _wait = self.waits.as_deref().map(|waits| Wait::new(waits, what()));
        clock.sleep(time);
    }
}

impl<D: Device> Engine<D> {
    /// A step's work was lost. Mends the device, or sees that another process must. Sequences stand where they stood before
    /// the step, or further back if keys and values are gone.
    pub(crate) fn fault(&mut self, fault: Fault, begun: Duration) -> ToFront {
        let Fault { class, mut evidence } = fault;
        let Decision { mut action, attempt, wait, .. } = self.faults.decide(class, self.clock.now());
        tracing::warn!(class = class.name(), action = action.name(), attempt, "{evidence}");
        let mut positions = 0;
        if matches!(action, Action::RetryStep | Action::RebuildDevice) {
            self.faults.wait(&*self.clock, class, wait);
            match self.renew(class) {
                Ok(lost) => positions = lost,
                Err(error) => {
                    evidence = format!("{evidence}; then {error}");
                    action = Action::NewEngine;
                }
            }
        }
        self.faults.over |= !matches!(action, Action::RetryStep | Action::RebuildDevice);
        let cost_ms = milliseconds(begun, self.clock.now());
        ToFront::Fault(FaultReport { class, evidence, action, attempt, cost_ms, positions })
    }

    /// Makes the device anew. Returns how many positions have to be computed again: what was written after the last
    /// verified step counts for nothing, and what was written before is believed if its digests say so.
    fn renew(&mut self, class: Class) -> Result<usize, DeviceError> {
        self.device.rebuild(class)?;
        let mut lost = 0;
        for sequence in self.scheduler.running() {
            let found = match (&self.kept, &sequence.pages) {
                (Some(kept), Some(pages)) => {
                    kept.verify(&mut self.device, &sequence.tokens, pages.all(), sequence.computed)?
                }
                _ => Found::default(),
            };
            if found.positions < sequence.computed {
                lost += sequence.computed - found.positions;
                sequence.rewind(&found);
            }
        }
        Ok(lost)
    }

    /// No device can be made in this process any more: it is to end, and another one goes on.
    pub fn is_over(&self) -> bool {
        self.faults.over
    }
}
