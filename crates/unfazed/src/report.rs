//! What the server does, told to machines on stdout and to people on stderr.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use unfazed_server::events::Ready;
use unfazed_server::{Event, EventSink};

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

/// A progress bar for loading, drawn where stderr is a terminal.
#[derive(Clone)]
pub(crate) struct LoadingBar {
    bars: MultiProgress,
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl LoadingBar {
    /// No bar is drawn before the first byte.
    pub(crate) fn new() -> LoadingBar {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bars = MultiProgress::with_draw_target(target);
        LoadingBar { bars, bar: Arc::default() }
    }

    /// What else writes to stderr has to go through.
    pub(crate) fn bars(&self) -> MultiProgress {
        self.bars.clone()
    }

    /// Follows an event.
    pub(crate) fn follow(&self, event: &Event) {
        let mut bar = self.bar.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Loading { model, done_bytes, total_bytes, .. } => {
                let bar = bar.get_or_insert_with(|| self.bars.add(new_bar(model)));
                bar.set_length(*total_bytes);
                bar.set_position(*done_bytes);
            }
            _ => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
            }
        }
    }
}

fn new_bar(model: &str) -> ProgressBar {
    const TEMPLATE: &str =
        "{msg} [{bar:24}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.progress_chars("=> ")).with_message(format!("Loading {model}"))
}

/// The sink for `unfazed serve`.
pub(crate) fn sink(events: bool, bar: LoadingBar) -> EventSink {
    let machine = Mutex::new(events.then(io::stdout));
    let people = io::stderr().is_terminal();
    Arc::new(move |event| {
        bar.follow(&event);
        if people {
            if let Some(text) = for_people(&event) {
                // Nothing is lost if stderr is closed.
                let _ = writeln!(io::stderr(), "{text}");
            }
        } else if let Event::Ready(ready) = &event {
            tracing::info!(url = url(ready), model = ready.model, "ready");
        }
        let mut machine = machine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stdout) = machine.as_mut()
            && let Err(error) = write_line(stdout, &event)
        {
            // Whoever read the events went away; clients of the server did not.
            tracing::warn!(%error, "events can no longer be written to stdout");
            *machine = None;
        }
    })
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
        Event::Draining { requests: 0, .. } => None,
        Event::Draining { requests, limit_ms } => Some(format!(
            "\nFinishing {requests} running {} (at most {} s). Ctrl-C again stops at once.",
            if *requests == 1 { "request" } else { "requests" },
            limit_ms / 1000
        )),
        _ => None,
    }
}

fn greeting(ready: &Ready) -> String {
    let url = url(ready);
    let bold = |text: &str| console::style(text.to_owned()).bold().for_stderr();
    let key = if ready.settings.api_key { " -H \"Authorization: Bearer $UNFAZED_API_KEY\"" } else { "" };
    format!(
        "\n{} at {}: context {}, {} at once, {} threads ({})\n\n  \
         Chat here:  unfazed run --url {url}\n  \
         Or:         curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' \\\n                \
         -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Tell me a story.\"}}]}}'\n  \
         OpenAI clients take {} as their base URL.\n\n\
         Ctrl-C stops the server.\n",
        bold(&ready.model),
        bold(&url),
        ready.settings.context,
        ready.settings.parallel,
        ready.settings.threads,
        ready.settings.isa,
        bold(&format!("{url}/v1")),
    )
}

/// An address that works in a client on this machine.
fn url(ready: &Ready) -> String {
    let host = match ready.host.as_str() {
        "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        host => host,
    };
    if host.contains(':') {
        format!("http://[{host}]:{}", ready.port)
    } else {
        format!("http://{host}:{}", ready.port)
    }
}
