//! The server of the release build beside this program: started, asked and watched.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustix::process::Pid;
use serde_json::Value;

/// Compute threads: as many as were asked for, or as there are cores.
pub(crate) fn threads(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

/// A server that runs; killed when dropped.
pub(crate) struct Server {
    child: Child,
    port: u64,
    events: Receiver<(Instant, Value)>,
}

impl Server {
    /// The program itself.
    pub(crate) fn program() -> Result<PathBuf> {
        let program = std::env::current_exe()?.with_file_name("unfazed");
        ensure!(program.exists(), "{} is not there: run cargo build --release first", program.display());
        Ok(program)
    }

    /// Starts it by a command, to which what this program needs is added, and waits until it is ready.
    pub(crate) fn start(mut command: Command) -> Result<Server> {
        command.args(["--events", "on", "--port", "0"]).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdout = child.stdout.take();
        let (sender, events) = channel();
        let mut server = Server { child, port: 0, events };
        let stdout = stdout.context("the server has no standard output")?;
        thread::spawn(move || pass_on(stdout, &sender));
        let (_, ready) = server.event("ready").context("the server ended before it was ready")?;
        server.port = ready["port"].as_u64().context("ready without a port")?;
        Ok(server)
    }

    /// The process id of its engine.
    pub(crate) fn engine(&self) -> Result<Pid> {
        let output =
            Command::new("pgrep").args(["-P", &self.child.id().to_string()]).output().context("pgrep")?;
        let pids = String::from_utf8_lossy(&output.stdout);
        let mut pids = pids.lines().map(str::parse);
        match (pids.next(), pids.next()) {
            (Some(Ok(pid)), None) => Pid::from_raw(pid).context("a process has the number 0"),
            _ => bail!("the server has not one engine"),
        }
    }

    /// Waits for an event; returns when it came, too.
    pub(crate) fn event(&self, name: &str) -> Result<(Instant, Value)> {
        loop {
            let (came, event) = self.events.recv().with_context(|| format!("no event {name}"))?;
            if event["event"] == name {
                return Ok((came, event));
            }
        }
    }

    /// Events that have come and were not asked for yet.
    pub(crate) fn past_events(&self) -> impl Iterator<Item = (Instant, Value)> {
        self.events.try_iter()
    }

    /// Asks for a completion.
    pub(crate) async fn completion(&self, body: &Value) -> Result<Response<Incoming>> {
        self.kept_completion(body, None).await
    }

    /// Asks for a completion, whose stream is kept for so many seconds.
    pub(crate) async fn kept_completion(
        &self,
        body: &Value,
        seconds: Option<u32>,
    ) -> Result<Response<Incoming>> {
        let mut request = hyper::Request::post(format!("http://127.0.0.1:{}/v1/completions", self.port))
            .header("content-type", "application/json");
        if let Some(seconds) = seconds {
            request = request.header("unfazed-resumable", seconds);
        }
        let request = request.body(Full::<Bytes>::from(body.to_string()))?;
        Ok(Client::builder(TokioExecutor::new()).build_http().request(request).await?)
    }

    /// The value of a metric without labels.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let request = hyper::Request::get(format!("http://127.0.0.1:{}/metrics", self.port))
            .body(Full::<Bytes>::default())?;
        let answer = Client::builder(TokioExecutor::new()).build_http().request(request).await?;
        let text = answer.into_body().collect().await?.to_bytes();
        let text = std::str::from_utf8(&text)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.with_context(|| format!("no metric {name}"))?.parse().with_context(|| name.to_owned())
    }
}

/// Events are read at once, so that the server never waits for a reader.
fn pass_on(stdout: ChildStdout, events: &Sender<(Instant, Value)>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let Ok(event) = serde_json::from_str(&line) else { return };
        if events.send((Instant::now(), event)).is_err() {
            return;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
