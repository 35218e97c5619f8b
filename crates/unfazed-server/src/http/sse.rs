//! Server-sent events.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;

use super::streams::{Reader, resume};

/// What OpenAI's streams end with, after an error too.
pub(crate) const DONE: &str = "[DONE]";

/// An event: a JSON text or [`DONE`], and its id where the stream can be resumed.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) id: Option<String>,
    pub(crate) data: Arc<str>,
}

impl From<Message> for Event {
    fn from(message: Message) -> Event {
        let event = message.id.map_or_else(Event::default, |id| Event::default().id(id));
        event.data(message.data)
    }
}

/// A stream as an answer. A comment goes out whenever it was silent for `keep_alive` (while the model loads, in the
/// queue, in a long prefill), so that nobody on the way closes it.
pub(crate) fn answer(reader: Reader, keep_alive: Duration) -> Response {
    let id = reader.stream_id();
    let events = reader.events().map(|message| message.map(Event::from));
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive).text("keep-alive"));
    let mut response = sse.into_response();
    let headers = response.headers_mut();
    // Asks nginx not to gather tokens into blocks.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    if let Some(id) = id.and_then(|id| HeaderValue::from_str(&id.to_string()).ok()) {
        headers.insert(resume::STREAM_ID, id);
    }
    response
}
