//! Renderings in processes of their own.
//!
//! A template is a program of whoever made the model file. Its work, memory and output are counted, but not all that it does
//! takes from what is counted, and a thread can't be ended from outside. A process can.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::frames::{self, Setup};
use super::{Limits, TemplateError};
use crate::supervisor::RendererProgram;

/// A process gets so much more than a rendering's time before it is ended: it says by itself that the time is over.
const GRACE: Duration = Duration::from_secs(2);
/// Processes that are kept for the next chats.
const MOST_IDLE: usize = 2;
/// Bytes of an answer beside its text, each of whose bytes may be written as six.
const ANSWER_BYTES: usize = 64 << 10;

/// Processes that render one template.
#[derive(Debug)]
pub(super) struct Processes {
    program: RendererProgram,
    setup: Result<Vec<u8>, String>,
    limits: Limits,
    idle: Mutex<Vec<Process>>,
}

/// One of them. It ends with this value.
#[derive(Debug)]
struct Process {
    child: Child,
    socket: UnixStream,
}

impl Processes {
    pub(super) fn new(program: RendererProgram, source: &str, limits: Limits) -> Processes {
        let setup = serde_json::to_vec(&Setup { source: source.to_owned(), limits });
        Processes { program, setup: setup.map_err(|error| error.to_string()), limits, idle: Mutex::default() }
    }

    /// Renders the template with these variables.
    pub(super) fn render(&self, context: &Map<String, Value>) -> Result<String, TemplateError> {
        let broken = |error: io::Error| TemplateError::NoProcess(error.to_string());
        let context = serde_json::to_vec(context).map_err(|error| broken(error.into()))?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(process) = idle {
            match self.ask(process, &context) {
                Err(error) if error.kind() != ErrorKind::TimedOut => {
                    // It may have ended while nobody looked: somebody else's chat is no reason to refuse this one.
                    tracing::debug!(%error, "an idle process that renders has ended");
                }
                asked => return self.answer(asked),
            }
        }
        self.answer(self.start().and_then(|process| self.ask(process, &context)))
    }

    /// Starts one and tells it the template.
    fn start(&self) -> io::Result<Process> {
        let setup = self.setup.as_ref().map_err(|error| io::Error::other(error.clone()))?;
        let (child, socket) = self.program.start()?;
        let process = Process { child, socket };
        process.socket.set_write_timeout(Some(self.limits.time))?;
        frames::write(&process.socket, setup)?;
        Ok(process)
    }

    /// Has it render, and keeps it for the next one if it can go on.
    fn ask(&self, process: Process, context: &[u8]) -> io::Result<Result<String, TemplateError>> {
        let until = Instant::now().checked_add(self.limits.time.saturating_add(GRACE));
        frames::write(&process.socket, context)?;
        let most = self.limits.output_bytes.saturating_mul(6).saturating_add(ANSWER_BYTES);
        let answer = frames::read(&process.socket, most, until)?.ok_or(ErrorKind::UnexpectedEof)?;
        let answer: Result<String, TemplateError> = serde_json::from_slice(&answer)?;
        let ends = matches!(answer, Err(TemplateError::Endless { .. }));
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !ends && idle.len() < MOST_IDLE {
            idle.push(process);
        }
        Ok(answer)
    }

    fn answer(&self, asked: io::Result<Result<String, TemplateError>>) -> Result<String, TemplateError> {
        let answer = match asked {
            Ok(answer) => answer,
            Err(error) if error.kind() == ErrorKind::TimedOut || error.kind() == ErrorKind::WouldBlock => {
                Err(TemplateError::Endless { limit: self.limits.time })
            }
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe) => {
                Err(TemplateError::NoProcess("it ended in the middle of a rendering".to_owned()))
            }
            Err(error) => Err(TemplateError::NoProcess(error.to_string())),
        };
        if let Err(error @ (TemplateError::Endless { .. } | TemplateError::NoProcess(_))) = &answer {
            tracing::warn!("a chat is refused: {error}");
        }
        answer
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended by itself is reaped all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
