//! A streamed answer on its way to its client, which is kept waiting with comments and may leave at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::http::error::ApiError;
use crate::http::sse::DONE;

/// Most bytes of a stream that wait for its client.
const MOST_WAITING: usize = 8 << 20;

/// How a stream's errors are told: each API has its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// An object with `error`, and `[DONE]`.
    OpenAi,
    /// The same without `[DONE]`.
    Native,
    /// An event by the name of `error`.
    Anthropic,
}

impl Manner {
    pub(super) fn of(path: &str) -> Manner {
        match path {
            "/v1/messages" => Manner::Anthropic,
            "/completion" | "/infill" => Manner::Native,
            _ => Manner::OpenAi,
        }
    }

    fn error(self, error: &Value) -> String {
        match self {
            Manner::OpenAi => format!("data: {error}\n\ndata: {DONE}\n\n"),
            Manner::Native => format!("data: {error}\n\n"),
            Manner::Anthropic => {
                let message = &error["error"]["message"];
                let error =
                    serde_json::json!({"type": "error", "error": {"type": "api_error", "message": message}});
                format!("event: error\ndata: {error}\n\n")
            }
        }
    }
}

/// The client has left, or takes nothing.
#[derive(Debug)]
pub(super) struct Gone;

/// Its beginning.
enum Head {
    /// A stream begins.
    Stream(HeaderMap),
    /// It is another answer: an error, mostly.
    Whole(Box<Response>),
}

/// The end at which the answer is made.
pub(super) struct Out {
    head: Option<oneshot::Sender<Head>>,
    body: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
    keep_alive: Duration,
    manner: Manner,
    sent: Instant,
}

/// The end that the client reads.
pub(super) struct In {
    head: oneshot::Receiver<Head>,
    body: mpsc::UnboundedReceiver<Bytes>,
    waiting: Arc<AtomicUsize>,
    keep_alive: Duration,
}

/// Both ends. A client that hears nothing for `keep_alive` gets a comment.
pub(super) fn pipe(keep_alive: Duration, manner: Manner) -> (Out, In) {
    let (head, its_head) = oneshot::channel();
    let (body, its_body) = mpsc::unbounded_channel();
    let waiting = Arc::<AtomicUsize>::default();
    let out = Out {
        head: Some(head),
        body,
        waiting: Arc::clone(&waiting),
        keep_alive,
        manner,
        sent: Instant::now(),
    };
    (out, In { head: its_head, body: its_body, waiting, keep_alive })
}

impl In {
    /// The answer: as it begins, or as a stream if it does not begin soon.
    pub(super) async fn response(mut self) -> Response {
        let headers = match tokio::time::timeout(self.keep_alive, &mut self.head).await {
            Ok(Ok(Head::Whole(response))) => return *response,
            Ok(Ok(Head::Stream(headers))) => headers,
            Ok(Err(_)) => return ApiError::internal("the guard failed at this request").into_response(),
            Err(_) => HeaderMap::new(),
        };
        let In { body, waiting, .. } = self;
        let body = futures::stream::unfold((body, waiting), |(mut body, waiting)| async move {
            let bytes = body.recv().await?;
            waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
            Some((Ok::<_, std::convert::Infallible>(bytes), (body, waiting)))
        });
        let mut response = Body::from_stream(body).into_response();
        let stream = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, stream);
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Asks nginx not to gather tokens into blocks.
        response
            .headers_mut()
            .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        response.headers_mut().extend(headers);
        response
    }
}

impl Out {
    /// Waits for something while the client waits for it too.
    pub(super) async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Gone> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = self.body.closed() => return Err(Gone),
                () = tokio::time::sleep_until(self.sent + self.keep_alive) => self.comment("keep-alive")?,
            }
        }
    }

    /// The stream begins with these headers, unless it has begun.
    pub(super) fn begin(&mut self, headers: HeaderMap) {
        if let Some(head) = self.head.take() {
            // It began by itself when this took too long.
            let _ = head.send(Head::Stream(headers));
        }
    }

    /// Something for the client alone to see, and for no parser.
    pub(super) fn comment(&mut self, text: &str) -> Result<(), Gone> {
        self.send(format!(": {text}\n\n").into_bytes())
    }

    /// An event with JSON.
    pub(super) fn event(&mut self, value: &Value) -> Result<(), Gone> {
        self.send(format!("data: {value}\n\n").into_bytes())
    }

    /// Bytes of events.
    pub(super) fn send(&mut self, bytes: Vec<u8>) -> Result<(), Gone> {
        self.sent = Instant::now();
        let waiting = self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        if waiting > MOST_WAITING {
            let error = self.manner.error(&ApiError::unread(waiting).body());
            // Nobody reads it, or somebody does at last.
            let _ = self.body.send(error.into());
            return Err(Gone);
        }
        self.body.send(bytes.into()).map_err(|_| Gone)
    }

    /// Ends with another answer: as one, or as an error in the stream if that has begun.
    pub(super) fn whole(&mut self, response: Response, error: &Value) {
        let unsent = match self.head.take() {
            Some(head) => head.send(Head::Whole(Box::new(response))).is_err(),
            None => true,
        };
        if unsent {
            // The client may have left.
            let _ = self.send(self.manner.error(error).into_bytes());
        }
    }

    /// Ends with an error.
    pub(super) fn fail(&mut self, error: ApiError) {
        let body = error.body();
        self.whole(error.into_response(), &body);
    }

    /// Ends as such streams do.
    pub(super) fn done(&mut self) -> Result<(), Gone> {
        match self.manner {
            Manner::OpenAi => self.send(format!("data: {DONE}\n\n").into_bytes()),
            Manner::Native | Manner::Anthropic => Ok(()),
        }
    }
}
