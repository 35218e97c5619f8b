//! From flags to a running server.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustix::fs::OFlags;
use unfazed_formats::Checkpoint;
use unfazed_plan::{Bytes, GpuPlan, Machine, Plan, Prediction, Settings, Weights};
use unfazed_server::{Control, EngineProgram, EventSink, ServeOptions, Served, ServerError, TakenOver};
use unfazed_store::experts::{PolicyKind, trace};
use unfazed_wire::Threads;

use crate::adapters::Found;
use crate::flags::{LogFlags, ModelFlags, SandboxFlags};
use crate::{machine, model};

/// How weights and KV pages lie in memory.
const LAYOUT: &str = env!("UNFAZED_LAYOUT");

/// A model that was opened and a plan that fits this machine.
pub(crate) struct Prepared {
    checkpoint: Checkpoint,
    plan: Plan,
    program: EngineProgram,
    threads: Threads,
    policy: PolicyKind,
    trace: Option<Arc<File>>,
}

/// Opens the model and plans. Everything that can be wrong with model or settings is found here, before any port is
/// bound or process started.
pub(crate) fn prepare(
    model: &ModelFlags,
    sandbox: &SandboxFlags,
    log: &LogFlags,
    default_log: &str,
    taken_over: Option<&TakenOver>,
) -> anyhow::Result<Prepared> {
    let checkpoint = model::open(model.model.as_deref())?;
    let placement = model.threads.processors.placement()?;
    let offered = taken_over.and_then(|front| front.plan(LAYOUT, &checkpoint));
    let plan = match offered {
        Some(plan) => plan,
        None => {
            let found = Found::find(model.gpu.choice(), model.gpu.settings().split)?;
            let isa = machine::isa(model.isa.as_deref())?;
            let mut machine = machine::for_plan(&placement, isa, &checkpoint, found)?;
            let held = Bytes(taken_over.map_or(0, TakenOver::held_bytes));
            machine.memory.free = machine.memory.free.saturating_add(held).min(machine.memory.total);
            plan(&checkpoint, &machine, &model.settings())?
        }
    };
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    for (what, prediction) in [("prompts", plan.prefill), ("one answer", plan.decode)] {
        if let Some(Prediction { tokens_per_second, bound, .. }) = prediction {
            tracing::info!(bound = bound.name(), "predicted for {what}: {tokens_per_second:.1} tokens/s");
        }
    }
    let mut program = EngineProgram::current().context("cannot find this program's own file")?;
    for argument in log.for_engine(default_log).into_iter().chain(sandbox.for_engine()) {
        program = program.argument(argument);
    }
    let threads = placement.threads(plan.threads, plan.batch_threads);
    let trace = trace(model.experts.expert_trace.as_deref(), &checkpoint)?;
    Ok(Prepared { checkpoint, plan, program, threads, policy: model.experts.expert_policy, trace })
}

/// A plan for this machine.
pub(crate) fn plan(checkpoint: &Checkpoint, machine: &Machine, settings: &Settings) -> anyhow::Result<Plan> {
    let weights = Weights::of(&checkpoint.config, checkpoint.tensors.values());
    Ok(unfazed_plan::plan(&checkpoint.config, &weights, machine, settings)?)
}

/// An empty file for the trace of experts: that it can be written is known before anything is loaded. What is there and no
/// earlier trace stays as it is.
fn trace(path: Option<&Path>, checkpoint: &Checkpoint) -> anyhow::Result<Option<Arc<File>>> {
    let Some(path) = path else { return Ok(None) };
    if checkpoint.config.experts.is_none() {
        bail!("--expert-trace: {} has no experts: leave it out", checkpoint.name);
    }
    let file = empty_trace(path).with_context(|| format!("--expert-trace {}", path.display()))?;
    Ok(Some(Arc::new(file)))
}

fn empty_trace(path: &Path) -> io::Result<File> {
    // Without waiting for the other end of a pipe, which then is refused.
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(
            "this is no regular file: a trace is written to a new file or over an earlier trace",
        ));
    }
    let mut start = Vec::new();
    file.by_ref().take(trace::MAGIC.len() as u64).read_to_end(&mut start)?;
    if !start.is_empty() && start != trace::MAGIC {
        return Err(io::Error::other("this file is no trace, so it is left as it is: name a new file"));
    }
    file.set_len(0)?;
    file.rewind()?;
    Ok(file)
}

impl Prepared {
    /// What the model calls itself.
    pub(crate) fn model_name(&self) -> &str {
        &self.checkpoint.name
    }

    /// Some of it is to be computed on a GPU that is no processor.
    pub(crate) fn uses_real_gpu(&self) -> bool {
        self.plan.gpu.as_ref().is_some_and(GpuPlan::is_real)
    }

    /// Serves until `shutdown` ends and running requests have.
    pub(crate) async fn serve(
        self,
        mut options: ServeOptions,
        events: EventSink,
        control: Control<impl Future<Output = ()> + Send + 'static>,
    ) -> anyhow::Result<Served> {
        let port = options.port;
        options.processors = self.threads.processors;
        options.pin = self.threads.pin;
        options.expert_policy = self.policy.name().to_owned();
        options.expert_trace = self.trace;
        options.layout = LAYOUT.to_owned();
        options.renderer = Some(self.program.renderer());
        unfazed_server::serve(options, self.checkpoint, self.plan, self.program, events, control)
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
