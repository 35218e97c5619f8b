//! Logs for people (or as JSON), on stderr; events for machines are `report`'s.

use std::io::{self, Write};

use anyhow::anyhow;
use tracing_subscriber::EnvFilter;

use crate::flags::{LogFlags, LogFormat};
use crate::stderr::Stderr;

/// What a server logs where nothing else was said.
pub(crate) const SERVER: &str = "info";
/// What a chat logs where nothing else was said: only what the person should know.
pub(crate) const CHAT: &str = "warn";

/// Starts logging, of what `default` says if no flag does.
pub(crate) fn start(flags: &LogFlags, default: &str, stderr: &Stderr) -> anyhow::Result<()> {
    let lines = stderr.clone();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(flags.filter(default))?)
        .with_writer(move || Line(lines.clone()))
        .with_ansi(stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let started = match flags.log_format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| anyhow!("cannot start logging: {error}"))?;
    let stderr = stderr.clone();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "internal error: please report it");
        // The program may end with this thread.
        stderr.flush();
    }));
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

/// A line on its way to stderr: `tracing` writes it at once.
struct Line(Stderr);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
