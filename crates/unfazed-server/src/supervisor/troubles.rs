//! Faults as the front sees them: what was decided about each, where on the ladders things are, and the last of them for
//! those who ask.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;
use unfazed_fault::{Action, Change, Class, Ladder, Origin, Policy, Quiet, classify};
use unfazed_wire::FaultReport;

use super::state::Shared;
use crate::events::Event;

/// Faults that `/health` tells of.
const RECENT: usize = 10;
/// Longest evidence that is kept and told.
const EVIDENCE_CHARS: usize = 500;
/// How many times the quiet time a climb that fails again and again is put off at most.
const LONGEST_QUIET: u32 = 36;

/// What can be given up, rung by rung.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rungs {
    /// Names of placements, the fullest first.
    pub(crate) placements: Vec<String>,
    /// The one of them on which the processor computes alone.
    pub(crate) cpu_alone: usize,
    /// The others have work on a GPU, with memory of its own.
    pub(crate) gpu: bool,
    /// Names of what memory holds, the most first.
    pub(crate) memory: Vec<String>,
    /// How long it must be quiet before the next rung up.
    pub(crate) quiet: Duration,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Troubles {
    begun: Instant,
    /// About engines that end.
    policy: Policy,
    /// Classes of the device that engines have not overcome, and how often each came.
    open: Vec<(Class, u32)>,
    /// Steps since the last of them that went well.
    good: u32,
    placement: Ladder,
    /// The placement's rung on which the processor computes alone.
    cpu_alone: usize,
    gpu: bool,
    memory: Ladder,
    recent: VecDeque<Recent>,
    /// The end of an engine that no other one has made good yet.
    unmended: Option<Unmended>,
    /// Engines started so far.
    engines: u64,
}

#[derive(Clone, Copy, Debug)]
struct Unmended {
    class: Class,
    action: Action,
    attempt: u32,
    since: Instant,
}

#[derive(Debug)]
struct Recent {
    report: FaultReport,
    at: Instant,
}

/// A fault, for people and programs that ask.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RecentFault {
    class: &'static str,
    /// Left out for those who need no key.
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<String>,
    action: &'static str,
    attempt: u32,
    seconds_ago: f64,
}

/// Where on a ladder things are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Rung {
    /// 0 is all of it.
    rung: usize,
    /// The lowest one.
    lowest: usize,
    name: String,
}

/// Both ladders.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Ladders {
    placement: Rung,
    memory: Rung,
}

impl Default for Troubles {
    fn default() -> Self {
        let ladder = || Ladder::new(Vec::<String>::new(), Quiet::default());
        Troubles {
            begun: Instant::now(),
            policy: Policy::default(),
            open: Vec::new(),
            good: 0,
            placement: ladder(),
            cpu_alone: 0,
            gpu: false,
            memory: ladder(),
            recent: VecDeque::new(),
            unmended: None,
            engines: 0,
        }
    }
}

impl Troubles {
    pub(super) fn set_up(&mut self, rungs: Rungs) {
        let longest = rungs.quiet.saturating_mul(LONGEST_QUIET);
        let quiet = Quiet { first: rungs.quiet, longest };
        self.cpu_alone = rungs.cpu_alone;
        self.gpu = rungs.gpu;
        self.placement = Ladder::new(rungs.placements, quiet);
        self.memory = Ladder::new(rungs.memory, quiet);
    }

    /// Another engine begins: its number, and what it must know of faults before it.
    pub(super) fn next_engine(&mut self) -> (u64, Vec<(Class, u32)>) {
        self.engines = self.engines.saturating_add(1);
        (self.engines, self.open.clone())
    }

    /// Rung of the placement.
    pub(super) fn placement(&self) -> usize {
        self.placement.rung()
    }

    /// The processor computes alone.
    pub(super) fn cpu_alone(&self) -> bool {
        self.placement.rung() >= self.cpu_alone
    }

    /// Rung of the memory.
    pub(super) fn memory(&self) -> usize {
        self.memory.rung()
    }

    /// Something was given up and not taken up again.
    pub(super) fn is_degraded(&self) -> bool {
        self.placement.rung() > 0 || self.memory.rung() > 0
    }

    pub(super) fn ladders(&self) -> Ladders {
        let rung = |ladder: &Ladder| Rung {
            rung: ladder.rung(),
            lowest: ladder.lowest(),
            name: ladder.name().to_owned(),
        };
        Ladders { placement: rung(&self.placement), memory: rung(&self.memory) }
    }

    /// The last faults, the newest first.
    pub(super) fn recent(&self, evidence: bool) -> Vec<RecentFault> {
        let tell = |Recent { report, at }: &Recent| RecentFault {
            class: report.class.name(),
            evidence: evidence.then(|| report.evidence.clone()),
            action: report.action.name(),
            attempt: report.attempt,
            seconds_ago: at.elapsed().as_secs_f64(),
        };
        self.recent.iter().rev().map(tell).collect()
    }

    /// A step of the engine was verified.
    pub(super) fn step_went_well(&mut self) {
        self.good = self.good.saturating_add(1);
        if self.good >= Policy::GOOD_STEPS {
            self.open.clear();
        }
    }

