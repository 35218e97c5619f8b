//! Flags that several commands share, each declared once.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the model, logs |
//! | `gpu.rs` | layers on GPUs |
//! | `gpu_lock.rs` | the machine-wide lock of a GPU |
//! | `memory.rs` | memory, experts in it, types of keys and values |
//! | `sandbox.rs` | rights that the engine gives up |
//! | `threads.rs` | compute threads and their processors |
//! | `words.rs` | the words of other servers for these flags |

mod gpu;
mod gpu_lock;
mod memory;
mod sandbox;
mod threads;
mod words;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use unfazed_kernels::Isa;
use unfazed_plan::{Settings, Tokens};

use self::memory::{Choice, chosen};

pub(crate) use gpu::{GpuChoice, GpuFlags};
pub(crate) use gpu_lock::GpuLockFlags;
pub(crate) use memory::{CacheFlags, ExpertFlags, MemoryFlags};
pub(crate) use sandbox::SandboxFlags;
pub(crate) use threads::{Placement, ProcessorFlags, ThreadFlags};
pub(crate) use words::rewrite;

/// Which model and how much of it at once.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelFlags {
    /// A GGUF file (the first of a split one) or a Hugging Face directory; without it, the built-in demo model
    #[arg(short, long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,

    /// Longest prompt and answer of one request together, in tokens, as 8192 or 8k
    #[arg(short, long, value_name = "TOKENS", value_parser = parse_count, aliases = words::aliases("context"))]
    pub(crate) context: Option<usize>,

    /// Requests computed side by side (also -np)
    #[arg(long, value_name = "N", aliases = words::aliases("parallel"))]
    pub(crate) parallel: Option<usize>,

    /// Most prompt tokens computed in one step (also -ub): smaller lets running answers flow more evenly, larger reads
    /// experts less often where they are streamed [default: auto]
    #[arg(long, value_name = "TOKENS|auto", value_parser = parse_chunk, aliases = words::aliases("prefill-chunk"))]
    prefill_chunk: Option<Choice<usize>>,

    #[command(flatten)]
    pub(crate) cache: CacheFlags,

    /// Instruction set [default: UNFAZED_ISA, or the fastest one here; all give the same bits]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Isa::ALL.map(Isa::name)))]
    pub(crate) isa: Option<String>,

    #[command(flatten)]
    memory: MemoryFlags,

    #[command(flatten)]
    pub(crate) experts: ExpertFlags,

    #[command(flatten)]
    pub(crate) gpu: GpuFlags,

    #[command(flatten)]
    pub(crate) threads: ThreadFlags,
}

impl ModelFlags {
    /// What the plan needs to know.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            context: self.context.map(Tokens),
            parallel: self.parallel,
            chunk: chosen(&self.prefill_chunk).map(Tokens),
            threads: self.threads.threads,
            batch_threads: self.threads.threads_batch,
            cache: self.cache.types(),
            gpu: self.gpu.settings(),
            ..self.memory.settings()
        }
    }

    /// The name of the instruction set to compute with, if one was said.
    pub(crate) fn isa(&self) -> anyhow::Result<Option<String>> {
        isa(self.isa.as_deref())
    }
}

/// Says the instruction set where `--isa` does not.
const ISA_VARIABLE: &str = "UNFAZED_ISA";

/// The name of the instruction set that `--isa` or the environment says, if one does.
pub(crate) fn isa(flag: Option<&str>) -> anyhow::Result<Option<String>> {
    named_isa(flag, std::env::var_os(ISA_VARIABLE).as_deref())
}

/// What the flag says, else the variable. An error says which of them named what this processor does not run.
fn named_isa(flag: Option<&str>, variable: Option<&OsStr>) -> anyhow::Result<Option<String>> {
    let (source, name) = match (flag, variable) {
        (Some(flag), _) => ("--isa", flag.into()),
        (None, Some(variable)) => (ISA_VARIABLE, variable.to_string_lossy()),
        (None, None) => return Ok(None),
    };
    Isa::choose(Some(&name)).with_context(|| format!("{source} says {name}"))?;
    Ok(Some(name.into_owned()))
}

/// Logs for people, on stderr.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Events and logs")]
pub(crate) struct LogFlags {
    /// What is logged on stderr: off, error, warn, info, debug, trace, or as crate=level,crate=level
    #[arg(long, value_name = "LEVEL", env = "UNFAZED_LOG", value_parser = crate::logging::parse_filter)]
    pub(crate) log: Option<String>,

    /// How logs are written on stderr
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl LogFlags {
    /// What is logged, with `default` where nothing was said.
    pub(crate) fn filter<'a>(&'a self, default: &'a str) -> &'a str {
        self.log.as_deref().unwrap_or(default)
    }

    /// The same flags for the engine's command line.
    pub(crate) fn for_engine(&self, default: &str) -> [OsString; 4] {
        let format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        ["--log", self.filter(default), "--log-format", format].map(OsString::from)
    }
}

/// A number of tokens: `8192`, or `8k` for 8 times 1024.
fn parse_count(text: &str) -> Result<usize, String> {
    let (digits, times) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let count: usize = digits.parse().map_err(|_| "not a number of tokens such as 8192 or 8k".to_owned())?;
    count.checked_mul(times).ok_or_else(|| "too large".to_owned())
}

fn parse_chunk(text: &str) -> Result<Choice<usize>, String> {
    Choice::parse(text, parse_count).map_err(|error| format!("{error}, and not auto"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_set_that_does_not_run_here_is_refused_by_where_it_was_named() {
        assert!(matches!(named_isa(None, None), Ok(None)));
        assert!(
            matches!(named_isa(Some("reference"), Some("avx3".as_ref())), Ok(Some(name)) if name == "reference")
        );
        assert!(matches!(named_isa(None, Some(Isa::best().name().as_ref())), Ok(Some(_))));
        let error = named_isa(None, Some("avx3".as_ref())).map_err(|error| format!("{error:#}"));
        assert!(
            error.is_err_and(|error| error.contains("UNFAZED_ISA says avx3") && error.contains("reference"))
        );
    }

    #[test]
    fn counts_may_be_given_in_binary_thousands() {
        assert_eq!(parse_count("8192"), Ok(8192));
        assert_eq!(parse_count("8k"), Ok(8192));
        assert!(parse_count("8kk").is_err());
        assert!(parse_count("-1").is_err());
        assert!(parse_count("99999999999999999999k").is_err());
        assert!(parse_count("18446744073709551615k").is_err());
    }
}
