//! `cargo xtask perplexity`: how well models predict a text, beside llama.cpp's `llama-perplexity`.
//!
//! Counted as llama.cpp counts it: the text is cut into windows of as many tokens as the context has, and each token of a
//! window's second half, but for its first, is predicted from all that stand before it in the window. Where a model wants
//! one, BOS takes the place of a window's first token.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use http_body_util::BodyExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use unfazed_formats::Checkpoint;
use unfazed_tokenizer::{SpecialText, Tokenizer};

use crate::server::{self, Server};

/// Perplexity of the release build on a text, for one model file after the other, as a table.
///
/// Build first: cargo build --release. Example:
///   cargo xtask perplexity --text text.txt --peer llama.cpp/build/bin/llama-perplexity model-*.gguf
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// GGUF files
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// Text to predict
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Most tokens of the text; whole windows are taken
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    tokens: usize,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 512)]
    context: usize,
    /// llama.cpp's llama-perplexity, for the same files and text
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
    /// Compute threads of both programs
    #[arg(long, short)]
    threads: Option<usize>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.context >= 4, "--context {}: a window has at least 4 tokens", arguments.context);
    let text = std::fs::read_to_string(&arguments.text)
        .with_context(|| format!("cannot read {}", arguments.text.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("| model | unfazed | llama.cpp | difference |\n| --- | --- | --- | --- |");
    for model in &arguments.models {
        let windows = arguments.windows(model, &text)?;
        let ours = runtime.block_on(arguments.measure(model, &windows))?;
        let name = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy();
        match &arguments.peer {
            Some(peer) => {
                let theirs = arguments.measure_peer(peer, model, windows.len())?;
                let difference = (ours / theirs - 1.0) * 100.0;
                println!("| {name} | {ours:.4} | {theirs:.4} | {difference:+.2} % |");
            }
            None => println!("| {name} | {ours:.4} | | |"),
        }
    }
    Ok(())
}

impl Arguments {
    /// The text in windows, as the model's tokenizer cuts it.
    fn windows(&self, model: &Path, text: &str) -> Result<Vec<Vec<u32>>> {
        let checkpoint = Checkpoint::open(model)?;
        let tokenizer = Tokenizer::new(&checkpoint.tokenizer, checkpoint.config.vocab)?;
        let tokens = tokenizer.encode(text, SpecialText::Plain, true)?;
        let bos = tokenizer.bos().filter(|_| tokenizer.wants_bos());
        let count = tokens.len().min(self.tokens) / self.context;
        ensure!(
            count > 0,
            "{} has {} tokens, less than one window of {}",
            self.text.display(),
            tokens.len(),
            self.context
        );
        let window = |tokens: &[u32]| {
            let mut window = tokens.to_vec();
            if let (Some(first), Some(bos)) = (window.first_mut(), bos) {
                *first = bos;
            }
            window
        };
        Ok(tokens.chunks_exact(self.context).take(count).map(window).collect())
    }

    async fn measure(&self, model: &Path, windows: &[Vec<u32>]) -> Result<f64> {
        let mut command = Command::new(Server::program()?);
        command.arg("serve").arg("--model").arg(model).args(["--context", &self.context.to_string()]);
        command.args(["--threads", &server::threads(self.threads).to_string()]);
        let server = Server::start(command)?;
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} windows, {eta} left")?;
        let progress = ProgressBar::new(windows.len() as u64).with_style(style);
        let first = self.context / 2 + 1;
        let (mut sum, mut count) = (0.0, 0);
        for window in windows {
            let body = json!({"prompt": window, "max_tokens": 0, "echo": true, "logprobs": 0});
            let answer = server.completion(&body).await?.into_body().collect().await?.to_bytes();
            let answer: Value = serde_json::from_slice(&answer)?;
            let Some(logprobs) = answer["choices"][0]["logprobs"]["token_logprobs"].as_array() else {
                bail!("the server answered {answer}")
            };
            for logprob in logprobs.get(first..self.context).context("too few log probabilities")? {
                sum -= logprob.as_f64().context("a log probability is no number")?;
                count += 1;
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok((sum / f64::from(count)).exp())
    }

    fn measure_peer(&self, peer: &Path, model: &Path, windows: usize) -> Result<f64> {
        let output = Command::new(peer)
            .args(["--ctx-size", &self.context.to_string(), "--chunks", &windows.to_string()])
            .args(["--threads", &server::threads(self.threads).to_string()])
            .arg("--file")
            .arg(&self.text)
            .arg("--model")
            .arg(model)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", peer.display()))?;
        let printed =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let estimate = printed.iter().find_map(|text| {
            let (_, rest) = text.split_once("Final estimate: PPL = ")?;
            rest.split_whitespace().next()?.parse().ok()
        });
        estimate.with_context(|| format!("{} printed no estimate: {}", peer.display(), printed[1]))
    }
}