    /// The engine tells of a fault and of what it did about it.
    fn reported(&mut self, mut report: FaultReport) -> Vec<Event> {
        let FaultReport { class, action, attempt, .. } = report;
        if class.origin() == Origin::Device {
            self.good = 0;
            self.open.retain(|(other, _)| *other != class);
            self.open.push((class, attempt));
        }
        if matches!(action, Action::NewEngine | Action::StepDown) {
            self.unmended = Some(Unmended { class, action, attempt, since: Instant::now() });
        }
        report.evidence = report.evidence.chars().take(EVIDENCE_CHARS).collect();
        let cost_ms = Some(report.cost_ms);
        let mut events = self.note(report, cost_ms);
        if action == Action::StepDown {
            events.extend(self.step_down(class));
        }
        events
    }

    /// An engine ended otherwise. `progressed`: requests got on in it.
    fn ended(&mut self, class: Class, evidence: String, progressed: bool) -> Vec<Event> {
        if progressed {
            Class::ALL.into_iter().for_each(|class| self.policy.recovered(class));
        }
        // How long to wait is the keeper's decision, which counts deaths of every class together.
        let decision = self.policy.decide(class, self.begun.elapsed(), 0.0);
        let (action, attempt) = (decision.action, decision.attempt);
        self.unmended = Some(Unmended { class, action, attempt, since: Instant::now() });
        let report = FaultReport { class, evidence, action, attempt, cost_ms: 0.0, positions: 0 };
        let mut events = self.note(report, None);
        if action == Action::StepDown {
            events.extend(self.step_down(class));
        }
        events
    }

    fn note(&mut self, report: FaultReport, cost_ms: Option<f64>) -> Vec<Event> {
        let now = self.begun.elapsed();
        self.placement.disturbed(now);
        let event = Event::Fault {
            class: report.class.name(),
            evidence: report.evidence.clone(),
            action: report.action.name(),
            attempt: report.attempt,
            cost_ms,
            positions: report.positions,
        };
        self.recent.push_back(Recent { report, at: Instant::now() });
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        vec![event]
    }

    fn step_down(&mut self, class: Class) -> Option<Event> {
        let now = self.begun.elapsed();
        let memory = match class {
            // Less of ours makes no room on a GPU.
            Class::OutOfMemory if self.gpu && !self.cpu_alone() => None,
            Class::OutOfMemory | Class::OutOfMemoryKilled => self.memory.step_down(class, now),
            _ => None,
        };
        if let Some(change) = memory {
            return Some(event("memory", change));
        }
        // Memory of ours is no more on another device.
        let placement = (class != Class::OutOfMemoryKilled).then(|| self.placement.step_down(class, now));
        placement.flatten().map(|change| event("placement", change))
    }

    /// An engine is ready, perhaps in place of one that ended.
    fn mended(&mut self) -> Option<Event> {
        let Unmended { class, action, attempt, since } = self.unmended.take()?;
        Some(Event::Recovered {
            class: Some(class.name()),
            action: Some(action.name()),
            attempt: Some(attempt),
            cost_ms: Some(since.elapsed().as_secs_f64() * 1e3),
            ladder: None,
            from: None,
            to: None,
        })
    }

    /// It was quiet for long enough: what was given up last is taken up again by the next engine.
    fn climb(&mut self) -> Option<Event> {
        let now = self.begun.elapsed();
        let placement = self.placement.climb(now).map(|change| event("placement", change));
        placement.or_else(|| self.memory.climb(now).map(|change| event("memory", change)))
    }
}

fn event(ladder: &'static str, change: Change) -> Event {
    match change {
        Change::Degraded { from, to, why } => Event::Degraded { ladder, from, to, class: why.name() },
        Change::Recovered { from, to, .. } => Event::Recovered {
            class: None,
            action: None,
            attempt: None,
            cost_ms: None,
            ladder: Some(ladder),
            from: Some(from),
            to: Some(to),
        },
    }
}

impl Shared {
    /// An engine tells of a fault.
    pub(super) fn fault(&self, report: FaultReport) {
        let events = self.lock().troubles.reported(report);
        self.tell(events);
    }

    /// An engine waits for storage for so long that it is worth telling.
    pub(super) fn waits(&self, what: &str, ms: u64) {
        self.storage(what, Class::StorageSlow, Action::Wait, ms as f64);
    }

    /// A request needs weights that cannot be read, and ends.
    pub(super) fn cannot_read(&self, message: &str) {
        self.storage(message, Class::StorageTransient, Action::FailRequest, 0.0);
    }

    /// A fault of storage: the class that the text tells, or `otherwise`.
    fn storage(&self, text: &str, otherwise: Class, action: Action, cost_ms: f64) {
        let told = classify(text).class;
        let class = if told.origin() == Origin::Storage { told } else { otherwise };
        let evidence = text.to_owned();
        self.fault(FaultReport { class, evidence, action, attempt: 1, cost_ms, positions: 0 });
    }

