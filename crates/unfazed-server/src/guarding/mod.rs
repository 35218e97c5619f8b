//! Guarding other engines: a server of OpenAI's API, whichever it is, is started on a private port, and requests are passed
//! on to it. When it dies, hangs or says that its device is lost another process of it goes on with what it had.
//!
//! | module | what |
//! |---|---|
//! | [`guard`] | binds, keeps the server, serves, drains: the entry point |
//! | [`programs`] | servers whose words are known |
//! | [`child`] | the process: its start, its end, and that it never outlives the guard |
//! | [`output`] | what it writes |
//! | `keeper` | the loop that starts one process after the other |
//! | `life` | one process: who is being answered by it |
//! | `probe`, `progress` | whether it is up, computes, and gets on |
//! | `state`, `standing` | what is shared; how the server has fared |
//! | `proxy` | requests at the guard's door |
//! | `client`, `exchange` | one request to one process, and what a failure of it means |
//! | `request` | what a request asks for |
//! | `whole` | answers that are sent whole: asked for again |
//! | `stream`, `reading`, `out` | streamed answers, from one process or several |
//! | `transcript` | what was sent, so that the same answer goes on when it is computed again |
//! | `borders`, `resume` | borders between tokens, and raw completions that go on behind one |

mod borders;
pub mod child;
mod client;
mod exchange;
mod guard;
mod keeper;
mod life;
mod out;
pub mod output;
mod probe;
pub mod programs;
mod progress;
mod proxy;
mod reading;
mod request;
mod resume;
mod standing;
mod state;
mod stream;
mod transcript;
mod whole;

use std::net::SocketAddr;
use std::time::Duration;

pub use child::{NoProgram, become_guarded, find, reap};
pub use guard::{GuardEnd, guard};
pub use output::{OutputSink, Stream};
pub use programs::{Command, CommandError};

use crate::supervisor::Limits;
use crate::{EngineProgram, ServeOptions};

/// What a user may ask of a guard.
pub struct GuardOptions {
    /// Where it listens, who may call, how long it waits: what it has in common with a server of our own.
    pub front: ServeOptions,
    /// The server.
    pub command: Command,
    /// This program, so that the server ends with it whatever happens; `None` in tests.
    pub own: Option<EngineProgram>,
    /// Takes what the server writes.
    pub output: OutputSink,
    /// How long a request waits for the server to be ready.
    pub queue: Duration,
    /// How long the server may work for requests without any byte to be seen.
    pub patience: Duration,
    /// How long the server may have nothing to do before it is asked for a token; `None` never asks.
    pub probe: Option<Duration>,
    /// How long an answer that would be the same again may be computed again from its beginning, where it could go on behind what
    /// was sent.
    pub replay: Duration,
    /// Where it listens in fact.
    address: SocketAddr,
}

impl GuardOptions {
    /// With the settings that need no thought.
    pub fn new(
        front: ServeOptions,
        command: Command,
        own: Option<EngineProgram>,
        output: OutputSink,
    ) -> Self {
        GuardOptions {
            front,
            command,
            own,
            output,
            queue: Duration::from_secs(300),
            patience: Duration::from_secs(600),
            probe: Some(Duration::from_secs(300)),
            replay: Duration::from_secs(60),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        }
    }

    fn limits(&self) -> Limits {
        Limits { stall: self.front.stall, patience: self.patience }
    }
}
