//! `unfazed bench`: how fast a model is computed here, in the words and tables of llama-bench and llama-batched-bench.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | flags, and which tests they ask for |
//! | `numbers.rs` | lists and ranges of numbers |
//! | `workload.rs` | what a test computes |
//! | `session.rs` | a model, its engines and its tests, one after the other |
//! | `measure.rs` | an engine in this process, and the time of its steps |
//! | `streaming.rs` | what a run read of experts that are not in memory |
//! | `limit.rs` | what the machine could do at most |
//! | `record.rs`, `print.rs` | results, and the forms they are written in |
//! | `kernels.rs` | matrix products alone |

mod kernels;
mod limit;
mod measure;
mod numbers;
mod print;
mod record;
mod session;
mod streaming;
mod workload;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use unfazed_formats::{BlockFormat, KvTypes};
use unfazed_kernels::Isa;

use self::numbers::{Numbers, Pair};
use self::print::{Columns, Format, Printer};
use self::session::{Session, Setup};
use self::workload::Workload;
use crate::failure::OutputClosed;
use crate::flags::{CacheFlags, LogFlags, MemoryFlags, Placement, ProcessorFlags};
use crate::stderr::Stderr;
use crate::{logging, machine, model};

const ABOUT: &str = "\
Measure how fast a model is computed, in the words of llama-bench

The engine's scheduler, model and kernels run in this process, without HTTP, tokenizer and templates: a prompt of \
random tokens (pp), answers of which each token is the most likely one (tg), or both (-pg). Several values by comma or \
by repeating a flag: every combination is measured. Ranges: 1-8, 1-9+2, 1-64*2.";

const EXAMPLES: &str = "\
Examples:
  unfazed bench                                  the demo model: pp512 and tg128
  unfazed bench -m model.gguf -p 512,2048 -n 64  a model of your own
  unfazed bench -m model.gguf -d 0,4096          behind so many earlier positions
  unfazed bench -m model.gguf -npl 1,4,16        several sequences at once
  unfazed bench -m model.gguf --limit            beside what this machine can do at most
  unfazed bench -o jsonl >> results.jsonl        for programs: md, json, jsonl, csv
  unfazed bench --kernels --formats Q4_0,Q4_K    matrix products alone, by format";

#[derive(Debug, Args)]
#[command(about = "Measure how fast a model is computed", long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// A GGUF file or a Hugging Face directory, or several; without it, the built-in demo model
    #[arg(short, long, value_name = "PATH", value_delimiter = ',', help_heading = "Tests")]
    model: Vec<PathBuf>,

    /// Prompt tokens; 0 for no such test [default: 512]
    #[arg(short = 'p', long, value_name = "N", help_heading = "Tests")]
    n_prompt: Vec<Numbers>,

    /// Generated tokens; 0 for no such test [default: 128]
    #[arg(short = 'n', long, value_name = "N", help_heading = "Tests")]
    n_gen: Vec<Numbers>,

    /// A prompt and then a generation in one test, such as 512,128 (also -pg)
    #[arg(long, value_name = "P,G", help_heading = "Tests")]
    n_prompt_gen: Vec<Pair>,

    /// Positions computed before the clock starts [default: 0]
    #[arg(short = 'd', long, value_name = "N", help_heading = "Tests")]
    n_depth: Vec<Numbers>,

    /// Sequences at once (also -npl): instead of the tests above, prompts of -p and answers of -n of so many sequences
    #[arg(long, value_name = "N", help_heading = "Tests")]
    n_parallel: Vec<Numbers>,

    /// How often each test is repeated, after one run that does not count
    #[arg(short, long, value_name = "N", default_value_t = 5, help_heading = "Tests",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,

    /// Measure the first run as well
    #[arg(long, help_heading = "Tests")]
    no_warmup: bool,

    /// Measure this machine's memory and dot products beside each test, and print the share of the limit that was reached
    #[arg(long, help_heading = "Tests")]
    limit: bool,

    /// Measure matrix products of every format instead of a model
    #[arg(long, help_heading = "Tests",
          conflicts_with_all = ["model", "n_prompt", "n_gen", "n_prompt_gen", "n_depth", "n_parallel", "limit", "output"])]
    kernels: bool,

    /// The formats of --kernels, such as Q4_0,Q4_K [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "kernels", help_heading = "Tests",
          value_parser = kernels::parse_format)]
    formats: Vec<BlockFormat>,

    /// Most tokens that are handed over at once: bounds -ub [default: 2048]
    #[arg(short, long, value_name = "N", help_heading = "Engine")]
    batch_size: Vec<Numbers>,

    /// Most rows of a step (also -ub) [default: 512]
    #[arg(long, value_name = "N", help_heading = "Engine")]
    ubatch_size: Vec<Numbers>,

    #[command(flatten)]
    cache: CacheFlags,

    #[command(flatten)]
    memory: MemoryFlags,

    /// Instruction set [default: the fastest one here; --kernels: all that run here]
    #[arg(long, value_name = "NAME", help_heading = "Engine",
          value_parser = PossibleValuesParser::new(Isa::ALL.map(Isa::name)))]
    isa: Option<String>,

    /// Compute threads [default: one for each physical core that is no efficiency core]
    #[arg(short, long, value_name = "N", help_heading = "Threads")]
    threads: Vec<Numbers>,

    /// Compute threads of steps with several rows (also -tb) [default: as --threads]
    #[arg(long, value_name = "N", help_heading = "Threads")]
    threads_batch: Option<usize>,

    #[command(flatten)]
    processors: ProcessorFlags,

    /// How results are written
    #[arg(short, long, value_name = "FORMAT", default_value = "md", help_heading = "Output")]
    output: Format,

    /// Say on stderr what is measured, even if nobody looks
    #[arg(long, help_heading = "Output")]
    progress: bool,

    /// Say on stderr what each repetition took, and what it read of experts
    #[arg(short, long, help_heading = "Output")]
    verbose: bool,

    #[command(flatten)]
    log: LogFlags,
}

