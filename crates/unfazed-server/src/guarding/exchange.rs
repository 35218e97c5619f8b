//! A request to one process of the server, and what a failure of it means.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;

use super::client::{self, ClientError, Connection};
use super::life::{Condemned, Death, Flight};
use super::probe::{Asker, Probed};
use super::programs::LOCAL;
use super::request::Asked;
use super::state::Guard;
use crate::events::Event;
use crate::http::error::ApiError;
use crate::supervisor::Suspicion;

/// How long after a broken connection the end of its process is waited for.
const FALL: Duration = Duration::from_secs(2);
/// Broken connections in a row of a server that lives on, after which a request is given up.
const MOST_STRAYS: u32 = 3;
/// How long after an error the server's own words about it are waited for.
const WORDS: Duration = Duration::from_millis(200);
/// Time between two attempts at a server that is not ready.
pub(super) const AGAIN: Duration = Duration::from_millis(200);

/// Headers that concern one connection, and those that guard and server settle between themselves.
const OWN: [HeaderName; 12] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::ORIGIN,
    header::REFERER,
    // Answers are read here.
    header::ACCEPT_ENCODING,
    header::PROXY_AUTHORIZATION,
];

/// Headers that go on, in either direction. What a page of another origin may do is the guard's to say.
pub(super) fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let named = |name: &HeaderName| {
        let name = name.as_str();
        name == "keep-alive" || name == "proxy-connection" || name.starts_with("access-control-")
    };
    let kept = headers.iter().filter(|(name, _)| !OWN.contains(name) && !named(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Sends a request.
pub(super) async fn send(
    guard: &Guard,
    flight: &Flight,
    asked: &Asked,
    target: &str,
    body: Bytes,
) -> Result<(Response<Incoming>, Connection), ClientError> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = asked.method.clone();
    *request.uri_mut() =
        target.parse().map_err(|error| ClientError::Unreadable(format!("{target}: {error}")))?;
    *request.headers_mut() = asked.headers.clone();
    let port = flight.life.port;
    if let Ok(host) = HeaderValue::from_str(&format!("{LOCAL}:{port}")) {
        request.headers_mut().insert(header::HOST, host);
    }
    if !guard.options.front.api_keys.is_empty() {
        // The guard's keys are not the server's.
        request.headers_mut().remove(header::AUTHORIZATION);
        request.headers_mut().remove("x-api-key");
        let key =
            guard.options.command.key.as_ref().map(|key| HeaderValue::from_str(&format!("Bearer {key}")));
        if let Some(Ok(key)) = key {
            request.headers_mut().insert(header::AUTHORIZATION, key);
        }
    }
    client::send(port, request).await
}

/// Whether an answer only says that the server is not ready yet.
pub(super) fn is_loading(status: StatusCode, body: &[u8]) -> bool {
    status == StatusCode::SERVICE_UNAVAILABLE
        && [&b"Loading model"[..], b"loading"]
            .iter()
            .any(|text| body.windows(text.len()).any(|part| part == *text))
}

/// Whether an error that the server answered with is the server's end rather than the request's. If it is the process is
/// condemned.
pub(super) async fn is_engine_fault(guard: &Guard, flight: &Flight) -> bool {
    let life = &flight.life;
    let moved = life.moved();
    // What it wrote about it is read by others.
    tokio::time::sleep(WORDS).await;
    if life.condemned().is_none() && life.is_faulty() {
        life.condemn(Condemned::Stalled("its device failed, and it answers requests with errors".to_owned()));
    }
    if life.condemned().is_some() {
        return true;
    }
    // While it computes for others it is well.
    if life.moved() != moved || guard.options.probe.is_none() {
        return false;
    }
    let Some(talk) = guard.talk() else { return false };
    let asker = Asker(guard.options.command.key.as_deref());
    match asker.probe(life, talk, guard.options.limits().stall).await {
        Probed::Computes | Probed::Refused(_) => false,
        Probed::Fails(why) => {
            life.condemn(Condemned::Stalled(format!("it answers requests with errors: {why}")));
            true
        }
    }
}

/// What a request has been through.
#[derive(Debug, Default)]
pub(super) struct Trials {
    suspicion: Suspicion,
    strays: u32,
}

impl Trials {
    /// It is to be alone in the server.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspicion.is_suspect()
    }

    /// It got something from the process that it is in.
    pub(super) fn gained(&mut self) -> bool {
        self.strays = 0;
        self.suspicion.clear()
    }

    /// Its connection broke. Waits for what happened; an error is the end of it.
    pub(super) async fn broke(
        &mut self,
        guard: &Guard,
        request: u64,
        flight: &Flight,
        gained: bool,
    ) -> Result<(), ApiError> {
        let death = tokio::time::timeout(FALL, flight.life.death()).await;
        match death {
            Ok(death) if gained || !death.cause.is_from_within() => Ok(()),
            Ok(death) => self.blame(guard, request, death),
            Err(_) if flight.life.condemned().is_some() => Ok(()),
            Err(_) => {
                self.strays = self.strays.saturating_add(1);
                if self.strays < MOST_STRAYS {
                    return Ok(());
                }
                let text = format!(
                    "the server behind this guard broke off {MOST_STRAYS} times at this request, and runs on"
                );
                Err(ApiError::bad_gateway("engine_broke_off", text))
            }
        }
    }

    fn blame(&mut self, guard: &Guard, request: u64, death: Death) -> Result<(), ApiError> {
        let was_suspect = self.suspicion.is_suspect();
        let ended = self.suspicion.died(death.cause, death.requests == 1);
        let deaths = self.suspicion.deaths();
        if !was_suspect && self.suspicion.is_suspect() {
            guard.tell(Event::RequestSuspected { request, deaths });
        }
        let Some(deaths) = ended else { return Ok(()) };
        guard.tell(Event::RequestQuarantined { request, deaths });
        let cause = death.cause;
        let text = format!(
            "this request ended the server {deaths} times by itself ({cause}); other requests are not affected"
        );
        Err(ApiError::internal(text).with_code("request_kills_engine"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_stay_with_it() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "a"),
            ("origin", "b"),
            ("content-length", "3"),
            ("connection", "close"),
            ("accept-encoding", "gzip"),
            ("authorization", "Bearer x"),
            ("x-own", "1"),
            ("access-control-allow-origin", "*"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let kept = passed_on(&headers);
        let names: Vec<&str> = kept.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["authorization", "x-own"]);
    }

    #[test]
    fn a_server_that_loads_says_so() {
        let body = br#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#;
        assert!(is_loading(StatusCode::SERVICE_UNAVAILABLE, body));
        assert!(!is_loading(StatusCode::INTERNAL_SERVER_ERROR, body));
        assert!(!is_loading(StatusCode::SERVICE_UNAVAILABLE, br#"{"error":"no slot"}"#));
    }
}
