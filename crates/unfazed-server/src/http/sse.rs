//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};

/// What OpenAI's streams end with, after an error too.
const DONE: &str = "[DONE]";

/// A stream of JSON texts as an answer: each one event, then `[DONE]`. A comment goes out whenever the stream was silent
/// for `keep_alive` (while the model loads, in the queue, in a long prefill), so that nobody on the way closes it.
pub(crate) fn answer(texts: impl Stream<Item = String> + Send + 'static, keep_alive: Duration) -> Response {
    let done = stream::once(std::future::ready(DONE.to_owned()));
    let events = texts.chain(done).map(|text| Ok::<_, Infallible>(Event::default().data(text)));
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive).text("keep-alive"));
    let mut response = sse.into_response();
    // Asks nginx not to gather tokens into blocks.
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
