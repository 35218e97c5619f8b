//! Whether the server gets on with what it has to do, whatever its `/health` says.
//!
//! Bytes of answers are progress, and so are the counters of llama-server's slots. A request that has given no bytes yet (a
//! long prompt), or gives them all at the end, may be computed without any of it to be seen: while the server's processes
//! use processors or read files such work is believed in, for as long as patience lasts. A server that was stopped, or
//! sleeps, does neither.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unfazed_host::activity::{self, Activity};

use super::life::Life;
use super::probe::{Asker, Slots};
use crate::supervisor::{Limits, Stall, Watchdog};

/// Share of a processor that a server at work uses at least; one that waits for nobody uses next to none.
const LEAST_CPU: f64 = 0.01;
/// Bytes from storage that are work.
const LEAST_READ: u64 = 1 << 20;
/// How often it is looked at, within the limit of silence.
const TICKS: u32 = 50;
/// Longest and shortest time between two looks.
const TICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// Parts of the limit of silence after which it is looked at more closely, and between two such looks.
const SILENCE: (u32, u32) = (4, 8);

/// What a look showed.
enum Sign {
    /// Something was computed.
    Moved,
    /// It works, on something that cannot be seen.
    Works,
    /// Nothing.
    Nothing,
}

/// What was seen before.
struct Look {
    moved: u64,
    since: Instant,
    looked: Instant,
    slots: Option<Slots>,
    activity: Option<(Instant, Activity)>,
}

/// How to watch.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    pub(super) life: &'a Life,
    pub(super) asker: Asker<'a>,
    /// The server has llama-server's slots.
    pub(super) slots: bool,
    /// Work that is not seen is believed in, whether or not a request is such.
    pub(super) hidden: bool,
    pub(super) limits: Limits,
}

impl Watch<'_> {
    /// Waits for `work`, or until nothing has moved for too long: why.
    pub(super) async fn over<T>(self, work: impl Future<Output = T>) -> Result<T, String> {
        let mut work = std::pin::pin!(work);
        let every = (self.limits.stall / TICKS).clamp(TICK.0, TICK.1);
        let mut clock = tokio::time::interval(every);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut dog, begun) = (Watchdog::new(self.limits), Instant::now());
        let mut look =
            Look { moved: self.life.moved(), since: begun, looked: begun, slots: None, activity: None };
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                _ = clock.tick() => {}
            }
            match look.again(&self).await {
                Sign::Moved => dog.progress(begun.elapsed()),
                Sign::Works => {
                    let ms = u64::try_from(look.since.elapsed().as_millis()).unwrap_or(u64::MAX);
                    dog.waiting("work that gives no bytes", ms, begun.elapsed());
                }
                Sign::Nothing => {}
            }
            match dog.tick(true, begun.elapsed()) {
                None => {}
                Some(Stall::Silent(time)) => {
                    return Err(format!("nothing moved for {:.1} s (--stall-ms)", time.as_secs_f64()));
                }
                Some(Stall::Waited(_, time)) => {
                    let seconds = time.as_secs_f64();
                    return Err(format!("no answer came of {seconds:.1} s of work (--patience)"));
                }
            }
        }
    }
}

impl Look {
    async fn again(&mut self, watch: &Watch<'_>) -> Sign {
        let moved = watch.life.moved();
        if moved != std::mem::replace(&mut self.moved, moved) {
            self.since = Instant::now();
            self.slots = None;
            self.activity = None;
            return Sign::Moved;
        }
        let stall = watch.limits.stall;
        if self.since.elapsed() < stall / SILENCE.0 || self.looked.elapsed() < stall / SILENCE.1 {
            return Sign::Nothing;
        }
        self.looked = Instant::now();
        let hidden = watch.hidden || watch.life.has_hidden_work();
        if watch.slots
            && let Some(slots) = watch.asker.slots(watch.life, stall / SILENCE.1).await
        {
            let idle = slots.is_idle();
            let moved = self.slots.as_ref().is_some_and(|before| *before != slots);
            self.slots = Some(slots);
            if moved {
                return Sign::Moved;
            }
            if !idle {
                // Its loop turns, and nothing that it has gets on.
                return Sign::Nothing;
            }
        }
        if hidden && self.works(watch.life.pid).await { Sign::Works } else { Sign::Nothing }
    }

    /// Whether its processes do anything.
    async fn works(&mut self, group: u32) -> bool {
        let now = tokio::task::spawn_blocking(move || activity::of_group(group)).await;
        let Ok(Some(now)) = now else { return false };
        let Some((at, before)) = self.activity.replace((Instant::now(), now)) else { return false };
        let cpu = now.cpu.saturating_sub(before.cpu).as_secs_f64();
        let read = now.read_bytes.saturating_sub(before.read_bytes);
        !now.stopped && (cpu >= LEAST_CPU * at.elapsed().as_secs_f64() || read >= LEAST_READ)
    }
}

/// Waits until a server has requests, or none.
pub(super) async fn until_busy(life: &Arc<Life>, busy: bool) {
    let mut state = life.busy();
    // The sender is in `life`.
    let _ = state.wait_for(|now| *now == busy).await;
}
