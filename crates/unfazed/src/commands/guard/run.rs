//! `unfazed guard run`: another server, guarded.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use unfazed_server::guarding::{self, Command, GuardEnd, GuardOptions, NoProgram, OutputSink, Stream};
use unfazed_server::{EngineProgram, ServeOptions};

use crate::commands::serve::{AccessFlags, until_signal};
use crate::failure;
use crate::flags::{GpuLockFlags, LogFlags};
use crate::logging;
use crate::output::Output;
use crate::report::{self, EventsWhen};
use crate::stderr::Stderr;

/// A command line that cannot be guarded, as for all guard commands.
const USAGE: u8 = 64;
/// What shells end with where a program cannot be executed, and where there is none.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

const EXAMPLES: &str = "\
Write what you would type to start the server behind `--`. The guard gives it a private port and listens where the server
would have, so clients need not change:
  unfazed guard run -- llama-server -m model.gguf -c 8192 --port 8080
  unfazed guard run -- mlx_lm.server --model mlx-community/Qwen3-4B-4bit
  unfazed guard run -- python -m mlx_lm.server --model ~/models/qwen --port 8080
  unfazed guard run -- SwiftLM --model mlx-community/Qwen3-30B-A3B-4bit --port 5413
  unfazed guard run -- python serve/server.py --engine strata --config strata.json    (Strata)
  unfazed guard run -- vllm serve Qwen/Qwen3-4B
  unfazed guard run -- unfazed serve -m model.gguf
Known too: ds4-server, coli serve, mistralrs serve. Of any other server say where its port belongs:
  unfazed guard run --port 8080 -- my-server --listen 127.0.0.1:{port}

When the server dies, hangs, or says that its device is lost, the guard starts it again. Requests wait meanwhile; streams get
comments that keep them open, and go on where they stopped (docs/guard-run.md says which, and how exactly).
GET /health stays 200 meanwhile, GET /guard/status says what happened. The server's output goes to stderr, as it is; events go
to stdout, one JSON object a line, when that is no terminal. With --events off the server has stdout to itself.

Exit codes: 0 ended as told, or the program ended by itself before it was a server (--help); 1 the server never got ready;
64 a command line that cannot be guarded; 126, 127 the program cannot be executed, or is not there.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "unfazed guard run [OPTIONS] -- SERVER [ARGUMENTS]...")]
pub(crate) struct RunArgs {
    /// The server, and its arguments
    #[arg(last = true, value_name = "SERVER")]
    command: Vec<OsString>,

    /// Address to listen on [default: the server's own --host, else 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", help_heading = "Network")]
    host: Option<String>,

    /// Port to listen on; 0 takes any free one and says which [default: the server's own --port, else its default]
    #[arg(short, long, value_name = "PORT", help_heading = "Network")]
    port: Option<u16>,

    /// Requests that may wait while the server starts; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = ServeOptions::default().max_queue, help_heading = "Network")]
    max_queue: usize,

    /// How long a request may wait while the server starts, before it ends with 503
    #[arg(long, value_name = "SECONDS", default_value_t = 300, help_heading = "Network")]
    queue_seconds: u64,

    /// How long running requests may go on after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Network")]
    drain_seconds: u64,

    #[command(flatten)]
    access: AccessFlags,

    #[command(flatten)]
    watch: WatchFlags,

    #[command(flatten)]
    gpu_lock: GpuLockFlags,

    /// Write events to stdout, one JSON object a line; auto: when stdout is not a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = "Events and logs")]
    events: EventsWhen,

    #[command(flatten)]
    log: LogFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Watching the server")]
struct WatchFlags {
    /// Start the server again when it has requests and nothing moves for so many milliseconds, or for 20 times as long as lately
    /// between two tokens. Longer than for our own engine: another server loads its model anew
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(100..))]
    stall_ms: u64,

    /// The same when it works (uses processors, reads files) and gives no byte, as while it reads a long prompt or computes an
    /// answer that is not streamed
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,

    /// How long a stream that comes out the same again (greedy, or with a seed) may be computed again from its beginning after a
    /// restart, to be the very same; longer ones go on behind their last token, which is quick. 0: all do, where they can
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    replay_seconds: u64,

    /// Ask a server that had nothing to do for so long for one token; 0 never asks, not at its start either
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    probe_seconds: u64,
}

