//! `unfazed plan`: what of a model would be in memory here, and how fast it should be. Reads headers alone.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | flags |
//! | `table.rs` | the plan for people |
//! | `json.rs` | the plan for programs |

mod json;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use unfazed_formats::Checkpoint;
use unfazed_plan::{Plan, Refusal, Weights};

use crate::adapters::Found;
use crate::failure::OutputClosed;
use crate::flags::{LogFlags, ModelFlags};
use crate::stderr::Stderr;
use crate::{logging, machine, model};

const EXAMPLES: &str = "\
Examples:
  unfazed plan -m model.gguf                       what fits here, and how fast
  unfazed plan -m model.gguf --memory 8GiB         with no more than 8 GiB
  unfazed plan -m model.gguf --expert-cache 2048   with 2048 experts in memory
  unfazed plan -m model.gguf -c 32k --strict       a context of 32k or a refusal
  unfazed plan -m model.gguf --json                for programs

Speeds are predicted once `unfazed calibrate` has measured this machine.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    model: ModelFlags,

    /// Write the plan, or the refusal, as JSON; docs/plan.md describes the keys
    #[arg(long, help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    log: LogFlags,
}

/// A plan and what it is of.
struct Planned<'a> {
    checkpoint: &'a Checkpoint,
    machine: &'a unfazed_plan::Machine,
    outcome: Result<Plan, Refusal>,
}

pub(crate) fn run(args: &PlanArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::CHAT, stderr)?;
    let checkpoint = &model::open(args.model.model.as_deref())?;
    let placement = args.model.threads.processors.placement()?;
    let found = Found::find(args.model.gpu.choice(), args.model.gpu.settings().split)?;
    let isa = machine::isa(args.model.isa.as_deref())?;
    let machine = &machine::for_plan(&placement, isa, checkpoint, found)?;
    let weights = Weights::of(&checkpoint.config, checkpoint.tensors.values());
    let outcome = unfazed_plan::plan(&checkpoint.config, &weights, machine, &args.model.settings());
    let planned = Planned { checkpoint, machine, outcome };
    let text = if args.json {
        serde_json::to_string_pretty(&json::report(&planned))? + "\n"
    } else {
        planned.outcome.as_ref().map_or(String::new(), |plan| table::text(&planned, plan))
    };
    io::stdout().write_all(text.as_bytes()).context(OutputClosed)?;
    planned.outcome?;
    Ok(ExitCode::SUCCESS)
}
