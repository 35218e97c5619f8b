//! What can go wrong with a chat template.

use std::fmt;
use std::time::Duration;

use minijinja::ErrorKind;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A template that can't be compiled, or messages that it can't render. `line` is of the template.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TemplateError {
    /// The model's fault: the template is no valid Jinja.
    #[error("line {line} of the chat template: {what}")]
    Syntax {
        /// Line, from 1; 0 if it is not known.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The template refuses the messages (`raise_exception`): the client's fault, in the template's words.
    #[error("line {line} of the chat template refuses the messages: {message}")]
    Refused {
        /// Line, from 1; 0 if it is not known.
        line: usize,
        /// The template's message.
        message: String,
    },
    /// The template fails on these messages: something that it needs is missing or of another kind.
    #[error("line {line} of the chat template fails on these messages: {what}")]
    Failed {
        /// Line, from 1; 0 if it is not known.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// Rendering took more work or memory than the limit allows.
    #[error(
        "line {line} of the chat template: rendering these messages takes more than {limit} units of work"
    )]
    TooMuchWork {
        /// Line, from 1; 0 if it is not known.
        line: usize,
        /// The limit ([`crate::chat::Limits::fuel`]).
        limit: u64,
    },
    /// The model's fault: a rendering took more time than the limit allows, this one or one that still runs.
    #[error("the model's chat template does not come to an end: a rendering takes more than {limit:?}")]
    Endless {
        /// The limit ([`crate::chat::Limits::time`]).
        limit: Duration,
    },
    /// The prompt is longer than the limit allows.
    #[error("the chat template makes a prompt of more than {limit} bytes of these messages")]
    TooLong {
        /// The limit ([`crate::chat::Limits::output_bytes`]).
        limit: usize,
    },
    /// The client's fault: the messages use up all private-use characters.
    #[error("the messages use so many private-use characters that none is left to mark special tokens with")]
    NoSentinelLeft,
    /// The machine's fault or ours: the thread that renders can't be started, or ended by itself.
    #[error("the thread that renders the chat template: {0}")]
    NoThread(String),
    /// The machine's fault or ours: the process that renders can't be started, or ended by itself.
    #[error("the process that renders the chat template: {0}")]
    NoProcess(String),
    /// The model has no template and its vocabulary isn't that of ChatML.
    #[error(
        "the model has no chat template, and its vocabulary lacks <|im_start|> and <|im_end|>: \
         send a rendered prompt to /v1/completions"
    )]
    NoTemplate,
}

/// Carries the message of `raise_exception` through minijinja's errors.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Carries the fact that the output is full through minijinja's errors.
#[derive(Debug)]
pub(super) struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output is full")
    }
}

impl std::error::Error for Full {}

impl TemplateError {
    /// Whether it is the machine's fault or ours. Otherwise it lies in the messages and the template: this model
    /// does not answer these messages, however often they are sent.
    pub fn is_of_the_machine(&self) -> bool {
        matches!(self, TemplateError::NoThread(_) | TemplateError::NoProcess(_))
    }

    pub(super) fn syntax(error: &minijinja::Error) -> Self {
        TemplateError::Syntax { line: error.line().unwrap_or(0), what: describe(error) }
    }

    pub(super) fn render(error: &minijinja::Error, fuel: u64, output_bytes: usize) -> Self {
        let line = error.line().unwrap_or(0);
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(current) = cause {
            if let Some(Refusal(message)) = current.downcast_ref() {
                return TemplateError::Refused { line, message: message.clone() };
            }
            // An I/O error hides what it carries from the chain of sources.
            let carried = current.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            if carried.is_some_and(|carried| carried.is::<Full>()) {
                return TemplateError::TooLong { limit: output_bytes };
            }
            if current.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return TemplateError::TooMuchWork { line, limit: fuel };
            }
            cause = current.source();
        }
        TemplateError::Failed { line, what: describe(error) }
    }
}

fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
