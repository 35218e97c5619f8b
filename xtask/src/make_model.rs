//! `cargo xtask make-model`

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};
use unfazed_formats::gguf::{Value, read_header};
use unfazed_formats::source::FileSource;
use unfazed_formats::{FileId, ModelConfig};
use unfazed_testkit::shape::Preset;
use unfazed_testkit::{Mix, RouterSkew, SyntheticModel, vocabulary};

/// Key of the vocabulary.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// Write a synthetic model as GGUF: true layer shapes, random weights, a real vocabulary.
///
/// The model answers nonsense, but it computes as much as the real one and all its activations stay finite: it is
/// for measuring speed and for trying limits. Random quants go to disk as blocks, a slice at a time, so memory
/// stays small however large the file is. The bytes depend on the arguments and the seed alone.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Shape of the model: tiny ones (a few MB) for tests, the others after real models
    #[arg(long, value_parser = PossibleValuesParser::new(Preset::ALL.map(Preset::name)))]
    preset: String,
    /// Block formats, as quantisers name the mixes: norms and routers stay F32; below 6 bits the output is Q6_K;
    /// *_k_m gives the values and down projections of some layers Q6_K
    #[arg(long, value_parser = PossibleValuesParser::new(Mix::ALL.map(|mix| mix.name())))]
    quant: String,
    /// GGUF file whose tokenizer is copied [default: the demo model of this repository]
    #[arg(long, value_name = "FILE")]
    vocab_from: Option<PathBuf>,
    /// File to write
    #[arg(long, value_name = "FILE", required_unless_present = "stats")]
    out: Option<PathBuf>,
    /// What the weights are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Let routers prefer some experts, others in each layer: the n-th most used gets a share of tokens in proportion
    /// to 1/n^A, up to 45 % of them. 0 is flat; with 1, a tenth of qwen3-30b-a3b's experts get nearly half of all uses. For
    /// measuring caches; it changes the routers' weights and nothing else [default: flat]
    #[arg(long, value_name = "A", allow_negative_numbers = true)]
    router_skew: Option<f64>,
    /// Threads that make weights; the file is the same for any number [default: all cores]
    #[arg(long)]
    threads: Option<usize>,
    /// Print sizes as JSON (bytes of the file, and bytes and weights that a token needs); writes nothing unless
    /// --out is given as well
    #[arg(long)]
    stats: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let tokenizer = tokenizer(arguments.vocab_from.as_deref())?;
    let vocab = match tokenizer.iter().find(|(key, _)| key == TOKENS) {
        Some((_, Value::Array(tokens))) => tokens.len(),
        _ => anyhow::bail!("the file of --vocab-from has no {TOKENS}"),
    };
    // clap let only known names through.
    let preset = Preset::from_name(&arguments.preset).context("unknown preset")?;
    let mix = Mix::from_name(&arguments.quant).context("unknown quant")?;
    let config = preset.config(vocab);
    let model = SyntheticModel {
        name: format!("synthetic {} {}", preset.name(), mix.name()),
        router_skew: arguments
            .router_skew
            .map(|exponent| router_skew(exponent, preset, &config))
            .transpose()?,
        config,
        mix,
        tokenizer,
        seed: arguments.seed,
    };
    if arguments.stats {
        println!("{}", serde_json::to_string_pretty(&model.stats())?);
    }
    match &arguments.out {
        Some(out) => write(&model, out, arguments.threads),
        None => Ok(()),
    }
}

fn router_skew(exponent: f64, preset: Preset, config: &ModelConfig) -> anyhow::Result<RouterSkew> {
    let flag = || format!("--router-skew {exponent} with --preset {}", preset.name());
    let experts =
        config.experts.context("the preset has no experts: leave the skew out").with_context(flag)?;
    RouterSkew::new(exponent, &experts).with_context(flag)
}

fn tokenizer(from: Option<&Path>) -> anyhow::Result<Vec<(String, Value)>> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/stories-moe-29m-Q4_0.gguf");
    let path = from.unwrap_or(&demo);
    let shown = || path.display().to_string();
    let file = File::open(path).with_context(shown)?;
    let source = FileSource::new(shown(), file).with_context(shown)?;
    Ok(vocabulary::copied_metadata(&read_header(&source, FileId(0))?))
}

fn write(model: &SyntheticModel, out: &Path, threads: Option<usize>) -> anyhow::Result<()> {
    let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let style = "{wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(style)?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let started = Instant::now();
    model.write(out, threads, &|bytes, len| {
        bar.set_length(len);
        bar.inc(bytes);
    })?;
    let bytes = bar.position();
    bar.finish_and_clear();
    println!("{}: {bytes} bytes in {:.1} s", out.display(), started.elapsed().as_secs_f64());
    Ok(())
}
