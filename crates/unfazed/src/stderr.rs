//! Standard error: logs, lines for people and the loading bar, all in one order.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};
use unfazed_host::sandbox;
use unfazed_server::Event;

use crate::output::Output;

/// Standard error, for those who must not wait for its reader: a terminal may be stopped, a pipe left unread.
#[derive(Clone)]
pub(crate) struct Stderr {
    output: Output<Item>,
    terminal: bool,
}

/// What is to be seen.
enum Item {
    /// Whole lines.
    Text(Vec<u8>),
    /// Bytes loaded, of how many.
    Progress { done: u64, total: u64 },
    /// Nothing is being loaded.
    NoProgress,
    /// A line that is written over by whatever comes next.
    Status(String),
    /// From now on no file is opened here.
    GiveUpFiles,
}

impl Stderr {
    /// Starts the thread that writes it.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn start() -> io::Result<Stderr> {
        let mut bar = None;
        let output = Output::start("stderr", move |item, dropped| {
            if dropped > 0 {
                tracing::warn!(lines = dropped, "nobody read this log for too long: lines were dropped");
            }
            show(item, &mut bar);
        })?;
        Ok(Stderr { output, terminal: io::stderr().is_terminal() })
    }

    /// Whether a person looks at it.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Writes whole lines.
    pub(crate) fn write(&self, lines: impl Into<Vec<u8>>) {
        self.output.send(Item::Text(lines.into()));
    }

    /// Draws the loading bar as an event says, where a person looks.
    pub(crate) fn follow(&self, event: &Event) {
        match event {
            Event::Loading { done_bytes, total_bytes, .. } => self.loading(*done_bytes, *total_bytes),
            _ if self.terminal => self.output.send(Item::NoProgress),
            _ => {}
        }
    }

    /// Draws the loading bar, where a person looks.
    pub(crate) fn loading(&self, done: u64, total: u64) {
        if self.terminal {
            self.output.send(Item::Progress { done, total });
        }
    }

    /// Shows what goes on, where a person looks; an empty line ends that, and the loading bar.
    pub(crate) fn status(&self, line: &str) {
        if self.terminal {
            self.output.send(Item::NoProgress);
            self.output.send(Item::Status(line.to_owned()));
        }
    }

    /// Has the thread that writes give up all files but what it has open: rights are a thread's, and those who give up theirs
    /// later share their memory with it.
    pub(crate) fn give_up_files(&self) {
        self.output.send(Item::GiveUpFiles);
        self.output.flush();
    }

    /// Waits until everything was written, for a second at most.
    pub(crate) fn flush(&self) {
        self.output.flush();
    }
}

/// Shows an item. Lines are written between the redraws of the bar instead of through it.
fn show(item: Item, bar: &mut Option<ProgressBar>) {
    match item {
        Item::Text(lines) => {
            // Nothing is lost if stderr is closed.
            let write = || drop(io::stderr().write_all(&lines));
            match bar {
                Some(bar) => bar.suspend(write),
                None => write(),
            }
        }
        Item::Progress { done, total } => {
            let bar = bar.get_or_insert_with(new_bar);
            bar.set_length(total);
            bar.set_position(done);
        }
        Item::GiveUpFiles => {
            // Whoever gives up the process's rights says why they cannot be given up.
            let _ = sandbox::give_up_files(&sandbox::Needs::default());
        }
        Item::Status(line) => drop(write!(io::stderr(), "\r\x1b[2K{line}")),
        Item::NoProgress => {
            if let Some(bar) = bar.take() {
                bar.finish_and_clear();
            }
        }
    }
}

/// As wide as the terminal: a bar that wraps is drawn again and again.
fn new_bar() -> ProgressBar {
    const TEMPLATE: &str =
        "Loading [{wide_bar}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";
    let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.progress_chars("=> "))
}
