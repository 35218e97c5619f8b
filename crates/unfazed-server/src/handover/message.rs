//! What the two fronts say to each other: JSON in frames, as they may be of different builds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use unfazed_plan::Plan;
use unfazed_wire::link::{self, LinkError, Receiver, Sender};

/// Changes with what these messages mean.
pub(crate) const PROTOCOL: u32 = 1;

/// From the front that was there first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromOld {
    /// What there is to take over. The first message.
    Offer(Box<Offer>),
    /// Take it. The answers follow, one message each.
    Take(Take),
    /// An answer to go on with, or a new one.
    Answer(Box<Answer>),
    /// Nobody reads the answer at the old front any more.
    Left(Key),
}

/// From the front that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromNew {
    /// It could serve.
    Ready {
        protocol: u32,
        /// It can use the memory.
        memory: bool,
    },
    /// It has everything.
    Taken,
    /// The next event of a stream.
    Text(Key, String),
    /// No event follows.
    End(Key),
    /// A whole answer.
    Whole(Key, Answered),
}

/// An answer's number, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Key(pub(crate) u128);

impl From<Key> for String {
    fn from(key: Key) -> String {
        format!("{:032x}", key.0)
    }
}

impl TryFrom<String> for Key {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Key, Self::Error> {
        u128::from_str_radix(&text, 16).map(Key)
    }
}

/// What there is to take over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) protocol: u32,
    /// What lies in the memory is laid out by code of this id.
    pub(crate) layout: String,
    /// Stands for the model's files.
    pub(crate) headers: u64,
    /// What is in the memory; of a build with another layout this may be no plan.
    pub(crate) plan: serde_json::Value,
    /// Bytes that the engine and its memory take, which are free once it has ended.
    pub(crate) held_bytes: u64,
}

impl Offer {
    /// The plan by which the memory is laid out, if it is one here as well.
    pub(crate) fn plan_for(&self, layout: &str, headers: u64) -> Option<Plan> {
        let same = self.layout == layout && self.headers == headers;
        same.then(|| serde_json::from_value(self.plan.clone()).ok())?
    }
}

/// What the descriptors beside the message are, in this order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Take {
    /// The listening socket comes first.
    pub(crate) answers: usize,
    /// Bytes of packed weights.
    pub(crate) weights: Option<u64>,
    /// Bytes of the memory for KV pages, and how many pages.
    pub(crate) kv: Option<(u64, usize)>,
    /// Bytes of expert slots.
    pub(crate) experts: Option<u64>,
    /// The lock of the journal on disk.
    pub(crate) journal: bool,
    /// The way to tell the first front who serves, the last of them.
    pub(crate) roster: bool,
}

/// An answer, and how far it came.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) key: Key,
    pub(crate) admission: String,
    /// What engines told.
    pub(crate) told: String,
    /// Events that the old front has.
    pub(crate) events: u64,
    /// Somebody waits for it there.
    pub(crate) read: bool,
    /// It is in the journal on disk as well.
    pub(crate) stored: bool,
    /// It is there as it is here.
    #[serde(skip)]
    pub(crate) same: bool,
}

/// A whole answer as HTTP has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: String,
}

impl IntoResponse for Answered {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, [(header::CONTENT_TYPE, "application/json")], self.body).into_response();
        if let Some(value) = self.retry_after.and_then(|value| HeaderValue::from_str(&value).ok()) {
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response
    }
}

/// Sends messages from any thread, async ones too: a thread of its own writes them. The link ends with the last of these.
pub(crate) struct Outgoing<M>(mpsc::Sender<Sending<M>>);

enum Sending<M> {
    Message(M, Vec<OwnedFd>),
    /// Is dropped when everything before it is sent.
    Flush(#[expect(dead_code, reason = "dropped, not read")] mpsc::Sender<()>),
}

impl<M> Clone for Outgoing<M> {
    fn clone(&self) -> Self {
        Outgoing(self.0.clone())
    }
}

impl<M: Serialize + Send + 'static> Outgoing<M> {
    fn start(mut sender: Sender) -> io::Result<Outgoing<M>> {
        let (outgoing, messages) = mpsc::channel();
        thread::Builder::new().name("handover".to_owned()).spawn(move || {
            for sending in messages {
                let Sending::Message(message, descriptors) = sending else { continue };
                if let Err(error) = send(&mut sender, &message, &descriptors) {
                    tracing::debug!(%error, "the other front does not listen");
                    return;
                }
            }
        })?;
        Ok(Outgoing(outgoing))
    }

    /// Sends a message. If the other side is gone, whoever receives from it notices.
    pub(crate) fn send(&self, message: M) {
        self.send_with(message, Vec::new());
    }

    /// The same with descriptors.
    pub(crate) fn send_with(&self, message: M, descriptors: Vec<OwnedFd>) {
        let _ = self.0.send(Sending::Message(message, descriptors));
    }

    /// Returns once everything is sent, or nobody listens.
    pub(crate) fn flush(&self) {
        let (sent, wait) = mpsc::channel();
        if self.0.send(Sending::Flush(sent)).is_ok() {
            // The thread drops its end when it comes to it.
            let _ = wait.recv();
        }
    }
}

fn send(
    sender: &mut Sender,
    message: &impl Serialize,
    descriptors: &[OwnedFd],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let text = serde_json::to_string(message)?;
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    Ok(sender.send_with_descriptors(&text, &descriptors)?)
}

/// Receives messages.
pub(crate) struct Incoming(Receiver);

impl Incoming {
    /// The next message with the descriptors beside it; `None` at the link's end.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> Result<Option<(M, Vec<OwnedFd>)>, LinkError> {
        let Some((text, descriptors)) = self.0.receive_with_descriptors::<String>()? else { return Ok(None) };
        let message = serde_json::from_str(&text)
            .map_err(|error| LinkError::Io(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        Ok(Some((message, descriptors)))
    }
}

/// Both ends of a link.
pub(crate) fn connect<M: Serialize + Send + 'static>(
    socket: UnixStream,
) -> io::Result<(Outgoing<M>, Incoming)> {
    let (sender, receiver) = link::split(socket)?;
    Ok((Outgoing::start(sender)?, Incoming(receiver)))
}