pub(crate) fn run(args: &BenchArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::CHAT, stderr)?;
    let placement = args.processors.placement()?;
    let isa = machine::isa(args.isa.as_deref())?;
    if args.kernels {
        let threads = args.threads(&placement)?.into_iter().max().unwrap_or(1);
        let isas = Isa::ALL.into_iter().filter(|other| other.available());
        let isas: Vec<Isa> = isas.filter(|other| args.isa.is_none() || *other == isa).collect();
        let formats = match &args.formats[..] {
            [] => BlockFormat::all().collect(),
            named => named.to_vec(),
        };
        kernels::run(
            &isas,
            &formats,
            &placement.threads(threads, threads),
            super::calibrate::read_bytes(),
            stderr,
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let tests = args.tests()?;
    let setups = args.setups(&placement)?;
    let session =
        Session { args, placement: &placement, isa, stderr, machine: machine::calibrated(isa, &placement) };
    let mut printer = Printer::new(io::stdout().lock(), args.output, args.columns(&setups));
    let models: Vec<Option<PathBuf>> = match &args.model[..] {
        [] => vec![None],
        paths => paths.iter().cloned().map(Some).collect(),
    };
    for path in &models {
        let checkpoint = model::open(path.as_deref())?;
        session.model(&checkpoint, path.as_deref(), &tests, &setups, &mut printer)?;
    }
    printer.end().context(OutputClosed)?;
    Ok(ExitCode::SUCCESS)
}

/// A test: one measurement, or two of several sequences that make one line.
enum Test {
    Single(Workload),
    Batched { prompt: Workload, answer: Workload },
}

impl Test {
    fn workloads(&self) -> Vec<Workload> {
        match self {
            Test::Single(work) => vec![*work],
            Test::Batched { prompt, answer } => vec![*prompt, *answer],
        }
    }
}

impl BenchArgs {
    /// The tests, in the order of llama-bench: for each depth prompts, then generations, then both.
    fn tests(&self) -> anyhow::Result<Vec<Test>> {
        let prompts = Numbers::all(&self.n_prompt, &[512]);
        let answers = Numbers::all(&self.n_gen, &[128]);
        let parallel = Numbers::all(&self.n_parallel, &[]);
        if !parallel.is_empty() {
            return batched(&prompts, &answers, &parallel);
        }
        let mut tests = Vec::new();
        for depth in Numbers::all(&self.n_depth, &[0]) {
            let mut add = |prompt, generate| {
                if prompt + generate > 0 {
                    tests.push(Test::Single(Workload { prompt, generate, depth, parallel: 1 }));
                }
            };
            prompts.iter().for_each(|prompt| add(*prompt, 0));
            answers.iter().for_each(|generate| add(0, *generate));
            self.n_prompt_gen.iter().for_each(|Pair(prompt, generate)| add(*prompt, *generate));
        }
        if tests.is_empty() {
            bail!("nothing to measure: -p, -n or -pg must be above 0");
        }
        Ok(tests)
    }

    /// The combinations of threads and step sizes; those of one engine stand together.
    fn setups(&self, placement: &Placement) -> anyhow::Result<Vec<Setup>> {
        let mut setups = Vec::new();
        for threads in self.threads(placement)? {
            for n_batch in Numbers::all(&self.batch_size, &[2048]) {
                for n_ubatch in Numbers::all(&self.ubatch_size, &[512]) {
                    if n_batch == 0 || n_ubatch == 0 {
                        bail!("-b and -ub: a step has at least 1 row");
                    }
                    let threads_batch = self.threads_batch.unwrap_or(threads);
                    // As in llama-bench, a step has no more rows than are handed over.
                    setups.push(Setup { threads, threads_batch, n_batch, n_ubatch: n_ubatch.min(n_batch) });
                }
            }
        }
        Ok(setups)
    }

    fn threads(&self, placement: &Placement) -> anyhow::Result<Vec<usize>> {
        let threads = Numbers::all(&self.threads, &[placement.cores.threads()]);
        let most = placement.cores.most_threads();
        let asked = threads.iter().copied().chain(self.threads_batch);
        if let Some(refused) = asked.into_iter().find(|count| *count == 0 || *count > most) {
            bail!(
                "{refused} threads: this process may use {most} processors, so 1 to {most} threads make sense"
            );
        }
        Ok(threads)
    }

    fn columns(&self, setups: &[Setup]) -> Columns {
        Columns {
            n_batch: !self.batch_size.is_empty(),
            n_ubatch: !self.ubatch_size.is_empty(),
            threads_batch: setups.iter().any(|setup| setup.threads != setup.threads_batch),
            cache_types: self.cache.types() != KvTypes::default(),
            limit: self.limit,
        }
    }
}

fn batched(prompts: &[usize], answers: &[usize], parallel: &[usize]) -> anyhow::Result<Vec<Test>> {
    if prompts.iter().chain(answers).chain(parallel).any(|count| *count == 0) {
        bail!("-npl measures prompts and answers of several sequences: -p, -n and -npl must be above 0");
    }
    let mut tests = Vec::new();
    for &prompt in prompts {
        for &generate in answers {
            tests.extend(parallel.iter().map(|&parallel| Test::Batched {
                prompt: Workload { prompt, generate: 0, depth: 0, parallel },
                answer: Workload { prompt: 0, generate, depth: prompt, parallel },
            }));
        }
    }
    Ok(tests)
}