pub(super) fn run(args: &RunArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    let refuse = |error: &dyn std::fmt::Display, code: u8| {
        stderr.write(format!("error: {error}\n"));
        Ok(ExitCode::from(code))
    };
    let command = match Command::parse(&args.command, |name| std::env::var(name).ok()) {
        Ok(command) => command,
        Err(error) => return refuse(&error, USAGE),
    };
    let Some(port) = args.port.or(command.port) else {
        let name = &command.name;
        return refuse(&format!("--port: where should the guard listen for {name}?"), USAGE);
    };
    match guarding::find(&command.program, std::env::var_os("PATH").as_deref()) {
        Ok(_) => {}
        Err(error @ NoProgram::NotFound(_)) => return refuse(&error, NOT_FOUND),
        Err(error @ NoProgram::NotExecutable(_)) => return refuse(&error, NOT_EXECUTABLE),
    }
    logging::start(&args.log, logging::SERVER, stderr)?;
    let front = ServeOptions {
        host: args.host.clone().or(command.host.clone()).unwrap_or(ServeOptions::default().host),
        port,
        drain: Duration::from_secs(args.drain_seconds),
        max_queue: args.max_queue,
        stall: Duration::from_millis(args.watch.stall_ms),
        ..args.access.options()?
    };
    let open = front.api_keys.is_empty() && !command.wants_key();
    let events = if args.events.enabled() {
        Some(report::events().context("cannot start a thread for events")?)
    } else {
        None
    };
    let own = EngineProgram::current().context("cannot find this program's own file")?;
    let (output, stdout) = output(stderr, events.is_some())?;
    let mut options = GuardOptions::new(front, command, Some(own), output);
    options.queue = Duration::from_secs(args.queue_seconds);
    options.patience = Duration::from_secs(args.watch.patience);
    options.probe = (args.watch.probe_seconds > 0).then(|| Duration::from_secs(args.watch.probe_seconds));
    options.replay = Duration::from_secs(args.watch.replay_seconds);
    let sink = report::sink(events.clone(), None, stderr.clone(), open);
    // Held until the server has ended; the server has it too, and keeps it if it does not end.
    let _gpu_lock =
        args.gpu_lock.take("unfazed guard run", false, |held| sink(report::gpu_lock_wait(held)))?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the guard's threads")?;
    // On this thread, which lives as long as the guard: the server ends with the thread that started it.
    let ended = runtime.block_on(async {
        let shutdown = until_signal()?;
        Ok::<_, anyhow::Error>(guarding::guard(options, sink, shutdown).await?)
    });
    runtime.shutdown_background();
    if let Some(events) = events {
        events.flush();
    }
    if let Some(stdout) = stdout {
        stdout.flush();
    }
    ended.map(|end| {
        if end == GuardEnd::NoServer {
            tracing::info!("the program ended by itself, without an error and without having been a server");
        }
        ExitCode::SUCCESS
    })
}

/// Where the server's own output goes: to stderr, or its standard output to ours where no events are on it.
fn output(stderr: &Stderr, events: bool) -> anyhow::Result<(OutputSink, Option<Output<Vec<u8>>>)> {
    let stderr = stderr.clone();
    if events {
        return Ok((Arc::new(move |_, line| stderr.write(line)), None));
    }
    let mut open = true;
    let stdout = Output::start("stdout", move |line: Vec<u8>, dropped| {
        if dropped > 0 {
            tracing::warn!(lines = dropped, "nobody read standard output for too long: lines were dropped");
        }
        let mut out = io::stdout().lock();
        if open && let Err(error) = out.write_all(&line).and_then(|()| out.flush()) {
            // Whoever read it went away; clients of the server did not.
            tracing::warn!("{}", failure::line(&error.into()));
            open = false;
        }
    });
    let stdout = stdout.context("cannot start a thread for standard output")?;
    let lines = stdout.clone();
    let sink: OutputSink = Arc::new(move |stream, line| match stream {
        Stream::Stdout => lines.send(line),
        Stream::Stderr => stderr.write(line),
    });
    Ok((sink, Some(stdout)))
}
