//! The server under test: started, watched through its events and its numbers, and ended.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::watch;

use super::memory_group::MemoryGroup;
use super::processes;
use super::raw::Http;

/// Longest wait for a server to be ready, and to end.
const START: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(60);

/// How servers are started.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// Where the log goes, and what servers keep from run to run.
    pub(super) folder: PathBuf,
}

/// A server that runs; killed when dropped.
pub(super) struct Program {
    child: Child,
    pub(super) http: Http,
    /// The event `ready`.
    pub(super) ready: Value,
    pub(super) events: Arc<Events>,
}

/// All that the server has told so far.
pub(super) struct Events {
    all: Mutex<Vec<(Instant, Value)>>,
    /// How many there are; closed when the server's output ends.
    count: watch::Receiver<usize>,
}

impl Program {
    /// Starts a server and waits until it is ready.
    pub(super) async fn start(launch: &Launch, log: &str, group: Option<&MemoryGroup>) -> Result<Program> {
        let log = launch.folder.join(log);
        let mut child =
            launch.command(&log, group)?.spawn().with_context(|| launch.program.display().to_string())?;
        let stdout = child.stdout.take().context("the server has no standard output")?;
        let events = Events::read(stdout);
        let mut program = Program { child, http: Http::new(0), ready: Value::Null, events };
        let ready = program.events.wait(0, START, |event| event["event"] == "ready").await;
        let (_, _, ready) =
            ready.with_context(|| format!("the server is not ready: see {}", log.display()))?;
        let port = ready["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        program.http = Http::new(port.context("ready without a port")?);
        program.ready = ready;
        Ok(program)
    }

    /// The front's process id.
    pub(super) fn front(&self) -> u32 {
        self.child.id()
    }

    /// The engine's process id, if one runs now.
    pub(super) fn engine(&self) -> Option<u32> {
        processes::children(self.front()).into_iter().find(|pid| processes::runs(*pid))
    }

    /// The sum of a metric's values.
    pub(super) async fn metric(&self, name: &str) -> Result<f64> {
        metric(&self.http.get("/metrics").await?, name)
    }

    /// Sequences that the server computes and that wait in it.
    pub(super) async fn sequences(&self) -> Result<u64> {
        let text = self.http.get("/metrics").await?;
        let names = ["unfazed_requests_running", "unfazed_requests_queued"];
        Ok(names.into_iter().map(|name| metric(&text, name)).sum::<Result<f64>>()? as u64)
    }

    /// Ends it by a word. `Err` says how it did not end in good order.
    pub(super) async fn stop(&mut self) -> Result<()> {
        processes::signal_to(self.front(), Signal::TERM);
        let limit = Instant::now() + END;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server ended with {status}");
                return Ok(());
            }
            if Instant::now() > limit {
                bail!("the server did not end within {END:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Launch {
    fn command(&self, log: &Path, group: Option<&MemoryGroup>) -> Result<Command> {
        let mut command = match group {
            None => Command::new(&self.program),
            Some(group) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", "echo $$ > \"$SOAK_GROUP\" && exec \"$0\" \"$@\""]).arg(&self.program);
                shell.env("SOAK_GROUP", group.processes_file());
                shell
            }
        };
        command.arg("serve").args(&self.args).args(["--host", "127.0.0.1", "--port", "0", "--events", "on"]);
        for variable in ["UNFAZED_API_KEY", "UNFAZED_LOG"] {
            command.env_remove(variable);
        }
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        // Ctrl-C is for us: we end the server.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(log)?);
        Ok(command)
    }

    /// What a command of the program prints.
    pub(super) fn output(&self, args: &[&str]) -> Result<String> {
        let output =
            Command::new(&self.program).args(args).env("XDG_CACHE_HOME", self.folder.join("cache")).output();
        let output = output.with_context(|| self.program.display().to_string())?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} {}: {stderr}", self.program.display(), args.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Events {
    /// Reads at once, so that the server never waits for a reader.
    fn read(stdout: ChildStdout) -> Arc<Events> {
        let (sender, count) = watch::channel(0);
        let events = Arc::new(Events { all: Mutex::default(), count });
        let read = Arc::clone(&events);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                let mut all = read.all.lock().unwrap_or_else(PoisonError::into_inner);
                all.push((Instant::now(), event));
                sender.send_replace(all.len());
            }
        });
        events
    }

    /// How many have come.
    pub(super) fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Those from the one of that number on.
    pub(super) fn from(&self, first: usize) -> Vec<(Instant, Value)> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(first..).map(<[_]>::to_vec).unwrap_or_default()
    }

    /// Waits for the first one from number `first` on that `is` it: its number, when it came, and itself. `None` if none
    /// came in time.
    pub(super) async fn wait(
        &self,
        first: usize,
        limit: Duration,
        is: impl Fn(&Value) -> bool,
    ) -> Option<(usize, Instant, Value)> {
        let mut count = self.count.clone();
        let mut seen = first;
        let search = async {
            loop {
                count.borrow_and_update();
                for (came, event) in self.from(seen) {
                    seen += 1;
                    if is(&event) {
                        return Some((seen - 1, came, event));
                    }
                }
                count.changed().await.ok()?;
            }
        };
        tokio::time::timeout(limit, search).await.ok().flatten()
    }
}

fn metric(text: &str, name: &str) -> Result<f64> {
    let values = text.lines().filter_map(|line| {
        let (key, value) = line.rsplit_once(' ')?;
        (key.split('{').next() == Some(name)).then(|| value.parse::<f64>())
    });
    Ok(values.collect::<Result<Vec<_>, _>>().with_context(|| name.to_owned())?.into_iter().sum())
}
