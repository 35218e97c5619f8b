//! The one error type of this crate: why an engine process ended before its time.

use unfazed_wire::LoadFault;
use unfazed_wire::link::LinkError;

/// What ends an engine process. Faults of single requests are messages to the front instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The front sent something that cannot be, or its socket failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The front's first message was another than `Start`.
    #[error("the front's first message is not Start")]
    NotStarted,
    /// The model could not be loaded; the front has been told.
    #[error("{message}")]
    Load {
        /// Whose fault it is.
        fault: LoadFault,
        /// One line for people.
        message: String,
    },
    /// A thread could not be started.
    #[error("cannot start the computing thread: {0}")]
    Thread(#[source] std::io::Error),
    /// No device can be made in this process any more; the front has been told.
    #[error("the device cannot be used again by this process")]
    Device,
    /// The computing thread panicked (a fault of ours).
    #[error("the computing thread panicked; its message is in the log above")]
    Panicked,
}
