//! How the guarded server has fared, for those who ask.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use unfazed_fault::Decision;

use crate::Exit;
use crate::supervisor::Cause;

/// Faults that are told of.
const RECENT: usize = 10;
/// A process that was ready for so long is a good one.
pub(super) const STEADY: Duration = Duration::from_secs(60);
/// Shortest and longest time after which a client that was turned away is told to try again.
const RETRY: (u32, u32) = (1, 60);

/// What is known so far.
#[derive(Debug, Default)]
pub(super) struct Standing {
    pub(super) ever_ready: bool,
    /// Processes started after another one's end.
    pub(super) restarts: u64,
    /// Ends in a row without progress, but for those that came from outside.
    pub(super) attempt: u32,
    pub(super) pid: Option<u32>,
    /// Requests that went on in another process.
    pub(super) resumed: u64,
    /// Of those, the ones whose streams had begun.
    pub(super) streams_resumed: u64,
    /// Requests that could not go on.
    pub(super) lost: u64,
    last_exit: Option<(Cause, Exit)>,
    faults: VecDeque<Fault>,
    /// When the last process was ready, and how long that had taken.
    ready: Option<Instant>,
    load: Duration,
}

#[derive(Debug)]
struct Fault {
    decision: Decision,
    evidence: String,
    at: Instant,
}

impl Standing {
    pub(super) fn ready(&mut self, load: Duration) {
        self.ever_ready = true;
        self.ready = Some(Instant::now());
        self.load = load;
    }

    pub(super) fn died(&mut self, cause: Cause, exit: Exit) {
        self.last_exit = Some((cause, exit));
        self.pid = None;
    }

    pub(super) fn fault(&mut self, decision: Decision, evidence: String) {
        self.faults.push_front(Fault { decision, evidence, at: Instant::now() });
        self.faults.truncate(RECENT);
    }

    /// It took several starts, and has not shown since that it lasts.
    fn is_shaky(&self) -> bool {
        self.attempt > 1 && self.ready.is_none_or(|ready| ready.elapsed() < STEADY)
    }

    /// Seconds after which a client should try again: about when the next process is ready.
    pub(super) fn retry_after(&self) -> u32 {
        u32::try_from(self.load.as_secs()).unwrap_or(u32::MAX).saturating_add(1).clamp(RETRY.0, RETRY.1)
    }

    /// As JSON. `is_ready`: requests are answered now. What its output said is for those alone who may use the server.
    pub(super) fn json(&self, is_ready: bool, evidence: bool) -> Value {
        let state = match (is_ready, self.is_shaky()) {
            (true, false) => "ready",
            (true, true) => "degraded",
            (false, _) if self.ever_ready => "restarting",
            (false, _) => "starting",
        };
        let last_exit = self
            .last_exit
            .map(|(cause, exit)| json!({"cause": cause.name(), "code": exit.code, "signal": exit.signal}));
        let faults = self.faults.iter().map(|fault| {
            let Decision { class, action, attempt, .. } = fault.decision;
            let mut told = json!({
                "class": class.name(),
                "action": action.name(),
                "attempt": attempt,
                "seconds_ago": fault.at.elapsed().as_secs_f64(),
            });
            if evidence && let Some(told) = told.as_object_mut() {
                told.insert("evidence".to_owned(), fault.evidence.clone().into());
            }
            told
        });
        json!({
            "state": state,
            "restarts": self.restarts,
            "last_exit": last_exit,
            "load_ms": self.load.as_secs_f64() * 1e3,
            "resumed_requests": self.resumed,
            "resumed_streams": self.streams_resumed,
            "lost_requests": self.lost,
            "faults": faults.collect::<Vec<_>>(),
        })
    }
}
