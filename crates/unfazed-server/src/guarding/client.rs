//! HTTP to the guarded server: a connection for each request, as one that outlives its request may belong to a server
//! that is gone.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::programs::LOCAL;

/// How long a connection to a port of this machine may take. One to a full queue of a stopped server takes for ever.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest answer to a question of the guard's own.
const MOST_ANSWER: usize = 16 << 20;

/// No answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("it cannot be reached: {0}")]
    Unreachable(std::io::Error),
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error("no answer within {:.1} s", .0.as_secs_f64())]
    Late(Duration),
    #[error("its answer cannot be read: {0}")]
    Unreadable(String),
}

/// Drives a connection. Dropping it closes the connection, which tells the server that nobody waits.
#[derive(Debug)]
pub(super) struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a request and waits for the head of its answer.
pub(super) async fn send(
    port: u16,
    request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, Connection), ClientError> {
    let stream = tokio::time::timeout(CONNECT, TcpStream::connect((LOCAL, port)))
        .await
        .map_err(|_| ClientError::Late(CONNECT))?
        .map_err(ClientError::Unreachable)?;
    stream.set_nodelay(true).map_err(ClientError::Unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = Connection(tokio::spawn(connection).abort_handle());
    Ok((sender.send_request(request).await?, connection))
}

/// Asks something of the guard's own: status and body.
pub(super) async fn ask(
    port: u16,
    key: Option<&str>,
    path: &str,
    body: Option<&Value>,
    limit: Duration,
) -> Result<(StatusCode, Vec<u8>), ClientError> {
    let asked = async {
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, format!("{LOCAL}:{port}"))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = key.and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok()) {
            request = request.header(header::AUTHORIZATION, key);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| ClientError::Unreadable(error.to_string()))?;
        let (response, _connection) = send(port, request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_ANSWER).collect().await;
        let body = body.map_err(|error| ClientError::Unreadable(error.to_string()))?;
        Ok((status, body.to_bytes().to_vec()))
    };
    tokio::time::timeout(limit, asked).await.map_err(|_| ClientError::Late(limit))?
}
