//! What the server does, told to machines on stdout and to people on stderr.

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::sync::Arc;

use clap::ValueEnum;
use unfazed_guard::lock::Held;
use unfazed_server::events::Ready;
use unfazed_server::{Event, EventSink};

use crate::output::Output;
use crate::service::Service;
use crate::stderr::Stderr;

/// When events are written to stdout. (Without help for each value `--help` keeps one line a flag.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventsWhen {
    On,
    Off,
    Auto,
}

impl EventsWhen {
    /// The decision for this process.
    pub(crate) fn enabled(self) -> bool {
        match self {
            EventsWhen::On => true,
            EventsWhen::Off => false,
            EventsWhen::Auto => !io::stdout().is_terminal(),
        }
    }
}

/// Events on stdout, one JSON object a line, written by a thread of its own.
///
/// # Errors
///
/// The system gives no thread.
pub(crate) fn events() -> io::Result<Output<Event>> {
    let mut stdout = Some(io::stdout());
    Output::start("events", move |event, dropped| {
        let Some(out) = &mut stdout else { return };
        let gap = (dropped > 0).then_some(Event::EventsDropped { count: dropped });
        if let Err(error) = gap.iter().chain([&event]).try_for_each(|event| write_line(out, event)) {
            // Whoever read the events went away; clients of the server did not.
            tracing::warn!(%error, "events can no longer be written to stdout");
            stdout = None;
        }
    })
}

/// The sink for `unfazed serve`, with the service manager, if one started it; `open` if nobody needs a key.
pub(crate) fn sink(
    events: Option<Output<Event>>,
    service: Option<Service>,
    stderr: Stderr,
    open: bool,
) -> EventSink {
    Arc::new(move |event| {
        stderr.follow(&event);
        if let Event::Listening { host, .. } = &event
            && open
            && !is_loopback(host)
        {
            tracing::warn!("everybody who reaches {host} can use this server: set a key with --api-key-file");
        }
        if !stderr.is_terminal() {
            log(&event);
        } else if let Some(text) = for_people(&event) {
            stderr.write(text + "\n");
        }
        if let Some(events) = &events {
            events.send(event.clone());
        }
        if let Some(service) = &service {
            service.hear(&event);
        }
    })
}

/// Writes to the log what a person without a terminal of their own should find there.
pub(crate) fn log(event: &Event) {
    match event {
        Event::Ready(ready) => tracing::info!(url = url(ready), model = ready.model, "ready"),
        // The server ends with the line of an engine that cannot be, and says it once.
        Event::EngineExit { cause: "load_failed" | "other_build", .. } => {}
        Event::EngineExit { cause, message, requests, failed_requests, .. } => {
            tracing::warn!(cause, requests, failed_requests, "the engine stopped: {message}");
        }
        Event::GpuLockWait { message, .. } => tracing::warn!("waiting: {message}"),
        Event::EngineReady { load_ms, read_bytes, kept_bytes, engine, gpu_layers } => {
            tracing::info!(load_ms, read_bytes, kept_bytes, engine, gpu_layers, "another engine is ready");
        }
        Event::GuardStarted { program, pid, private_port } => {
            tracing::info!(pid, private_port, "started {program}");
        }
        Event::GuardReady { program, host, port, load_ms, restarts, .. } => {
            tracing::info!(url = url_of(host, *port), load_ms, restarts, "{program} answers");
        }
        Event::RequestContinued { request, how, tokens, exact } => {
            tracing::info!(request, how, tokens, exact, "a request goes on in another process");
        }
        Event::RequestResumed { request, tokens, kept_positions, missing_positions } => {
            tracing::info!(request, tokens, kept_positions, missing_positions, "a request goes on");
        }
        _ => {}
    }
}

/// Whom a server waits for before it begins.
pub(crate) fn gpu_lock_wait(held: &Held) -> Event {
    Event::GpuLockWait {
        pid: held.pid,
        label: held.label.clone(),
        command: held.cmdline.clone(),
        since: held.since.clone(),
        file: held.path.display().to_string(),
        message: held.to_string(),
    }
}

fn is_loopback(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn write_line(stdout: &mut io::Stdout, event: &Event) -> io::Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    stdout.write_all(line.as_bytes())?;
    stdout.flush()
}

