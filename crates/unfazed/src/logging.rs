//! Logs for people (or as JSON), on stderr; events for machines are `report`'s.

use std::io::{self, IsTerminal, Write};

use anyhow::anyhow;
use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::flags::{LogFlags, LogFormat};

/// What a server logs where nothing else was said.
pub(crate) const SERVER: &str = "info";
/// What a chat logs where nothing else was said: only what the person should know.
pub(crate) const CHAT: &str = "warn";

/// Starts logging, of what `default` says if no flag does. With `bars`, a line is written between the redraws of progress bars instead of through them.
pub(crate) fn start(flags: &LogFlags, default: &str, bars: Option<MultiProgress>) -> anyhow::Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(flags.filter(default))?)
        .with_writer(Stderr { bars })
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let started = match flags.log_format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| anyhow!("cannot start logging: {error}"))?;
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "internal error: please report it")));
    Ok(())
}

/// Checks a filter when the command line is read, so that a mistake is a usage error.
pub(crate) fn parse_filter(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    // A bare word that is no level would be taken as the name of a crate, and silence everything.
    if !text.contains('=') && !LEVELS.contains(&text) {
        return Err(format!("a level is one of {}", LEVELS.join(", ")));
    }
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Stderr as `tracing` wants it.
struct Stderr {
    bars: Option<MultiProgress>,
}

/// One line on its way to stderr.
struct Line<'a> {
    bars: Option<&'a MultiProgress>,
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { bars: self.bars.as_ref() }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.bars {
            Some(bars) => bars.suspend(|| io::stderr().write_all(bytes))?,
            None => io::stderr().write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_none_is_refused_instead_of_silencing_the_log() {
        assert!(parse_filter("verbose").is_err());
        assert!(parse_filter("debug").is_ok());
        assert!(parse_filter("unfazed_server=debug,info").is_ok());
        assert!(parse_filter("unfazed_server=loud").is_err());
    }
}
