//! From flags to a running server.

use std::future::Future;
use std::io;

use anyhow::{Context, bail};
use unfazed_formats::Checkpoint;
use unfazed_plan::{Machine, Plan, Prediction, Settings, StreamExperts, Weights};
use unfazed_server::{EngineProgram, EventSink, ServeOptions, ServerError};
use unfazed_wire::Threads;

use crate::flags::{LogFlags, ModelFlags};
use crate::{machine, model};

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
    let placement = model.threads.processors.placement()?;
    let machine = machine::for_plan(&placement, machine::isa(model.isa.as_deref())?, &checkpoint)?;
    let plan = plan(&checkpoint, &machine, &model.settings())?;
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    for (what, prediction) in [("prompts", plan.prefill), ("one answer", plan.decode)] {
        if let Some(Prediction { tokens_per_second, bound, .. }) = prediction {
            tracing::info!(bound = bound.name(), "predicted for {what}: {tokens_per_second:.1} tokens/s");
        }
    }
    let mut program = EngineProgram::current().context("cannot find this program's own file")?;
    for argument in log.for_engine(default_log) {
        program = program.argument(argument);
    }
    let threads = placement.threads(plan.threads, plan.batch_threads);
    Ok(Prepared { checkpoint, plan, program, threads })
}

/// A plan that the engine of this program can carry out: it keeps all experts in memory.
pub(crate) fn plan(checkpoint: &Checkpoint, machine: &Machine, settings: &Settings) -> anyhow::Result<Plan> {
    let weights = Weights::of(&checkpoint.config, checkpoint.tensors.values());
    let plan = unfazed_plan::plan(&checkpoint.config, &weights, machine, settings)?;
    if !plan.streams() {
        return Ok(plan);
    }
    if settings.stream_experts == StreamExperts::On || settings.expert_cache.is_some() {
        bail!(
            "this version computes only with all experts in memory: leave out --stream-experts and --expert-cache"
        );
    }
    // Less context, or a shorter chunk, may make room for all experts.
    let resident = Settings { stream_experts: StreamExperts::Off, ..*settings };
    unfazed_plan::plan(&checkpoint.config, &weights, machine, &resident).map_err(|refusal| {
        anyhow::Error::msg(refusal.condition)
            .context("this version computes only with all experts in memory, and they do not fit")
    })
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
