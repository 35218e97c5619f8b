//! How engines have fared, for `/health`.

use std::time::Instant;

use serde::Serialize;
use unfazed_wire::ReadyInfo;

use super::cause::Cause;
use super::life::STEADY;
use super::troubles::{Ladders, RecentFault};
use super::{Engine, Exit, Phase};
use crate::events::Gpu;

/// What the state keeps of it.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// An engine was ready.
    pub(super) ever_ready: bool,
    /// Engines started after another one's death.
    pub(super) restarts: u64,
    last_exit: Option<LastExit>,
    /// Bytes held by engines that could not be reaped.
    pub(super) struck_bytes: u64,
    /// Deaths in a row since anything progressed, but for those that came from outside.
    pub(super) attempt: u32,
    /// When the last engine was ready.
    ready: Option<Instant>,
    /// What that one computes on.
    partition: Option<Partition>,
}

impl Standing {
    pub(super) fn ready(&mut self, now: Instant, info: &ReadyInfo) {
        self.ready = Some(now);
        self.partition = Some(Partition::of(info));
    }

    /// The engine took several starts, and has not shown since that it lasts.
    fn is_shaky(&self) -> bool {
        self.attempt > 1 && self.ready.is_none_or(|ready| ready.elapsed() < STEADY)
    }

    pub(super) fn died(&mut self, cause: Cause, exit: Exit) {
        self.last_exit = Some(LastExit { cause: cause.name(), code: exit.code, signal: exit.signal });
    }
}

/// How the last engine that died did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LastExit {
    cause: &'static str,
    code: Option<i32>,
    signal: Option<i32>,
}

/// What the last engine that was ready computes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Partition {
    engine: &'static str,
    gpu_layers: usize,
    cpu_layers: usize,
    split_layers: usize,
    total_layers: usize,
    gpus: Vec<Gpu>,
}

impl Partition {
    fn of(info: &ReadyInfo) -> Partition {
        let placement = &info.placement;
        Partition {
            engine: placement.engine(),
            gpu_layers: placement.gpu_layers(),
            cpu_layers: placement.cpu_layers(),
            split_layers: placement.split_layers(),
            total_layers: placement.layers.len(),
            gpus: info.gpus.iter().map(Gpu::from).collect(),
        }
    }
}

/// How it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EngineState {
    /// Requests are computed.
    Ready,
    /// They are, with less memory than planned, one suspect at a time, or by an engine that took several starts.
    Degraded,
    /// They wait for the next engine.
    Restarting,
}

/// What `/health` says of a server that answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Health {
    state: EngineState,
    restarts: u64,
    last_exit: Option<LastExit>,
    struck_bytes: u64,
    partition: Option<Partition>,
    ladder: Ladders,
    /// The last faults, the newest first.
    faults: Vec<RecentFault>,
}

impl Engine {
    /// How it goes; `None` until an engine was ready for the first time.
    pub(crate) fn health(&self) -> Option<Health> {
        let state = self.shared.lock();
        let standing = &state.standing;
        let troubles = &state.troubles;
        let troubled = standing.struck_bytes > 0
            || standing.is_shaky()
            || state.has_suspects()
            || troubles.is_degraded();
        let engine = match (&*self.shared.phase.borrow(), troubled) {
            (Phase::Ready, false) => EngineState::Ready,
            (Phase::Ready, true) => EngineState::Degraded,
            _ => EngineState::Restarting,
        };
        let &Standing { restarts, last_exit, struck_bytes, .. } = standing;
        standing.ever_ready.then(|| Health {
            state: engine,
            restarts,
            last_exit,
            struck_bytes,
            partition: standing.partition.clone(),
            ladder: troubles.ladders(),
            faults: troubles.recent(false),
        })
    }
}
