//! An answer that is sent once it is whole: asked for again, from the beginning, when its process ends.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::response::IntoResponse;
use futures::StreamExt;
use http_body_util::{BodyExt, BodyStream};
use hyper::body::Incoming;

use super::client::{ClientError, Connection};
use super::exchange::{self, AGAIN, Trials};
use super::life::Flight;
use super::request::Asked;
use super::state::Active;
use crate::events::Event;

/// Longest answer that is held until it is whole; more is passed on as it comes.
pub(super) const MOST_WHOLE: usize = 64 << 20;

/// What a process answered.
enum Answer {
    Whole(StatusCode, HeaderMap, Bytes),
    /// It does not end, or is too long to be held.
    Passing(Response<Body>),
}

/// Answers a request.
pub(super) async fn answer(active: Active, asked: Asked) -> Response<Body> {
    let guard = std::sync::Arc::clone(&active.guard);
    let mut active = Some(active);
    let number = active.as_ref().map_or(0, |active| active.number);
    let mut trials = Trials::default();
    let mut attempts = 0;
    loop {
        let pass = guard.pass(trials.is_suspect()).await;
        let life = match guard.ready(guard.options.queue).await {
            Ok(life) => life,
            Err(error) => return error.into_response(),
        };
        if attempts > 0 {
            guard.standing().resumed += 1;
            guard.tell(Event::RequestContinued { request: number, how: "retried", tokens: 0, exact: true });
        }
        attempts += 1;
        let flight = life.enter();
        let answer = tokio::select! {
            biased;
            answer = exchange(&guard, &flight, &asked, &mut active) => answer,
            _ = life.death() => Err(None),
        };
        match answer {
            Ok(Answer::Passing(response)) => return response,
            Ok(Answer::Whole(status, _, body)) if exchange::is_loading(status, &body) => {
                drop((flight, pass));
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Ok(Answer::Whole(status, headers, body)) => {
                if !(status.is_server_error() && exchange::is_engine_fault(&guard, &flight).await) {
                    flight.moved(false);
                    let mut response = Response::new(Body::from(body));
                    *response.status_mut() = status;
                    *response.headers_mut() = headers;
                    return response;
                }
            }
            Err(Some(error)) => tracing::debug!(%error, "a request to the server failed"),
            Err(None) => {}
        }
        if let Err(error) = trials.broke(&guard, number, &flight, false).await {
            guard.standing().lost += 1;
            return error.into_response();
        }
    }
}

/// One process. `active` is taken by an answer that is passed on.
async fn exchange(
    guard: &super::state::Guard,
    flight: &Flight,
    asked: &Asked,
    active: &mut Option<Active>,
) -> Result<Answer, Option<ClientError>> {
    let sent = exchange::send(guard, flight, asked, &asked.target, asked.body.clone()).await;
    let (response, connection) = sent.map_err(Some)?;
    let (parts, mut body) = response.into_parts();
    let headers = exchange::passed_on(&parts.headers);
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let endless = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
    let mut held = Vec::new();
    while !endless && held.len() <= MOST_WHOLE {
        match body.frame().await {
            None => return Ok(Answer::Whole(parts.status, headers, held.into())),
            Some(frame) => {
                held.extend_from_slice(
                    &frame.map_err(|error| Some(error.into()))?.into_data().unwrap_or_default(),
                );
            }
        }
    }
    let body = passing(held.into(), body, (connection, active.take()));
    let mut response = Response::new(body);
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers;
    Ok(Answer::Passing(response))
}

/// A body that is passed on as it comes.
fn passing(held: Bytes, body: Incoming, holds: (Connection, Option<Active>)) -> Body {
    let rest = BodyStream::new(body).map(move |frame| {
        let _held = &holds;
        frame.map(|frame| frame.into_data().unwrap_or_default())
    });
    Body::from_stream(futures::stream::iter([Ok(held)]).chain(rest))
}
