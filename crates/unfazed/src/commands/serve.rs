//! `unfazed serve`: the server in the foreground.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use unfazed_server::{CorsOrigins, ServeOptions};

use crate::flags::{LogFlags, ModelFlags};
use crate::report::{self, EventsWhen};
use crate::stderr::Stderr;
use crate::{launch, logging};

const EXAMPLES: &str = "\
Examples:
  unfazed serve                                     the demo model on http://127.0.0.1:8080
  unfazed serve -m model.gguf -c 8k --parallel 4    a model of your own
  unfazed serve -m ~/models/Qwen3-30B-A3B           a Hugging Face directory
  unfazed serve --host 0.0.0.0 --api-key-file key   for the network, with a key
  unfazed serve --port 0 | head -n 3                any free port; events say which

A key may also come from the environment: UNFAZED_API_KEY.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelFlags,

    /// The model's name towards clients [default: the model's own]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    alias: Option<String>,

    #[command(flatten)]
    network: NetworkFlags,

    #[command(flatten)]
    access: AccessFlags,

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
struct AccessFlags {
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

#[derive(Debug, Args)]
#[command(next_help_heading = "Watching the engine")]
struct WatchFlags {
    /// Replace an engine that gives no sign of progress for so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(100..))]
    stall_ms: u64,

    /// Replace an engine that waits for storage for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    storage_patience: u64,
}

pub(crate) fn run(args: &ServeArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::SERVER, stderr)?;
    let keys = api_keys(args.access.api_key.as_deref(), args.access.api_key_file.as_deref())?;
    let prepared = launch::prepare(&args.model, &args.log, logging::SERVER)?;
    let options = ServeOptions {
        host: args.network.host.clone(),
        port: args.network.port,
        api_keys: keys,
        cors: cors(&args.access.cors),
        allowed_hosts: args.access.allowed_host.clone(),
        model_id: args.alias.clone().unwrap_or_else(|| prepared.model_name().to_owned()),
        drain: Duration::from_secs(args.network.drain_seconds),
        max_queue: args.network.max_queue,
        stall: Duration::from_millis(args.watch.stall_ms),
        storage_patience: Duration::from_secs(args.watch.storage_patience),
        isa: args.model.isa()?,
        ..ServeOptions::default()
    };
    let events = if args.events.enabled() {
        Some(report::events().context("cannot start a thread for events")?)
    } else {
        None
    };
    let sink = report::sink(events.clone(), stderr.clone(), options.api_keys.is_empty());
    let runtime = tokio::runtime::Runtime::new().context("cannot start the server's threads")?;
    let served = runtime.block_on(async {
        let shutdown = until_signal()?;
        prepared.serve(options, sink, shutdown).await
    });
    // Work that does not come to an end (a template's) must not keep the program.
    runtime.shutdown_background();
    if let Some(events) = events {
        events.flush();
    }
    served.map(|()| ExitCode::SUCCESS)
}

/// Ends with the first Ctrl-C or SIGTERM; the second ends the process at once.
fn until_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    const WHY: &str = "cannot watch for signals";
    let mut interrupt = signal(SignalKind::interrupt()).context(WHY)?;
    let mut terminate = signal(SignalKind::terminate()).context(WHY)?;
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
