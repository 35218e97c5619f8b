//! Why the server could not start or had to end. None of these is a client's fault: those are answered over HTTP.

use std::io;

/// The server ends with this.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Host and port as asked for.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// A key, origin or host name that cannot be sent in a header.
    #[error("{option} {value:?}: {reason}")]
    Option {
        /// Its name on the command line.
        option: &'static str,
        /// The value.
        value: String,
        /// What would pass.
        reason: &'static str,
    },
    /// The model's tokenizer cannot be built.
    #[error("{0}")]
    Tokenizer(String),
    /// The engine could not load the model; the line is the engine's own.
    #[error("{0}")]
    Load(String),
    /// The engine is another build than this program.
    #[error("the engine is build {engine:?}, this program is {front:?}: run both from one installation")]
    Build {
        /// This program's build.
        front: String,
        /// The engine's.
        engine: String,
    },
    /// The engine died each time before it was ready.
    #[error("the engine stopped {attempts} times before it was ready: {cause}")]
    NeverReady {
        /// How often it was started.
        attempts: u32,
        /// How it ended the last time.
        cause: String,
    },
    /// The journal on disk cannot be opened.
    #[error("{0}")]
    Journal(String),
    /// The front that this one was to take over from did not hand over.
    #[error("the server that this one was to take over from did not hand over: {0}")]
    TakeOver(String),
    /// The operating system refused a thread, a descriptor or randomness.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}
