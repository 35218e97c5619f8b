//! The header that makes a stream resumable, and the path that continues it.

use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::super::auth::Caller;
use super::super::error::ApiError;
use super::super::random_id::RandomId;
use super::super::router::App;
use super::super::sse;
use super::registry::Resumed;

/// Asks for a stream that can be resumed, and says for how many seconds it is kept without a reader.
const RESUMABLE: &str = "Unfazed-Resumable";
/// Names such a stream in the answer.
pub(crate) const STREAM_ID: HeaderName = HeaderName::from_static("unfazed-stream-id");
/// Which event a client got last, as browsers send it.
const LAST_EVENT_ID: &str = "Last-Event-ID";
/// Longest time that a stream is kept without a reader, in seconds.
const MAX_SECONDS: u64 = 3600;
/// Most characters of a header's value in an error.
const SHOWN: usize = 100;

/// How long a stream is kept, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Keep {
    pub(super) time: Duration,
    pub(super) owner: Caller,
}

impl Keep {
    /// What a request asks for.
    pub(crate) fn wanted(request: &Request) -> Result<Option<Keep>, ApiError> {
        let mut values = request.headers().get_all(RESUMABLE).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let seconds = value.to_str().ok().and_then(|text| text.parse().ok());
        match seconds.filter(|seconds| (1..=MAX_SECONDS).contains(seconds) && values.next().is_none()) {
            Some(seconds) => {
                let owner = request.extensions().get().copied().unwrap_or_default();
                Ok(Some(Keep { time: Duration::from_secs(seconds), owner }))
            }
            None => {
                let expected = format!("a whole number of seconds from 1 to {MAX_SECONDS}, once");
                Err(unexpected(RESUMABLE, value, &expected))
            }
        }
    }
}

/// Refuses to keep what is no stream.
pub(crate) fn check(keep: Option<Keep>, stream: bool) -> Result<(), ApiError> {
    match keep {
        Some(keep) if !stream => {
            let seconds = keep.time.as_secs();
            let message = format!("{RESUMABLE} is {seconds}: only an answer with stream true can be resumed");
            Err(ApiError::field(RESUMABLE, message))
        }
        _ => Ok(()),
    }
}

/// Handles `GET /v1/streams/{id}`.
pub(crate) async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = uri.path().rsplit('/').next().unwrap_or_default();
    if app.passage.has_moved() {
        // This connection is the old front's, which closes it behind this answer; streams are the new one's.
        return Ok(
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, uri.path().to_owned())]).into_response()
        );
    }
    match app.streams.resume(id, caller, headers.get(LAST_EVENT_ID))? {
        Resumed::Reading(reader) => Ok(sse::answer(reader, app.keep_alive)),
        // What browsers take as the sign not to come back.
        Resumed::Delivered => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// The number of the event that a client got last: 0 without the header.
pub(super) fn position(id: RandomId, value: Option<&HeaderValue>, last: u64) -> Result<u64, ApiError> {
    let Some(value) = value else { return Ok(0) };
    let number = value.to_str().ok().and_then(|text| {
        let (stream, number) = text.split_once('-')?;
        let digits = number.bytes().all(|byte| byte.is_ascii_digit());
        (digits && RandomId::parse(stream)? == id).then_some(number)?.parse().ok()
    });
    number
        .filter(|number| (1..=last).contains(number))
        .ok_or_else(|| unexpected(LAST_EVENT_ID, value, "the id of an event of this stream"))
}

fn unexpected(header: &str, value: &HeaderValue, expected: &str) -> ApiError {
    let shown: String = String::from_utf8_lossy(value.as_bytes()).chars().take(SHOWN).collect();
    ApiError::field(header, format!("{header} is {shown:?}: {expected} is expected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_an_event_that_was_sent_of_this_stream() {
        let (id, other) = (RandomId::new().unwrap(), RandomId::new().unwrap());
        let at = |text: &str| position(id, Some(&HeaderValue::from_str(text).unwrap()), 7);
        assert_eq!(position(id, None, 7), Ok(0));
        assert_eq!(at(&format!("{id}-1")), Ok(1));
        assert_eq!(at(&format!("{id}-7")), Ok(7));
        for bad in [
            String::new(),
            "7".to_owned(),
            format!("{id}"),
            format!("{id}-"),
            format!("{id}-0"),
            format!("{id}-8"),
            format!("{id}-+7"),
            format!("{id}-7 7"),
            format!("{id}-99999999999999999999"),
            format!("{other}-7"),
        ] {
            let error = at(&bad).expect_err(&bad);
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
            assert!(error.body().to_string().contains("Last-Event-ID is"), "{}", error.body());
        }
    }
}
