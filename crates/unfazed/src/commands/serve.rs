//! `unfazed serve`: the server in the foreground.

use std::future::Future;
#[cfg(feature = "fault-plan")]
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use unfazed_plan::Bytes;
use unfazed_server::{
    Control, CorsOrigins, Exit, JournalOptions, ServeOptions, Served, SuccessorProgram, TakenOver,
};
use unfazed_wire::MOST_REPEAT_STOP_TOKENS;

use crate::flags::{GpuLockFlags, LogFlags, ModelFlags, SandboxFlags};
use crate::report::{self, EventsWhen};
use crate::service::Service;
use crate::stderr::Stderr;
use crate::{failure, launch, logging};

const EXAMPLES: &str = "\
Examples:
  unfazed serve                                     the demo model on http://127.0.0.1:8080
  unfazed serve -m model.gguf -c 8k --parallel 4    a model of your own
  unfazed serve -m ~/models/Qwen3-30B-A3B           a Hugging Face directory
  unfazed serve --host 0.0.0.0 --api-key-file key   for the network, with a key
  unfazed serve --journal ~/.local/state/unfazed    streams outlive a killed server and a power cut
  unfazed serve --port 0 | head -n 3                any free port; events say which

A key may also come from the environment: UNFAZED_API_KEY.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelFlags,

    #[command(flatten)]
    sandbox: SandboxFlags,

    #[command(flatten)]
    gpu_lock: GpuLockFlags,

    /// The model's name towards clients [default: the model's own]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    alias: Option<String>,

    /// End an answer (finish_reason "repetition") when its last N tokens are one pattern, three times or more; 0: never. Requests
    /// may say otherwise (repeat_stop_tokens)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = repeat_stop_tokens, help_heading = "Model")]
    repeat_stop_tokens: usize,

    #[command(flatten)]
    network: NetworkFlags,

    #[command(flatten)]
    access: AccessFlags,

    #[command(flatten)]
    journal: JournalFlags,

    #[command(flatten)]
    watch: WatchFlags,

    /// Write events to stdout, one JSON object a line; auto: when stdout is not a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = "Events and logs")]
    events: EventsWhen,

    #[command(flatten)]
    log: LogFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
struct NetworkFlags {
    /// Address to listen on; 0.0.0.0 for every network
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on; 0 takes any free one and says which
    #[arg(short, long, value_name = "PORT", default_value_t = 8080)]
    port: u16,

    /// Requests that may wait for a place; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = ServeOptions::default().max_queue)]
    max_queue: usize,

    /// How long running requests may go on after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_seconds: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub(super) struct AccessFlags {
    /// Key that clients must send (other users of this machine can see it; a file keeps it to yourself)
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,

    /// File with one key a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Web page origin that may call the server, as https://example.org, or * for all; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,

    /// Further name that the server is reached by, as a proxy's; may be repeated
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,
}

