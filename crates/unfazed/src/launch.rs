//! From flags to a running server.

use std::future::Future;
use std::io;

use anyhow::Context;
use unfazed_formats::Checkpoint;
use unfazed_plan::ledger::Machine;
use unfazed_plan::{Bytes, Plan};
use unfazed_server::{EngineProgram, EventSink, ServeOptions, ServerError};
use unfazed_wire::Threads;

use crate::flags::{LogFlags, ModelFlags, Placement};
use crate::model;

/// A model that was opened and a plan that fits this machine.
pub(crate) struct Prepared {
    checkpoint: Checkpoint,
    plan: Plan,
    program: EngineProgram,
    threads: Threads,
}

/// Opens the model and plans. Everything that can be wrong with model or settings is found here, before any port is
/// bound or process started.
pub(crate) fn prepare(model: &ModelFlags, log: &LogFlags, default_log: &str) -> anyhow::Result<Prepared> {
    let checkpoint = model::open(model.model.as_deref())?;
    let memory = unfazed_host::memory().context("cannot find out how much memory is free")?;
    let placement = model.threads.processors.placement()?;
    let machine = machine(memory.available, &placement);
    let weights = unfazed_plan::needs::packed_weights(checkpoint.tensors.values());
    let plan = unfazed_plan::plan(&checkpoint.config, weights, &machine, &model.settings())?;
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    let mut program = EngineProgram::current().context("cannot find this program's own file")?;
    for argument in log.for_engine(default_log) {
        program = program.argument(argument);
    }
    let threads = placement.threads(plan.threads, plan.batch_threads);
    Ok(Prepared { checkpoint, plan, program, threads })
}

/// The machine's numbers for a plan.
pub(crate) fn machine(available: u64, placement: &Placement) -> Machine {
    Machine {
        available: Bytes(available),
        cores: placement.cores.threads(),
        most_threads: placement.cores.most_threads(),
    }
}

impl Prepared {
    /// What the model calls itself.
    pub(crate) fn model_name(&self) -> &str {
        &self.checkpoint.name
    }

    /// Serves until `shutdown` ends and running requests have.
    pub(crate) async fn serve(
        self,
        mut options: ServeOptions,
        events: EventSink,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let port = options.port;
        options.processors = self.threads.processors;
        options.pin = self.threads.pin;
        unfazed_server::serve(options, self.checkpoint, self.plan, self.program, events, shutdown)
            .await
            .map_err(|error| explain(error, port))
    }
}

/// Says what to do about the mistakes that everybody makes once.
fn explain(error: ServerError, port: u16) -> anyhow::Error {
    let advice = match &error {
        ServerError::Bind { address, source } => match source.kind() {
            io::ErrorKind::AddrInUse => format!(
                "port {port} is in use on {address}: stop the program that listens there, or choose another port \
                 with --port N (--port 0 takes any free one)"
            ),
            io::ErrorKind::PermissionDenied => {
                format!("port {port} may not be bound by this user: choose one from 1024 up with --port N")
            }
            io::ErrorKind::AddrNotAvailable => {
                format!(
                    "{address} is no address of this machine: --host takes one of its own, or 0.0.0.0 for all"
                )
            }
            _ => return error.into(),
        },
        _ => return error.into(),
    };
    anyhow::Error::msg(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named_with_what_to_do() {
        let source = io::Error::from(io::ErrorKind::AddrInUse);
        let error = ServerError::Bind { address: "127.0.0.1:8080".to_owned(), source };
        let text = explain(error, 8080).to_string();
        assert!(text.contains("port 8080 is in use") && text.contains("--port"), "{text}");
    }
}
