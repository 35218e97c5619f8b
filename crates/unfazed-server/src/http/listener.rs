//! Connections: accepted, served, ended.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, Request, Response, header};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use super::connections::{Connections, Place};
use super::socket::Socket;
use crate::handover::Passage;

/// Most bytes of a request's head; longer ones get a 431.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Most headers of a request; more get a 431.
const MAX_HEADERS: usize = 100;
/// Wait after an accept that failed, as it does where files have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long connections may take to end once nothing is computed for them any more.
const CLOSE: Duration = Duration::from_secs(2);

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most connections at a time.
    pub(crate) connections: usize,
    /// Time for a request's head.
    pub(crate) head: Duration,
}

/// Serves connections until `end`, then lets their last answers out. Once another process makes the answers it accepts no
/// more, and ends with the last one.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    passage: Arc<Passage>,
    end: impl Future,
) {
    let places = Connections::new(limits.connections);
    let graceful = GracefulShutdown::new();
    let mut connections = tokio::task::JoinSet::new();
    let mut end = std::pin::pin!(end);
    let mut moved = std::pin::pin!(passage.moved());
    let mut ended = false;
    loop {
        let accepted = tokio::select! {
            _ = &mut end => {
                ended = true;
                break;
            }
            _ = &mut moved => break,
            accepted = accept(&listener) => accepted,
            // Keeps the set from growing with connections that have ended.
            Some(_) = connections.join_next() => continue,
        };
        let Some(stream) = accepted else { continue };
        let (place, closed) = tokio::select! {
            _ = &mut end => {
                ended = true;
                break;
            }
            entered = places.enter() => entered,
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .serve_connection(
                TokioIo::new(Socket::new(stream, Arc::clone(&place))),
                service_fn(answered(&router, place, &passage)),
            );
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                },
                _ = closed => tracing::debug!("a connection that waited for its client made room for another"),
            }
        });
    }
    drop(listener);
    if !ended {
        let all_ended = async { while connections.join_next().await.is_some() {} };
        tokio::select! {
            _ = end => {}
            () = all_ended => return,
        }
    }
    if tokio::time::timeout(CLOSE, graceful.shutdown()).await.is_err() {
        tracing::debug!("connections that do not end are cut");
    }
    connections.shutdown().await;
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => {
            // Tokens are small and must not wait for each other.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY is refused");
            }
            Some(stream)
        }
        Err(error) => {
            tracing::warn!(%error, "a connection cannot be accepted");
            tokio::time::sleep(ACCEPT_RETRY).await;
            None
        }
    }
}

/// The router, with its connection's place told whose turn it is.
fn answered(
    router: &Router,
    place: Arc<Place>,
    passage: &Arc<Passage>,
) -> impl Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Answered> + Send>> + use<> {
    let router = TowerToHyperService::new(router.clone());
    let passage = Arc::clone(passage);
    move |request| {
        place.receiving();
        let left = |place: &Place, complete| place.answering(complete);
        let request = request.map(|body| Watched::new(body, &place, left));
        let (answer, place, passage) = (router.call(request), Arc::clone(&place), Arc::clone(&passage));
        Box::pin(async move {
            let left = |place: &Place, _| place.flushing();
            let mut response = answer.await?.map(|body| Watched::new(body, &place, left));
            // The rest of a refused body is not read, and once another process makes the answers it takes the requests as
            // well: a client must not send another one here.
            if place.has_refused() || passage.has_moved() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        })
    }
}

type Answered = Result<Response<Watched<Body>>, Infallible>;

/// A body that says when it is left, and whether it was read to its end.
struct Watched<B: HttpBody> {
    body: B,
    ended: bool,
    place: Arc<Place>,
    left: fn(&Place, bool),
}

impl<B: HttpBody> Watched<B> {
    fn new(body: B, place: &Arc<Place>, left: fn(&Place, bool)) -> Watched<B> {
        Watched { ended: body.is_end_stream(), body, place: Arc::clone(place), left }
    }
}

impl<B: HttpBody> Drop for Watched<B> {
    fn drop(&mut self) {
        (self.left)(&self.place, self.ended || self.body.is_end_stream());
    }
}

impl<B: HttpBody + Unpin> HttpBody for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
