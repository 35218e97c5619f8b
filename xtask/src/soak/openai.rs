//! Clients that use the OpenAI package: a Python program that gets jobs and tells what it got.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::answer::Answer;

/// What is told of each job, by its number. Dropped with the program's output, which ends those who wait.
type Jobs = Arc<Mutex<HashMap<u64, mpsc::UnboundedSender<Value>>>>;

/// The program; killed when dropped.
pub(super) struct OpenAi {
    _child: Child,
    stdin: tokio::sync::Mutex<ChildStdin>,
    jobs: Jobs,
    next: AtomicU64,
}

impl OpenAi {
    /// Starts the program for a server at a port.
    pub(super) fn start(python: &Path, port: u16, clients: usize) -> Result<OpenAi> {
        let mut child = Command::new(python)
            .arg(folder().join("clients.py"))
            .args([port.to_string(), clients.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| python.display().to_string())?;
        let stdin = child.stdin.take().context("the clients have no standard input")?;
        let stdout = child.stdout.take().context("the clients have no standard output")?;
        let jobs = Jobs::default();
        tokio::spawn(pass_on(stdout, Arc::clone(&jobs)));
        Ok(OpenAi { _child: child, stdin: tokio::sync::Mutex::new(stdin), jobs, next: AtomicU64::new(0) })
    }

    /// Asks, and leaves a stream after so many chunks. `received` is called for each one with tokens.
    pub(super) async fn ask(
        &self,
        path: &str,
        body: &Value,
        leave_after: Option<u64>,
        received: impl Fn(),
    ) -> Result<Answer> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, mut told) = mpsc::unbounded_channel();
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).insert(number, sender);
        let mut job =
            json!({"number": number, "path": path, "body": body, "leave_after": leave_after}).to_string();
        job.push('\n');
        self.stdin.lock().await.write_all(job.as_bytes()).await?;
        let mut answer = Answer::default();
        loop {
            let line = told.recv().await.context("the OpenAI package's program ended")?;
            if let Some(error) = line["error"].as_str() {
                anyhow::bail!("the OpenAI package raised {error}");
            } else if line["whole"].is_object() {
                return Ok(Answer::whole(&line["whole"]));
            } else if line["chunk"].is_object() {
                if answer.add(&line["chunk"]) {
                    received();
                }
            } else {
                if line["end"] == true {
                    answer.end();
                }
                return Ok(answer);
            }
        }
    }
}

/// Lines go to those who wait for them; the last one of a job takes it off the list.
async fn pass_on(stdout: ChildStdout, jobs: Jobs) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(line) = serde_json::from_str::<Value>(&line) else { break };
        let Some(number) = line["number"].as_u64() else { break };
        let mut jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if line["chunk"].is_object() {
            if let Some(job) = jobs.get(&number) {
                let _ = job.send(line);
            }
        } else if let Some(job) = jobs.remove(&number) {
            let _ = job.send(line);
        }
    }
    jobs.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Where the programs in Python are, and what they need.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("soak")
}

/// A Python with the package in a virtual environment at `at`, made if it is not there.
pub(super) async fn environment(at: &Path) -> Result<PathBuf> {
    let python = at.join("bin/python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(at)).await?;
    }
    let requirements = folder().join("requirements.txt");
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    run(Command::new(&python).args(install).arg(requirements)).await?;
    Ok(python)
}

async fn run(command: &mut Command) -> Result<()> {
    let status = command.kill_on_drop(true).status().await?;
    ensure!(status.success(), "{:?} ended with {status}", command.as_std());
    Ok(())
}
