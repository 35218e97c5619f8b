//! Tasks for developers. `cargo xtask --help` tells what there is.

mod bench;
mod damage;
mod fuzz_seeds;
mod journal_bench;
mod make_model;
mod perplexity;
mod resume_bench;
mod server;
mod simulate;
#[cfg(target_os = "linux")]
mod soak;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tasks for developers of unfazed.
///
/// Everything here is seeded: the same command makes the same bytes on every machine.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
#[command(after_long_help = "\
Examples:
  A 4 GB mixture-of-experts model in OLMoE's shape, to measure speed with:
    cargo xtask make-model --preset olmoe-7b --quant q4_0 --out olmoe.gguf
  The same with experts that are used more than others, to measure caches of experts with:
    cargo xtask make-model --preset olmoe-7b --quant q4_0 --router-skew 1 --out skewed.gguf
  What a model would take, without writing it:
    cargo xtask make-model --preset qwen3-30b-a3b --quant q4_k_m --stats
  Nineteen damaged copies of the demo model:
    cargo xtask damage models/stories-moe-29m-Q4_0.gguf damaged/
  Speed of the release build beside llama.cpp's:
    cargo xtask bench olmoe.gguf --peer llama.cpp/build/bin/llama-bench
  How long a stream stands still when its engine is killed:
    cargo xtask resume-bench --model olmoe.gguf --core-dumps
  How well quantised models predict a text:
    cargo xtask perplexity --text text.txt model-q4_0.gguf model-q8_0.gguf
  Whether any of 20,000 simulated worlds loses anything:
    cargo xtask simulate
  Whether anything is lost while engines are killed, memory runs out and storage fails:
    cargo xtask soak --seed 1 --minutes 30")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    MakeModel(make_model::Arguments),
    Damage(damage::Arguments),
    FuzzSeeds(fuzz_seeds::Arguments),
    Bench(bench::Arguments),
    ResumeBench(resume_bench::Arguments),
    JournalBench(journal_bench::Arguments),
    Perplexity(perplexity::Arguments),
    Simulate(simulate::Arguments),
    #[cfg(target_os = "linux")]
    Soak(soak::Arguments),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    SoakBallast(soak::ballast::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::MakeModel(arguments) => make_model::run(&arguments),
        Task::Damage(arguments) => damage::run(&arguments),
        Task::FuzzSeeds(arguments) => fuzz_seeds::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::ResumeBench(arguments) => resume_bench::run(&arguments),
        Task::JournalBench(arguments) => journal_bench::run(&arguments),
        Task::Perplexity(arguments) => perplexity::run(&arguments),
        Task::Simulate(arguments) => simulate::run(&arguments),
        #[cfg(target_os = "linux")]
        Task::Soak(arguments) => soak::run(&arguments),
        #[cfg(target_os = "linux")]
        Task::SoakBallast(arguments) => soak::ballast::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
