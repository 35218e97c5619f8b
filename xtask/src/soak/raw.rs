//! Clients of plain HTTP: whole answers, streams, streams that are left, streams that are cut and continued.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::answer::Answer;
use super::sse::{Event, Parser, Sequence};

/// For so long a resumable stream goes on without a reader; then it is forgotten, so that what is kept stays about the same.
const KEEP_SECONDS: &str = "20";
/// What a stream ends with.
const DONE: &str = "[DONE]";

/// A client of one server, with a connection of its own for each request.
#[derive(Clone)]
pub(super) struct Http {
    port: u16,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A cut of a resumable stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Events after the last cut.
    pub(super) events: u64,
    /// How long the client is away.
    pub(super) away_ms: u64,
}

impl Http {
    pub(super) fn new(port: u16) -> Http {
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Http { port, client }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// A body that is small.
    pub(super) async fn get(&self, path: &str) -> Result<String> {
        let response = self.send(Method::GET, path, &[], Full::default()).await?;
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8(bytes.to_vec())?)
    }

    /// An answer as a whole.
    pub(super) async fn whole(&self, path: &str, body: &Value) -> Result<Answer> {
        let response = self.post(path, body, &[]).await?;
        let bytes = response.into_body().collect().await.context("the answer broke off")?.to_bytes();
        let body: Value = serde_json::from_slice(&bytes)?;
        Ok(Answer::whole(&body))
    }

    /// A stream to its end, or until so many events have come. `received` is called for each event with tokens.
    pub(super) async fn stream(
        &self,
        path: &str,
        body: &Value,
        leave_after: Option<u64>,
        received: impl Fn(),
    ) -> Result<Answer> {
        let response = self.post(path, body, &[]).await?;
        let mut answer = Answer::default();
        let mut stream = Stream::new(response);
        let mut events = 0;
        while leave_after.is_none_or(|most| events < most)
            && let Some(event) = stream.next().await?
        {
            take(&mut answer, &event, &received)?;
            events += 1;
        }
        Ok(answer)
    }

    /// A resumable stream to its end, over cuts.
    pub(super) async fn resumable(
        &self,
        path: &str,
        body: &Value,
        cuts: &[Cut],
        received: impl Fn(),
    ) -> Result<Answer> {
        let response = self.post(path, body, &[("unfazed-resumable", KEEP_SECONDS)]).await?;
        let id = response.headers().get("unfazed-stream-id").context("the stream has no id")?;
        let mut sequence = Sequence::new(id.to_str()?.to_owned());
        let mut answer = Answer::default();
        let mut stream = Stream::new(response);
        for cut in cuts {
            for _ in 0..cut.events {
                let Some(event) = stream.next().await? else { return Ok(answer) };
                sequence.take(event.id.as_deref()).map_err(anyhow::Error::msg)?;
                take(&mut answer, &event, &received)?;
            }
            if answer.ends > 0 {
                break;
            }
            drop(stream);
            tokio::time::sleep(Duration::from_millis(cut.away_ms)).await;
            stream = Stream::new(self.continued(&sequence).await?);
        }
        while let Some(event) = stream.next().await? {
            sequence.take(event.id.as_deref()).map_err(anyhow::Error::msg)?;
            take(&mut answer, &event, &received)?;
        }
        Ok(answer)
    }

    async fn continued(&self, sequence: &Sequence) -> Result<Response<Incoming>> {
        let path = format!("/v1/streams/{}", sequence.stream());
        let last = sequence.last();
        let headers: Vec<_> = last.iter().map(|last| ("last-event-id", last.as_str())).collect();
        let response = self.send(Method::GET, &path, &headers, Full::default()).await?;
        let status = response.status();
        ensure!(
            status == StatusCode::OK,
            "a stream that was cut behind event {last:?} is answered with {status}"
        );
        Ok(response)
    }

    async fn post(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Result<Response<Incoming>> {
        let body = Full::from(body.to_string());
        let response = self.send(Method::POST, path, headers, body).await?;
        let status = response.status();
        if status != StatusCode::OK {
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::bail!("answered with {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(response)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Full<Bytes>,
    ) -> Result<Response<Incoming>> {
        let uri = format!("http://127.0.0.1:{}{path}", self.port);
        let mut request =
            Request::builder().method(method).uri(uri).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Ok(self.client.request(request.body(body)?).await?)
    }
}

/// Takes an event into the answer.
fn take(answer: &mut Answer, event: &Event, received: &impl Fn()) -> Result<()> {
    if event.data == DONE {
        answer.end();
    } else if answer.add(&serde_json::from_str(&event.data).context("an event is no JSON")?) {
        received();
    }
    Ok(())
}

/// Events out of a body.
struct Stream {
    body: Incoming,
    parser: Parser,
}

impl Stream {
    fn new(response: Response<Incoming>) -> Stream {
        Stream { body: response.into_body(), parser: Parser::default() }
    }

    /// The next event, `None` at the end of the body.
    async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame.context("the stream broke off")?.into_data() {
                self.parser.push(&data);
            }
        }
    }
}