impl AccessFlags {
    /// Who may call, as options.
    pub(super) fn options(&self) -> anyhow::Result<ServeOptions> {
        Ok(ServeOptions {
            api_keys: api_keys(self.api_key.as_deref(), self.api_key_file.as_deref())?,
            cors: cors(&self.cors),
            allowed_hosts: self.allowed_host.clone(),
            ..ServeOptions::default()
        })
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Journal")]
struct JournalFlags {
    /// Keep streams that can be resumed in this folder, so that they outlive a killed server and a power cut. It holds prompts and
    /// answers; only this user can read it
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,

    /// Most that the journal takes on disk, as 500M or 2G: what was written longest ago goes first
    #[arg(long, value_name = "BYTES", default_value = "1G", requires = "journal", value_parser = journal_bytes)]
    journal_size: u64,

    /// A stream of which nothing was written for so long is dropped
    #[arg(long, value_name = "HOURS", default_value_t = 24, requires = "journal", value_parser = clap::value_parser!(u64).range(1..=8760))]
    journal_hours: u64,
}

impl JournalFlags {
    fn options(&self) -> Option<JournalOptions> {
        let age = Duration::from_secs(self.journal_hours * 3600);
        let options = |dir: &PathBuf| JournalOptions { dir: dir.clone(), bytes: self.journal_size, age };
        self.journal.as_ref().map(options)
    }
}

/// Less is no journal: one stream may take a few of these.
const LEAST_JOURNAL_BYTES: u64 = 16 << 20;

fn journal_bytes(text: &str) -> Result<u64, String> {
    let bytes = text.parse::<Bytes>().map_err(|error| error.to_string())?.0;
    if bytes < LEAST_JOURNAL_BYTES {
        return Err(format!("a journal takes at least {} MiB", LEAST_JOURNAL_BYTES >> 20));
    }
    Ok(bytes)
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Watching the engine")]
struct WatchFlags {
    /// Replace an engine that gives no sign of progress for so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(100..))]
    stall_ms: u64,

    /// Replace an engine that waits for storage for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    storage_patience: u64,

    /// After a fault something may be given up (a part of the caches, the device): how long it must be quiet before that is
    /// taken up again
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    recover_after: u64,

    /// For tests: act out the faults of a plan, JSON as in docs/reliability.md
    #[cfg(feature = "fault-plan")]
    #[arg(long, value_name = "FILE")]
    fault_plan: Option<PathBuf>,
}

/// No plan is longer.
#[cfg(feature = "fault-plan")]
const MOST_PLAN_BYTES: u64 = 1 << 20;

/// Engines that act out a plan have a device that can fail, beside the processor.
#[cfg(feature = "fault-plan")]
fn with_faults(options: ServeOptions, plan: Option<&Path>) -> anyhow::Result<ServeOptions> {
    let Some(path) = plan else { return Ok(options) };
    let name = || format!("--fault-plan {}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(name)?;
    file.take(MOST_PLAN_BYTES).read_to_string(&mut text).with_context(name)?;
    unfazed_sim::FaultPlan::parse(&text).with_context(name)?;
    let placements = ["device", "cpu"].map(str::to_owned).to_vec();
    Ok(ServeOptions { fault_plan: Some(text), placements, ..options })
}

pub(crate) fn run(args: &ServeArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::SERVER, stderr)?;
    let access = args.access.options()?;
    let service = Service::find().context("cannot start a thread for the service manager")?;
    let successor = SuccessorProgram::current().context("cannot find this program's own file")?;
    let taken_over = TakenOver::find().context("cannot take over from the running server")?;
    let prepared =
        launch::prepare(&args.model, &args.sandbox, &args.log, logging::SERVER, taken_over.as_ref())?;
    let options = ServeOptions {
        host: args.network.host.clone(),
        port: args.network.port,
        model_id: args.alias.clone().unwrap_or_else(|| prepared.model_name().to_owned()),
        drain: Duration::from_secs(args.network.drain_seconds),
        max_queue: args.network.max_queue,
        stall: Duration::from_millis(args.watch.stall_ms),
        storage_patience: Duration::from_secs(args.watch.storage_patience),
        repeat_stop_tokens: args.repeat_stop_tokens,
        journal: args.journal.options(),
        isa: args.model.isa()?,
        recover_after: Duration::from_secs(args.watch.recover_after),
        alive: service.as_ref().map(Service::alive),
        ..access
    };
    #[cfg(feature = "fault-plan")]
    let options = with_faults(options, args.watch.fault_plan.as_deref())?;
    let events = if args.events.enabled() {
        Some(report::events().context("cannot start a thread for events")?)
    } else {
        None
    };
    let sink = report::sink(events.clone(), service.clone(), stderr.clone(), options.api_keys.is_empty());
    // Held until the server has ended; the engine has it too, and keeps it if it does not end. Signals end the waiting. Whoever
    // takes over from another front was born with it, and that one stays to hold it.
    let mut waited = false;
    let _gpu_lock = match &taken_over {
        Some(_) => None,
        None => args.gpu_lock.take("unfazed serve", prepared.uses_real_gpu(), |held| {
            waited = true;
            sink(report::gpu_lock_wait(held));
        })?,
    };
    // Whoever had the GPU had memory too, which counts now.
    let prepared = if waited {
        drop(prepared);
        launch::prepare(&args.model, &args.sandbox, &args.log, logging::SERVER, None)?
    } else {
        prepared
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start the server's threads")?;
    let served = runtime.block_on(async {
        let (shutdown, restarts) = (until_signal()?, restarts()?);
        let control = Control { shutdown, restarts, successor: Some(successor), taken_over };
        prepared.serve(options, sink, control).await
    });
    // Work that does not come to an end (a template's) must not keep the program.
    runtime.shutdown_background();
    if let Some(events) = events {
        events.flush();
    }
    if let Some(service) = service {
        if let Err(error) = &served {
            service.failed(&failure::line(error));
        }
        service.flush();
    }
    Ok(match served? {
        Served::Ended => ExitCode::SUCCESS,
        Served::Succeeded(exit) => of_the_last(exit),
    })
}

/// Whoever started the first front hears how the last one ended.
fn of_the_last(exit: Exit) -> ExitCode {
    let code = exit.code.or_else(|| exit.signal.map(|signal| 128 + signal));
    code.map_or(ExitCode::FAILURE, |code| ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

const WATCHING: &str = "cannot watch for signals";

/// A message for each SIGUSR2.
fn restarts() -> anyhow::Result<mpsc::Receiver<()>> {
    let mut wished = signal(SignalKind::user_defined2()).context(WATCHING)?;
    let (told, restarts) = mpsc::channel(1);
    tokio::spawn(async move {
        while wished.recv().await.is_some() {
            // One that is waiting already stands for this one too.
            let _ = told.try_send(());
        }
    });
    Ok(restarts)
}

/// Ends with the first Ctrl-C or SIGTERM; the second ends the process at once.
pub(super) fn until_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt()).context(WATCHING)?;
    let mut terminate = signal(SignalKind::terminate()).context(WATCHING)?;
    let (told, wait) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut told = Some(told);
        loop {
            let code = tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
            };
            match told.take() {
                // The server may have ended by itself: then nobody waits.
                Some(told) => drop(told.send(())),
                // The engine ends with its socket.
                None => std::process::exit(code),
            }
        }
    });
    Ok(async move {
        // An error means that the runtime ends, and the server with it.
        let _ = wait.await;
    })
}

/// Keys from the flags, else from the environment. A key that is empty is a mistake, not an open door.
pub(super) fn api_keys(key: Option<&str>, file: Option<&Path>) -> anyhow::Result<Vec<String>> {
    if let Some(file) = file {
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("--api-key-file {shown}"))?;
        let keys: Vec<String> =
            text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect();
        if keys.is_empty() {
            bail!("--api-key-file {shown}: there is no key in it (one a line is expected)");
        }
        return Ok(keys);
    }
    let (key, source) = match key {
        Some(key) => (key.to_owned(), "--api-key"),
        None => match std::env::var("UNFAZED_API_KEY") {
            Ok(key) => (key, "UNFAZED_API_KEY"),
            Err(std::env::VarError::NotPresent) => return Ok(Vec::new()),
            Err(error) => return Err(error).context("UNFAZED_API_KEY"),
        },
    };
    if key.trim().is_empty() {
        bail!("{source} is empty: give a key, or leave it out to let everybody in");
    }
    Ok(vec![key])
}

fn repeat_stop_tokens(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(tokens @ (0 | 3..=MOST_REPEAT_STOP_TOKENS)) => Ok(tokens),
        _ => Err(format!("give 0 or a number of tokens from 3 to {MOST_REPEAT_STOP_TOKENS}")),
    }
}

fn cors(origins: &[String]) -> Option<CorsOrigins> {
    if origins.is_empty() {
        None
    } else if origins.iter().any(|origin| origin == "*") {
        Some(CorsOrigins::Any)
    } else {
        Some(CorsOrigins::Only(origins.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_key_is_a_mistake_and_a_file_gives_a_key_a_line() {
        assert!(api_keys(Some("  "), None).is_err());
        assert_eq!(api_keys(Some("k"), None).unwrap(), ["k"]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, "one\n\n two \n").unwrap();
        assert_eq!(api_keys(None, Some(&file)).unwrap(), ["one", "two"]);
        std::fs::write(&file, "\n").unwrap();
        assert!(api_keys(None, Some(&file)).is_err());
    }

    #[test]
    fn a_star_among_origins_lets_all_in() {
        assert_eq!(cors(&[]), None);
        assert_eq!(cors(&["https://a.org".to_owned(), "*".to_owned()]), Some(CorsOrigins::Any));
    }
}
