//! Faults are struck here, and how long clients waited for the next token is measured.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::ballast::Ballast;
use super::board::Board;
use super::exit;
use super::faults::{Also, Class, Fault};
use super::memory_group::MemoryGroup;
use super::processes;
use super::program::Program;
use super::storage::Storage;

/// Longest wait for an engine, and for a token of it, after a fault.
const RECOVERY: Duration = Duration::from_secs(120);
/// Longest wait for the kernel to end somebody when memory has run out.
const OUT_OF_MEMORY: Duration = Duration::from_secs(10);
/// What is taken beyond the limit, in MiB.
const BEYOND: u64 = 64;
const MIB: u64 = 1 << 20;

/// What faults need.
pub(super) struct Striker<'a> {
    pub(super) program: &'a Program,
    pub(super) board: &'a Board,
    pub(super) storage: Option<&'a Storage>,
    /// The group with its limit in bytes.
    pub(super) memory: Option<(&'a MemoryGroup, u64)>,
}

/// A fault that was struck.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Blow {
    pub(super) class: &'static str,
    /// Tokens that clients had received in all.
    pub(super) at_token: u64,
    /// Until the next token after recovery.
    pub(super) to_next_token_ms: f64,
    /// Whether the engine ended by it.
    pub(super) engine_ended: bool,
}

impl Striker<'_> {
    /// Strikes and waits until clients receive tokens again. `Err` says what did not come back.
    pub(super) async fn strike(&self, fault: &Fault) -> Result<Blow> {
        let first = self.program.events.count();
        let engine = self.engine(None).await?;
        let at_token = self.board.received().tokens;
        let struck = Instant::now();
        let mut recovered = match fault.class.group() {
            "engine" => self.end_engine(engine, first, fault).await?,
            "memory" => self.squeeze(fault, engine).await?,
            _ => self.disturb_storage(fault, engine).await?,
        };
        let engine_ended = !processes::runs(engine);
        if engine_ended {
            recovered = recovered.max(self.ready_after(first).await?);
        }
        let token = self.token_after(recovered).await?;
        let to_next_token_ms = (token - struck).as_secs_f64() * 1e3;
        Ok(Blow { class: fault.class.name(), at_token, to_next_token_ms, engine_ended })
    }

    /// Waits for an engine other than the one that is known.
    async fn engine(&self, other_than: Option<u32>) -> Result<u32> {
        let started = Instant::now();
        loop {
            if let Some(engine) = self.program.engine().filter(|engine| Some(*engine) != other_than) {
                return Ok(engine);
            }
            if started.elapsed() > RECOVERY {
                bail!("no engine runs for {RECOVERY:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn end_engine(&self, engine: u32, first: usize, fault: &Fault) -> Result<Instant> {
        self.hit(engine, fault.class).await?;
        let exit = self.event(first, "engine_exit").await?;
        match fault.also {
            Also::KillLoading => {
                let next = self.engine(Some(engine)).await?;
                self.hit(next, Class::Kill).await?;
                let exit = self.event(exit + 1, "engine_exit").await?;
                self.ready_after(exit).await
            }
            Also::KillReady => {
                self.ready_after(exit).await?;
                let (again, next) = (self.program.events.count(), self.engine(Some(engine)).await?);
                self.hit(next, Class::Kill).await?;
                let exit = self.event(again, "engine_exit").await?;
                self.ready_after(exit).await
            }
            Also::Nothing | Also::KillMeanwhile => self.ready_after(exit).await,
        }
    }

    async fn hit(&self, engine: u32, class: Class) -> Result<()> {
        let signal = match class {
            Class::Segv => Signal::SEGV,
            Class::Abort => Signal::ABORT,
            Class::Bus => Signal::BUS,
            Class::Stop => {
                processes::signal_to(engine, Signal::STOP);
                return Ok(());
            }
            Class::Exit => {
                while processes::runs(engine)
                    && !tokio::task::spawn_blocking(move || exit::end(engine)).await?
                {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                return Ok(());
            }
            _ => Signal::KILL,
        };
        // The first SIGSEGV only takes away the handler that looks for stack overflows, so there are several.
        while processes::runs(engine) {
            processes::signal_to(engine, signal);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn squeeze(&self, fault: &Fault, engine: u32) -> Result<Instant> {
        let (group, limit) = self.memory.context("no memory group")?;
        let free = limit.saturating_sub(group.usage().context("the memory group has no usage")?) / MIB;
        if fault.class == Class::Squeeze {
            let ballast = Ballast::start(group, free.saturating_sub(fault.amount))?;
            tokio::time::sleep(Duration::from_millis(fault.hold_ms)).await;
            drop(ballast);
        } else {
            let mut ballast = Ballast::start(group, free + BEYOND + fault.amount)?;
            let started = Instant::now();
            while processes::runs(engine) && !ballast.has_ended() && started.elapsed() < OUT_OF_MEMORY {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Ok(Instant::now())
    }

    async fn disturb_storage(&self, fault: &Fault, engine: u32) -> Result<Instant> {
        let storage = self.storage.context("no storage")?;
        match fault.class {
            Class::Slow => storage.slow(true),
            Class::Stall => storage.stall(true),
            Class::Unmount => storage.vanish().await?,
            _ => storage.fail_reads(fault.amount as usize).await,
        }
        let hold = Duration::from_millis(fault.hold_ms);
        if fault.also == Also::KillMeanwhile {
            tokio::time::sleep(hold / 2).await;
            // It may not end before the storage answers again.
            processes::signal_to(engine, Signal::KILL);
            tokio::time::sleep(hold / 2).await;
        } else if fault.class != Class::ReadErrors {
            tokio::time::sleep(hold).await;
        }
        match fault.class {
            Class::Slow => storage.slow(false),
            Class::Stall => storage.stall(false),
            Class::Unmount => storage.come_back().await?,
            _ => {}
        }
        let now = Instant::now();
        if fault.also == Also::KillMeanwhile {
            self.until_ended(engine).await?;
        }
        Ok(now)
    }

    async fn until_ended(&self, engine: u32) -> Result<()> {
        let started = Instant::now();
        while processes::runs(engine) {
            ensure!(started.elapsed() < RECOVERY, "an engine that was killed still runs after {RECOVERY:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// The number of the next event of that name.
    async fn event(&self, first: usize, name: &str) -> Result<usize> {
        let event = self.program.events.wait(first, RECOVERY, |event| event["event"] == name).await;
        Ok(event.with_context(|| format!("no event {name} within {RECOVERY:?} of a fault"))?.0)
    }

    /// When the engine was ready that came after an event.
    async fn ready_after(&self, first: usize) -> Result<Instant> {
        let ready = self.program.events.wait(first, RECOVERY, |event| event["event"] == "engine_ready").await;
        Ok(ready.with_context(|| format!("no engine is ready within {RECOVERY:?} of a fault"))?.1)
    }

    /// When the first token came that came after a moment.
    async fn token_after(&self, moment: Instant) -> Result<Instant> {
        let mut received = self.board.watch();
        let next = received.wait_for(|received| received.last > moment);
        let token = tokio::time::timeout(RECOVERY, next).await;
        Ok(token.with_context(|| format!("no client got a token within {RECOVERY:?} of a recovery"))??.last)
    }
}