    /// An engine ended and was to go on.
    pub(super) fn engine_fault(&self, class: Class, evidence: String, progressed: bool) {
        let events = self.lock().troubles.ended(class, evidence, progressed);
        self.tell(events);
    }

    /// An engine is ready.
    pub(super) fn mended(&self) {
        let event = self.lock().troubles.mended();
        self.tell(event);
    }

    /// Whether the next engine would have something again that this one lacks, as it was quiet for long enough.
    pub(super) fn climbs(&self) -> bool {
        let event = self.lock().troubles.climb();
        let climbs = event.is_some();
        self.tell(event);
        climbs
    }

    fn tell(&self, events: impl IntoIterator<Item = Event>) {
        let ladders = {
            let state = self.lock();
            [("placement", state.troubles.placement()), ("memory", state.troubles.memory())]
        };
        for (ladder, rung) in ladders {
            self.metrics.ladder(ladder, rung);
        }
        for event in events {
            match &event {
                Event::Fault { class, action, .. } => self.metrics.fault(class, action),
                Event::Degraded { ladder, from, to, class } => {
                    tracing::warn!(ladder, class, "degraded from {from} to {to}");
                }
                Event::Recovered { ladder: Some(ladder), from: Some(from), to: Some(to), .. } => {
                    tracing::info!(ladder, "recovered from {from} to {to}");
                }
                _ => {}
            }
            (self.events)(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn troubles() -> Troubles {
        let mut troubles = Troubles::default();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        troubles.set_up(Rungs {
            placements: names(&["device", "cpu"]),
            cpu_alone: 1,
            gpu: false,
            memory: names(&["full", "half", "least"]),
            quiet: Duration::ZERO,
        });
        troubles
    }

    fn report(class: Class, action: Action, attempt: u32) -> FaultReport {
        FaultReport { class, evidence: "said so".to_owned(), action, attempt, cost_ms: 1.5, positions: 3 }
    }

    #[test]
    fn the_next_engine_knows_what_the_last_one_did_not_overcome() {
        let mut troubles = troubles();
        assert_eq!(troubles.next_engine(), (1, vec![]));
        troubles.reported(report(Class::Timeout, Action::RebuildDevice, 1));
        troubles.reported(report(Class::Timeout, Action::NewEngine, 3));
        assert_eq!(troubles.next_engine(), (2, vec![(Class::Timeout, 3)]));
        (0..Policy::GOOD_STEPS).for_each(|_| troubles.step_went_well());
        assert_eq!(troubles.next_engine(), (3, vec![]));
    }

    #[test]
    fn memory_that_ran_out_takes_memory_and_another_fault_the_placement() {
        let mut troubles = troubles();
        let events = troubles.ended(Class::OutOfMemoryKilled, "signal 9".to_owned(), false);
        assert!(
            matches!(&events[1], Event::Degraded { ladder: "memory", from, to, .. } if from == "full" && to == "half")
        );
        let events = troubles.reported(report(Class::Timeout, Action::StepDown, 4));
        assert!(matches!(&events[1], Event::Degraded { ladder: "placement", to, .. } if to == "cpu"));
        assert_eq!((troubles.placement(), troubles.memory(), troubles.is_degraded()), (1, 1, true));
        assert!(matches!(troubles.climb(), Some(Event::Recovered { ladder: Some("placement"), .. })));
        assert!(matches!(troubles.climb(), Some(Event::Recovered { ladder: Some("memory"), .. })));
        assert!(troubles.climb().is_none() && !troubles.is_degraded());
    }

    #[test]
    fn memory_of_a_gpu_that_ran_out_takes_layers_off_it_before_memory_of_ours() {
        let mut troubles = Troubles::default();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        troubles.set_up(Rungs {
            placements: names(&["gpu:16", "gpu:8", "cpu"]),
            cpu_alone: 2,
            gpu: true,
            memory: names(&["full", "half"]),
            quiet: Duration::ZERO,
        });
        let mut to = || match &troubles.reported(report(Class::OutOfMemory, Action::StepDown, 1))[..] {
            [_, Event::Degraded { ladder, to, .. }] => (*ladder, to.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!([to(), to()], [("placement", "gpu:8".to_owned()), ("placement", "cpu".to_owned())]);
        assert_eq!(to(), ("memory", "half".to_owned()));
    }

    #[test]
    fn the_last_faults_are_told_the_newest_first() {
        let mut troubles = troubles();
        for attempt in 1..=12 {
            troubles.reported(report(Class::Discarded, Action::RebuildDevice, attempt));
        }
        let recent = troubles.recent(true);
        assert_eq!((recent.len(), recent[0].attempt, recent[9].attempt), (10, 12, 3));
    }

    #[test]
    fn what_an_end_cost_is_told_when_another_engine_is_ready() {
        let mut troubles = troubles();
        assert!(troubles.mended().is_none());
        troubles.ended(Class::Killed, "signal 9".to_owned(), true);
        let Some(Event::Recovered { class, cost_ms, .. }) = troubles.mended() else {
            panic!("nothing is told")
        };
        assert!(class == Some("engine_killed") && cost_ms.is_some());
        assert!(troubles.mended().is_none());
    }
}
