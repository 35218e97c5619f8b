//! `cargo xtask bench`: speed of the real server on a model, side by side with llama.cpp's `llama-bench`.
//!
//! The two take turns within one run, since a shared machine changes its speed by the minute: only runs taken in turn
//! can be compared. Medians are printed, and the ratio of each round's pair.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::server::{self, Server};

/// Measure prompt and decode speed of the release build, beside llama.cpp if its llama-bench is given.
///
/// Build first: cargo build --release. Example:
///   cargo xtask bench moe.gguf --peer ~/llama.cpp/build/bin/llama-bench
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// GGUF file that both programs load
    model: PathBuf,
    /// llama.cpp's llama-bench
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
    /// More options for llama-bench, such as "--repack 0"; give it several times to measure several settings
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    peer_options: Vec<String>,
    /// Rounds; each measures everybody once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Prompt tokens
    #[arg(long, default_value_t = 512)]
    prompt: usize,
    /// Generated tokens
    #[arg(long, default_value_t = 128)]
    generate: usize,
    /// Compute threads of both programs
    #[arg(long, short)]
    threads: Option<usize>,
}

/// Tokens per second of one run.
#[derive(Clone, Copy)]
struct Speed {
    prompt: f64,
    decode: f64,
}

/// Runs the rounds and prints a table.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    arguments.run()
}

impl Arguments {
    fn run(&self) -> Result<()> {
        let threads = server::threads(self.threads);
        let mut command = Command::new(Server::program()?);
        command.arg("serve").args(["--threads", &threads.to_string()]).arg("--model").arg(&self.model);
        let server = Server::start(command)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut settings = self.peer_options.clone();
        if settings.is_empty() {
            settings.push(String::new());
        }
        let mut ours = Vec::new();
        let mut theirs = vec![Vec::new(); settings.len()];
        for round in 0..self.rounds {
            let speed = runtime.block_on(self.measure(&server, round))?;
            println!(
                "round {}: unfazed: prompt {:.1}, decode {:.1} tokens/s",
                round + 1,
                speed.prompt,
                speed.decode
            );
            ours.push(speed);
            let Some(peer) = &self.peer else { continue };
            for (options, results) in settings.iter().zip(&mut theirs) {
                let speed = self.measure_peer(peer, options, threads)?;
                println!(
                    "round {}: llama.cpp {options}: prompt {:.1}, decode {:.1} tokens/s",
                    round + 1,
                    speed.prompt,
                    speed.decode
                );
                results.push(speed);
            }
        }
        println!("\nmedian of {} rounds, {threads} threads, tokens/s:", self.rounds);
        println!("{:32} {:>10} {:>10} {:>14} {:>14}", "", "prompt", "decode", "ours/theirs", "ours/theirs");
        print_row("unfazed", &ours, None);
        for (options, results) in settings.iter().zip(&theirs).filter(|(_, results)| !results.is_empty()) {
            print_row(&format!("llama.cpp {options}"), results, Some(&ours));
        }
        Ok(())
    }

    async fn measure(&self, server: &Server, round: usize) -> Result<Speed> {
        // Ids that any vocabulary has, other ones each round so that nothing is found computed already.
        let ids = |n: usize, salt: usize| -> Vec<usize> {
            (0..n).map(|i| 100 + (i * 37 + salt * 101) % 5000).collect()
        };
        let prompt = complete(server, &ids(self.prompt, round), 1).await?;
        let decode = complete(server, &ids(1, round), self.generate).await?;
        ensure!(
            decode["predicted_n"] == json!(self.generate),
            "the model generated another number of tokens: {decode}"
        );
        Ok(Speed {
            prompt: number(&prompt, "prompt_per_second")?,
            decode: number(&decode, "predicted_per_second")?,
        })
    }

    fn measure_peer(&self, peer: &Path, options: &str, threads: usize) -> Result<Speed> {
        let output = Command::new(peer)
            .args(["--output", "json", "--repetitions", "1", "--threads", &threads.to_string()])
            .args(["--n-prompt", &self.prompt.to_string(), "--n-gen", &self.generate.to_string()])
            .args(options.split_whitespace())
            .arg("--model")
            .arg(&self.model)
            .stderr(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", peer.display()))?;
        ensure!(output.status.success(), "{} {options} ended with {}", peer.display(), output.status);
        let tests: Vec<Value> =
            serde_json::from_slice(&output.stdout).context("llama-bench printed no JSON")?;
        let speed = |field: &str| {
            let test = tests.iter().find(|test| test[field].as_u64().is_some_and(|n| n > 0));
            number(test.unwrap_or(&Value::Null), "avg_ts")
        };
        Ok(Speed { prompt: speed("n_prompt")?, decode: speed("n_gen")? })
    }
}

fn number(value: &Value, field: &str) -> Result<f64> {
    value[field].as_f64().with_context(|| format!("no {field} in {value}"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print_row(name: &str, speeds: &[Speed], ours: Option<&[Speed]>) {
    let prompt = median(speeds.iter().map(|s| s.prompt).collect());
    let decode = median(speeds.iter().map(|s| s.decode).collect());
    print!("{name:32} {prompt:>10.1} {decode:>10.1}");
    if let Some(ours) = ours {
        let ratio =
            |of: fn(&Speed) -> f64| median(ours.iter().zip(speeds).map(|(a, b)| of(a) / of(b)).collect());
        print!(" {:>14.2} {:>14.2}", ratio(|s| s.prompt), ratio(|s| s.decode));
    }
    println!();
}

/// The `timings` of a completion that ignores ends of text.
async fn complete(server: &Server, prompt: &[usize], max_tokens: usize) -> Result<Value> {
    let body = json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true});
    let answer = server.completion(&body).await?.into_body().collect().await?.to_bytes();
    let answer: Value = serde_json::from_slice(&answer)?;
    ensure!(answer["timings"].is_object(), "the server answered {answer}");
    Ok(answer["timings"].clone())
}