/// What a person at a terminal should read about an event.
fn for_people(event: &Event) -> Option<String> {
    match event {
        Event::Ready(ready) => Some(greeting(ready)),
        Event::EngineExit { cause: "load_failed" | "other_build", .. } => None,
        Event::EngineExit { message, requests, .. } => {
            let wait = match requests {
                0 => String::new(),
                1 => "; 1 request waits for the next one".to_owned(),
                _ => format!("; {requests} requests wait for the next one"),
            };
            Some(format!("The engine stopped ({message}){wait}."))
        }
        Event::GuardStarted { program, private_port, .. } => {
            Some(format!("Started {program} on its private port {private_port}."))
        }
        Event::GuardReady { program, host, port, load_ms, restarts, .. } => {
            let (url, seconds) = (url_of(host, *port), load_ms / 1000.0);
            Some(match restarts {
                0 => format!(
                    "{program} answers at {url} (OpenAI clients: {url}/v1), guarded. Ctrl-C stops both."
                ),
                _ => format!("{program} is back after {seconds:.1} s."),
            })
        }
        Event::EngineReady { load_ms, .. } => {
            Some(format!("The engine is back after {:.1} s.", load_ms / 1000.0))
        }
        Event::HandedOver { pid, pause_ms, .. } => {
            Some(format!("Process {pid} has taken over, after {:.1} s.", pause_ms / 1000.0))
        }
        Event::RestartFailed { message } => {
            Some(format!("The restart failed, nothing has changed: {message}."))
        }
        Event::GpuLockWait { message, .. } => Some(format!("Waiting: {message}. Ctrl-C ends the waiting.")),
        Event::Draining { requests: 0, .. } => None,
        Event::Draining { requests, limit_ms } => Some(format!(
            "\nFinishing {requests} running {} (at most {} s). Ctrl-C again stops at once.",
            if *requests == 1 { "request" } else { "requests" },
            limit_ms / 1000
        )),
        _ => None,
    }
}

/// Fits a terminal of 80 columns.
fn greeting(ready: &Ready) -> String {
    let url = url(ready);
    let bold = |text: &str| console::style(text.to_owned()).bold().for_stderr();
    let key =
        if ready.settings.api_key { " \\\n    -H \"Authorization: Bearer $UNFAZED_API_KEY\"" } else { "" };
    let settings = &ready.settings;
    format!(
        "\n{} is ready at {}\n\
         context {} · {} at once · {} threads · {}\n\n\
         Chat in the terminal:\n  {} run --url {url}\n\
         Or ask with curl:\n  curl {url}/v1/chat/completions{key} \\\n    \
         -H 'Content-Type: application/json' \\\n    \
         -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Tell me a story.\"}}]}}'\n\
         OpenAI clients take the base URL {url}/v1\n\n\
         Ctrl-C stops the server.",
        bold(&ready.model),
        bold(&url),
        settings.context,
        settings.parallel,
        settings.threads,
        settings.isa,
        own_name(),
    )
}

/// What to type to start this program: as it was typed, since it need not be installed.
fn own_name() -> String {
    std::env::args().next().unwrap_or_else(|| "unfazed".to_owned())
}

/// An address that works in a client on this machine.
pub(crate) fn url(ready: &Ready) -> String {
    url_of(&ready.host, ready.port)
}

fn url_of(host: &str, port: u16) -> String {
    let host = match host {
        "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        host => host,
    };
    if host.contains(':') { format!("http://[{host}]:{port}") } else { format!("http://{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_reads_why_the_engine_stopped_and_what_waits_for_the_next_one() {
        let exit = |cause, requests| Event::EngineExit {
            code: None,
            signal: Some(9),
            cause,
            message: "signal 9".to_owned(),
            requests,
            failed_requests: 0,
        };
        let line = |cause, requests| for_people(&exit(cause, requests));
        assert_eq!(line("signal", 0).unwrap(), "The engine stopped (signal 9).");
        assert!(line("signal", 2).unwrap().ends_with("; 2 requests wait for the next one."));
        assert_eq!(line("load_failed", 0), None, "the server ends with the engine's line");
    }

    #[test]
    fn only_addresses_of_this_machine_alone_need_no_key() {
        assert!(is_loopback("127.0.0.1") && is_loopback("127.9.9.9") && is_loopback("::1"));
        assert!(is_loopback("::ffff:127.0.0.1"));
        assert!(!is_loopback("0.0.0.0") && !is_loopback("::") && !is_loopback("10.0.0.1"));
    }
}
