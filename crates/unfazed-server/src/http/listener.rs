//! Connections: how many, how long a head may take, and how they end.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Most connections at a time: well below the usual limit of 1024 open files. More wait to be accepted.
const MAX_CONNECTIONS: usize = 768;
/// Most bytes of a request's head; longer ones get a 431.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Most headers of a request; more get a 431.
const MAX_HEADERS: usize = 100;
/// Wait after an accept that failed, as it does where files have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long connections may take to end once nothing is computed for them any more.
const CLOSE: Duration = Duration::from_secs(2);

/// Serves connections until `end`, then lets their last answers out.
pub(crate) async fn serve(listener: TcpListener, router: Router, head_timeout: Duration, end: impl Future) {
    let slots = std::sync::Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut connections = tokio::task::JoinSet::new();
    let mut end = std::pin::pin!(end);
    loop {
        let accepted = tokio::select! {
            _ = &mut end => break,
            accepted = accept(&listener, &slots) => accepted,
            // Keeps the set from growing with connections that have ended.
            Some(_) = connections.join_next() => continue,
        };
        let Some((stream, slot)) = accepted else { continue };
        // Tokens are small and must not wait for each other.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY is refused");
        }
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(slot);
        });
    }
    drop(listener);
    if tokio::time::timeout(CLOSE, graceful.shutdown()).await.is_err() {
        tracing::debug!("connections that do not end are cut");
    }
    connections.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    slots: &std::sync::Arc<Semaphore>,
) -> Option<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let slot = std::sync::Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(error) => {
            tracing::warn!(%error, "a connection cannot be accepted");
            tokio::time::sleep(ACCEPT_RETRY).await;
            None
        }
    }
}
