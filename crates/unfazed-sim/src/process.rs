//! An engine process whose parts fail as its front's fault plan says.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use unfazed_device::{Batch, CpuDevice, DeviceError, PlacedDevice};
use unfazed_engine::gpus::{Layout, placed};
use unfazed_engine::{EngineError, Parts};
use unfazed_fault::{Class, Origin};
use unfazed_store::{Storage, SystemClock};
use unfazed_wire::Start;

use crate::device::{SimDevice, Steps};
use crate::plan::FaultPlan;
use crate::storage::SimStorage;

/// What an engine that ends by itself says.
const EXIT_CODE: i32 = 3;

/// As [`unfazed_engine::run`].
///
/// # Errors
///
/// The same.
pub fn run(socket: UnixStream, locked: bool) -> Result<(), EngineError> {
    let link = socket.try_clone().map_err(unfazed_wire::link::LinkError::from)?;
    unfazed_engine::process::run_with(socket, locked, SimParts { link })
}

struct SimParts {
    link: UnixStream,
}

impl Parts for SimParts {
    type Device = SimDevice<PlacedDevice, Planned>;

    fn device(
        &self,
        start: &Start,
        cpu: CpuDevice,
        layout: &Layout<'_>,
    ) -> Result<Self::Device, DeviceError> {
        let refused = DeviceError::Setup;
        let link = self.link.try_clone().map_err(|error| refused(error.to_string()))?;
        let plan = plan(start).map_err(refused)?.unwrap_or_default();
        let bug = plan.bug;
        let planned = Planned { plan, engine: start.engine, cpu_alone: start.cpu_alone, step: 0, link };
        let device = SimDevice::new(placed(start, cpu, layout)?, planned, Box::new(SystemClock::new()));
        Ok(match bug {
            Some(bug) => device.with_bug(bug),
            None => device,
        })
    }

    fn storage(&self, start: &Start, local: Arc<dyn Storage>) -> Result<Arc<dyn Storage>, String> {
        let engine = start.engine;
        Ok(match plan(start)?.filter(FaultPlan::disturbs_reads) {
            Some(plan) => Arc::new(SimStorage::new(local, move |read| plan.at_read(engine, read))),
            None => local,
        })
    }
}

fn plan(start: &Start) -> Result<Option<FaultPlan>, String> {
    let parse = |text: &String| FaultPlan::parse(text).map_err(|error| format!("--fault-plan: {error}"));
    start.fault_plan.as_ref().map(parse).transpose()
}

/// Follows a plan, step by step. What happens to a process happens here; the rest is the device's.
struct Planned {
    plan: FaultPlan,
    engine: u64,
    /// There is no device that could fail.
    cpu_alone: bool,
    step: u64,
    link: UnixStream,
}

impl Steps for Planned {
    fn next(&mut self, batch: &Batch) -> Option<Class> {
        self.step = self.step.saturating_add(1);
        if self.plan.abort_on_token.is_some_and(|token| batch.rows.iter().any(|row| row.token == token)) {
            tracing::error!("aborting, as the fault plan wants it");
            std::process::abort();
        }
        let class = self.plan.at_step(self.engine, self.step)?;
        if class.origin() == Origin::Device {
            return (!self.cpu_alone).then_some(class);
        }
        tracing::warn!(class = class.name(), step = self.step, "a fault, as the fault plan wants it");
        match class {
            Class::Killed => std::process::abort(),
            Class::Exited => std::process::exit(EXIT_CODE),
            Class::Stalled => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            Class::WireBroken => {
                let _ = self.link.shutdown(Shutdown::Both);
                None
            }
            #[expect(clippy::panic, reason = "a bug of ours is to be acted out")]
            Class::Bug => panic!("a bug, as the fault plan wants it"),
            class => Some(class),
        }
    }
}
