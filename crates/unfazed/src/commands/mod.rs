//! One file a command, and the choice between them.

mod bench;
mod cache_replay;
mod calibrate;
mod doctor;
mod engine;
mod guard;
mod guarded;
mod health;
mod plan;
mod restart;
mod run;
mod serve;
mod template;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::failure::OutputClosed;
use crate::flags;
use crate::stderr::Stderr;

const EXAMPLES: &str = "\
Examples:
  unfazed serve                          serve the built-in demo model on http://127.0.0.1:8080
  unfazed serve -m model.gguf -c 8192    serve a model of your own
  unfazed run \"Tell me a story.\"         one answer, then the end
  unfazed run                            a chat in the terminal
  echo question | unfazed run            works in pipes
  unfazed plan -m model.gguf             what of it fits into memory here
  unfazed bench -m model.gguf            how fast a model is here
  unfazed doctor                         what of this machine should be changed

`unfazed help COMMAND` says more about each.";

/// An LLM server for mixture-of-experts models with an OpenAI-compatible API.
#[derive(Debug, Parser)]
#[command(
    name = "unfazed",
    version,
    long_version = LONG_VERSION,
    after_help = EXAMPLES,
    arg_required_else_help = true,
    max_term_width = 100,
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over HTTP, for any OpenAI client
    Serve(Box<serve::ServeArgs>),
    /// Chat in the terminal, with a model or with a running server
    Run(Box<run::RunArgs>),
    /// Replace a running server's program without dropping a request
    Restart(restart::RestartArgs),
    /// Show what would be in memory, and how fast it should be, without loading anything
    Plan(Box<plan::PlanArgs>),
    Bench(Box<bench::BenchArgs>),
    /// Measure this machine's memory and arithmetic, or show what was measured
    Calibrate(Box<calibrate::CalibrateArgs>),
    /// Say what of this machine should be changed and how, and measure where models are stored
    Doctor(doctor::DoctorArgs),
    /// Say whether a server answers
    Health(health::HealthArgs),
    /// After a kernel panic of a GPU driver: may work begin, what happened (metal-guard's commands)
    Guard(guard::GuardArgs),
    /// Replay a trace of experts: hit rate and speed of each policy and number of slots
    CacheReplay(cache_replay::CacheReplayArgs),
    /// The engine process, started by the server
    #[command(hide = true)]
    Engine(engine::EngineArgs),
    /// What becomes a guarded server, or ends it when its guard was killed
    #[command(hide = true)]
    Guarded(guarded::GuardedArgs),
    /// The process that renders chat templates, started by the server
    #[command(hide = true)]
    Template(template::TemplateArgs),
}

/// `--version`: the build id tells whether two programs are the same build.
const LONG_VERSION: &str = unfazed_wire::BUILD_ID;

/// Parses the command line and runs the command.
pub(crate) fn dispatch(args: impl Iterator<Item = OsString>, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    let args: Vec<OsString> = args.collect();
    let of_guard = args.get(1).is_some_and(|command| command == "guard");
    let cli = match parse(args.into_iter()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout, usage errors to stderr.
            error.print().context(OutputClosed)?;
            return Ok(ExitCode::from(match error.exit_code() {
                0 => 0,
                _ if of_guard => guard::USAGE,
                code => u8::try_from(code).unwrap_or(2),
            }));
        }
    };
    match cli.command {
        Command::Serve(args) => serve::run(&args, stderr),
        Command::Run(args) => run::run(&args, stderr),
        Command::Restart(args) => restart::run(&args, stderr),
        Command::Plan(args) => plan::run(&args, stderr),
        Command::Bench(args) => bench::run(&args, stderr),
        Command::Calibrate(args) => calibrate::run(&args, stderr),
        Command::Doctor(args) => doctor::run(&args, stderr),
        Command::Health(args) => health::run(&args, stderr),
        Command::Guard(args) => guard::run(&args, stderr),
        Command::CacheReplay(args) => cache_replay::run(&args, stderr),
        Command::Engine(args) => engine::run(&args, stderr),
        Command::Guarded(args) => guarded::run(&args),
        Command::Template(args) => template::run(&args, stderr),
    }
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(flags::rewrite(args))?;
    Cli::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Cli, clap::Error> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_mistyped_flag_is_a_usage_error_that_names_the_nearest_one() {
        let error = parse_line("unfazed serve --prot 80").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("'--port'"), "{error}");
    }

    #[test]
    fn a_mistyped_command_is_a_usage_error_that_names_the_nearest_one() {
        let error = parse_line("unfazed sreve").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("'serve'"), "{error}");
    }

    #[test]
    fn every_flag_has_a_line_of_help() {
        for command in Cli::command().get_subcommands() {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} of {}", argument.get_id(), command.get_name());
            }
        }
    }
}
