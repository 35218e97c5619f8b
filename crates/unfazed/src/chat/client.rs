//! One request to an OpenAI-compatible server, and its answer as it comes.

use std::io;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use unfazed_server::event_stream;

use super::endpoint::Endpoint;

/// Longest answer that is read whole (a list of models, an error).
const MAX_BODY_BYTES: usize = 16 << 20;

/// A request that got no answer, or an answer that broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nobody listens.
    #[error("cannot reach {address}: {cause} (is the server running?)")]
    Unreachable { address: String, cause: io::Error },
    /// The server said no.
    #[error("{message}")]
    Refused { code: String, message: String },
    /// The connection broke.
    #[error("the connection to the server broke: {0}")]
    Broken(#[from] hyper::Error),
    /// The answer is not what the API promises.
    #[error("the server's answer makes no sense: {0}")]
    Nonsense(String),
}

impl ClientError {
    /// True if the conversation is longer than the model's context.
    pub(crate) fn is_context_overflow(&self) -> bool {
        matches!(self, ClientError::Refused { code, .. }
            if code == "context_length_exceeded" || code == "exceed_context_size_error")
    }
}

/// What comes while an answer is streamed.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    /// Some text.
    Text(String),
    /// Why the answer ended: `stop`, `length`, ...
    Finish(String),
    /// Counts and times.
    Statistics(Statistics),
}

/// Counts and times of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Statistics {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: u64,
    /// Tokens of the answer.
    pub(crate) answer_tokens: u64,
    /// Tokens a second, as the server measured.
    pub(crate) per_second: Option<f64>,
    /// The same for the prompt.
    pub(crate) prompt_per_second: Option<f64>,
}

/// An answer that is being streamed. Dropping it closes the connection, and the server stops computing.
pub(crate) struct Answer {
    body: Incoming,
    events: event_stream::Parser,
    parts: std::collections::VecDeque<Part>,
    done: bool,
    _connection: Connection,
}

/// Ends the task that drives a connection.
struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The id of the first model that the server lists.
pub(crate) async fn first_model(endpoint: &Endpoint) -> Result<String, ClientError> {
    let (response, _connection) = send(endpoint, "GET", "/v1/models", None).await?;
    let list: Value = serde_json::from_slice(&whole(response).await?)
        .map_err(|error| ClientError::Nonsense(format!("/v1/models: {error}")))?;
    list.pointer("/data/0/id")
        .and_then(Value::as_str)
        .map(str::to_owned)
        .ok_or_else(|| ClientError::Nonsense("/v1/models lists no model".to_owned()))
}

/// What the server says of itself.
pub(crate) async fn health(endpoint: &Endpoint) -> Result<Value, ClientError> {
    let (response, _connection) = send(endpoint, "GET", "/health", None).await?;
    serde_json::from_slice(&whole(response).await?)
        .map_err(|error| ClientError::Nonsense(format!("/health: {error}")))
}

/// Asks for a streamed answer.
pub(crate) async fn chat(endpoint: &Endpoint, request: &Value) -> Result<Answer, ClientError> {
    let (response, connection) = send(endpoint, "POST", "/v1/chat/completions", Some(request)).await?;
    Ok(Answer {
        body: response.into_body(),
        events: event_stream::Parser::default(),
        parts: std::collections::VecDeque::new(),
        done: false,
        _connection: connection,
    })
}

impl Answer {
    /// The next part; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Part>, ClientError> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Ok(Some(part));
            }
            if self.done {
                return Ok(None);
            }
            if let Some(block) = self.events.next_block() {
                if let Some(event) = block.unnamed() {
                    self.event(&event)?;
                }
                continue;
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.events.push(&bytes).map_err(|error| ClientError::Nonsense(error.to_string()))?;
                    }
                }
                None => return Err(ClientError::Nonsense("the stream ended before [DONE]".to_owned())),
            }
        }
    }

    fn event(&mut self, event: &str) -> Result<(), ClientError> {
        if event == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let chunk: Chunk =
            serde_json::from_str(event).map_err(|error| ClientError::Nonsense(error.to_string()))?;
        if let Some(error) = chunk.error {
            return Err(error.into_refusal());
        }
        for choice in chunk.choices {
            if let Some(text) = choice.delta.content.filter(|text| !text.is_empty()) {
                self.parts.push_back(Part::Text(text));
            }
            if let Some(reason) = choice.finish_reason {
                self.parts.push_back(Part::Finish(reason));
            }
        }
        if chunk.usage.is_some() || chunk.timings.is_some() {
            let usage = chunk.usage.unwrap_or_default();
            let timings = chunk.timings.unwrap_or_default();
            self.parts.push_back(Part::Statistics(Statistics {
                prompt_tokens: usage.prompt_tokens,
                answer_tokens: usage.completion_tokens,
                per_second: timings.predicted_per_second,
                prompt_per_second: timings.prompt_per_second,
            }));
        }
        Ok(())
    }
}

async fn send(
    endpoint: &Endpoint,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<(Response<Incoming>, Connection), ClientError> {
    let unreachable = |cause| ClientError::Unreachable { address: endpoint.authority(), cause };
    let stream = TcpStream::connect(endpoint.address()).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = Connection(tokio::spawn(connection).abort_handle());
    let mut request = Request::builder()
        .method(method)
        .uri(endpoint.path(path))
        .header(header::HOST, endpoint.authority())
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(key) = endpoint.key() {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| ClientError::Nonsense(format!("cannot make a request: {error}")))?;
    let response = sender.send_request(request).await?;
    if response.status() == StatusCode::OK {
        return Ok((response, connection));
    }
    let status = response.status();
    Err(refusal(status, &whole(response).await?))
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    match Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(ClientError::Nonsense(error.to_string())),
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<Chunk>(body) {
        Ok(Chunk { error: Some(error), .. }) => error.into_refusal(),
        _ => ClientError::Refused { code: String::new(), message: format!("the server answered {status}") },
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    timings: Option<Timings>,
    error: Option<ServerError>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Default, Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

#[derive(Default, Deserialize)]
struct Timings {
    prompt_per_second: Option<f64>,
    predicted_per_second: Option<f64>,
}

/// OpenAI's error; llama-server's has a number as code and the name in `type`.
#[derive(Deserialize)]
struct ServerError {
    #[serde(default)]
    message: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<Value>,
}

impl ServerError {
    fn into_refusal(self) -> ClientError {
        let code = self.code.as_ref().and_then(Value::as_str).map(str::to_owned);
        ClientError::Refused { code: code.or(self.kind).unwrap_or_default(), message: self.message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_both_servers_are_read() {
        let ours = br#"{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}"#;
        let theirs = br#"{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}"#;
        for body in [&ours[..], &theirs[..]] {
            let error = refusal(StatusCode::BAD_REQUEST, body);
            assert!(error.is_context_overflow(), "{error:?}");
            assert_eq!(error.to_string(), "too long");
        }
        let other = refusal(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!(other.to_string(), "the server answered 502 Bad Gateway");
    }
}
