//! The entry point: binds, keeps the server, serves, drains.

use std::sync::Arc;

use tokio::sync::watch;

use super::GuardOptions;
use super::keeper::{self, Kept};
use super::proxy::{Door, router};
use super::state::Guard;
use crate::ServerError;
use crate::events::{Event, EventSink};
use crate::http::body::Bodies;
use crate::http::{ApiKeys, Callers, descriptors, listener};
use crate::serve::bind;

/// How a guard's work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardEnd {
    /// It was told to end.
    Told,
    /// The program ended by itself without an error and never was a server, as `--help` does.
    NoServer,
}

/// Guards a server until `shutdown` resolves, and then until running requests have ended or the time for it is over.
/// Needs a tokio runtime with time and I/O, and is to be polled on a thread that lives as long as it does: on Linux the
/// server ends with the thread that started it.
///
/// # Errors
///
/// Whatever keeps the guard from starting, and a server that never gets ready. One that dies is no error.
pub async fn guard(
    mut options: GuardOptions,
    events: EventSink,
    shutdown: impl Future<Output = ()>,
) -> Result<GuardEnd, ServerError> {
    let (socket, address) = bind(&options.front).await?;
    options.address = address;
    let limits = listener::Limits {
        connections: descriptors::connections(options.front.connections, 0)?,
        head: options.front.receive_timeout,
    };
    let callers = Callers::new(&options.front, address.ip())?;
    let (keys, front) = (ApiKeys::new(options.front.api_keys.clone()), options.front.clone());
    let bodies = Bodies::new(front.body_limit, front.body_budget, front.receive_timeout);
    events(Event::Listening { host: address.ip().to_string(), port: address.port() });
    let guard = Arc::new(Guard::new(options, events));
    let router = router(Arc::new(Door { guard: Arc::clone(&guard), callers, keys, bodies }));
    let (end, mut ended) = watch::channel(false);
    let http = tokio::spawn(listener::serve(socket, router, limits, Arc::default(), async move {
        // A sender that is gone means that this function was cancelled: the listener ends too.
        let _ = ended.wait_for(|end| *end).await;
    }));
    // The server goes on while requests end, and so does its keeper.
    let ending = async {
        shutdown.await;
        drain(&guard).await;
        guard.end();
        std::future::pending::<()>().await;
    };
    let kept = tokio::select! {
        kept = keeper::keep(&guard) => kept,
        () = ending => Ok(Kept::Ended),
    };
    end.send_replace(true);
    if let Err(error) = http.await {
        tracing::error!(%error, "the listener failed");
    }
    let kept = kept?;
    guard.tell(Event::Shutdown { unfinished_requests: guard.active() });
    Ok(match kept {
        Kept::Ended => GuardEnd::Told,
        Kept::NoServer => GuardEnd::NoServer,
    })
}

/// Lets running requests end, for so long.
async fn drain(guard: &Guard) {
    let (requests, limit) = (guard.drain(), guard.options.front.drain);
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    guard.tell(Event::Draining { requests, limit_ms });
    if tokio::time::timeout(limit, guard.idle()).await.is_err() {
        tracing::warn!("requests that have not ended are cut");
    }
}
