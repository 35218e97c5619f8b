//! A streamed answer, from one process of the server or from several.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::Value;

use super::borders::Borders;
use super::exchange::{self, AGAIN, Trials};
use super::life::Flight;
use super::out::{self, Gone, Manner, Out};
use super::probe::{Asker, NoAnswer, Talk};
use super::reading::Reading;
use super::request::{Additions, Api, Asked};
use super::resume::{self, Continuation};
use super::state::{Active, Pass};
use super::transcript::Transcript;
use super::whole::MOST_WHOLE;
use crate::events::Event;
use crate::http::error::ApiError;

/// How the next process goes on.
pub(super) enum Plan {
    /// As if nothing had been.
    Anew,
    /// From the beginning; what comes again is compared and left out.
    Again,
    /// Behind what was sent.
    Behind(Box<Continuation>),
    /// With a prompt that what was sent was added to, so many tokens.
    Longer(Bytes, u64),
}

impl Plan {
    fn name(&self) -> &'static str {
        match self {
            Plan::Anew => "retried",
            Plan::Again => "replayed",
            Plan::Behind(_) | Plan::Longer(..) => "continued",
        }
    }
}

/// Why an attempt did not end the answer.
pub(super) enum Stop {
    /// The client left, or has its answer.
    End,
    /// The process or its connection failed.
    Broke,
    /// What was computed again became another answer.
    Differs,
    /// The answer cannot be given.
    Fail(ApiError),
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Stop {
        Stop::End
    }
}

/// The making of an answer.
pub(super) struct Making {
    pub(super) active: Active,
    pub(super) asked: Asked,
    pub(super) out: Out,
    pub(super) trials: Trials,
    pub(super) pass: Option<Pass>,
    pub(super) transcript: Transcript,
    pub(super) borders: Borders,
    /// The first chunk.
    pub(super) like: Value,
    /// The rendered prompt.
    rendered: Option<String>,
    pub(super) attempts: u32,
    /// Borders before the answer came again.
    before: Option<Borders>,
    /// Computed again it became another answer.
    was_another: bool,
    /// How long a token took.
    pub(super) per_token: Duration,
    /// Processes that went on with what another had begun to send.
    pub(super) resumed: u32,
    /// All of them exactly.
    pub(super) exact: bool,
    /// The process that it is in gave it something.
    pub(super) gained: bool,
    /// The last chunk was sent.
    pub(super) finished: bool,
}

/// Answers a request for a stream.
pub(super) async fn answer(active: Active, asked: Asked) -> Response<Body> {
    let keep_alive = active.guard.options.front.keep_alive;
    let (out, its_end) = out::pipe(keep_alive, Manner::of(&asked.path));
    let making = Making {
        active,
        asked,
        out,
        trials: Trials::default(),
        pass: None,
        transcript: Transcript::default(),
        borders: Borders::default(),
        like: Value::Null,
        rendered: None,
        attempts: 0,
        before: None,
        was_another: false,
        per_token: Duration::ZERO,
        resumed: 0,
        exact: true,
        gained: false,
        finished: false,
    };
    tokio::spawn(making.make());
    its_end.response().await
}

impl Making {
    async fn make(mut self) {
        loop {
            match self.attempt().await {
                Ok(()) | Err(Stop::End) => return,
                Err(Stop::Broke) => {}
                Err(Stop::Differs) => self.was_another = true,
                Err(Stop::Fail(error)) => {
                    self.active.guard.standing().lost += 1;
                    return self.out.fail(error);
                }
            }
        }
    }

    /// One process.
    async fn attempt(&mut self) -> Result<(), Stop> {
        let guard = Arc::clone(&self.active.guard);
        self.pass = None;
        self.pass = Some(self.out.wait(guard.pass(self.trials.is_suspect())).await?);
        let life = self.out.wait(guard.ready(guard.options.queue)).await?.map_err(Stop::Fail)?;
        let talk = guard.talk().cloned().unwrap_or_default();
        let flight = life.enter();
        self.gained = false;
        let result = self.in_process(&flight, &talk).await;
        if matches!(result, Err(Stop::Broke)) {
            let broke = self.trials.broke(&guard, self.active.number, &flight, self.gained);
            self.out.wait(broke).await?.map_err(Stop::Fail)?;
        }
        result
    }

    async fn in_process(&mut self, flight: &Flight, talk: &Talk) -> Result<(), Stop> {
        let guard = Arc::clone(&self.active.guard);
        let api = Api::of(&self.asked.path, talk.llama);
        let plan = self.plan(flight, api, talk).await?;
        self.tell(&plan)?;
        self.attempts = self.attempts.saturating_add(1);
        let (target, body, additions) = match &plan {
            Plan::Longer(body, _) => (self.asked.target.clone(), body.clone(), Additions::default()),
            Plan::Behind(on) => (resume::PATH.to_owned(), on.body.to_string().into(), Additions::default()),
            Plan::Anew | Plan::Again => {
                let (body, additions) = self.asked.with_additions(api, talk);
                (self.asked.target.clone(), body, additions)
            }
        };
        let sent = exchange::send(&guard, flight, &self.asked, &target, body);
        let sent = self.out.wait(until_death(flight, sent)).await??;
        let (response, _connection) = sent.map_err(|error| Stop::broke(&error))?;
        let Some(body) = self.head(flight, response).await? else { return Ok(()) };
        let hidden = self.asked.has_tools() && !talk.llama;
        self.read(Reading { flight, api, additions, hidden, plan }, body).await
    }

    /// How this process goes on.
    async fn plan(&mut self, flight: &Flight, api: Option<Api>, talk: &Talk) -> Result<Plan, Stop> {
        if let Some(before) = self.before.take()
            && !self.transcript.end_again()
        {
            // What was computed again did not come to where the client is.
            self.borders = before;
        }
        if self.transcript.is_empty() {
            self.borders.begin();
            self.transcript.begin_again();
            return Ok(Plan::Anew);
        }
        let Some(api) = api else {
            return Err(self.cannot("streams of this kind cannot be continued"));
        };
        let guard = Arc::clone(&self.active.guard);
        let comes_again = self.transcript.is_known() && self.asked.may_come_again(talk) && !self.was_another;
        let even = talk.llama && guard.options.command.is_even();
        let same = self.asked.is_greedy(talk) || self.asked.is_seeded();
        let replay = guard.options.replay;
        if comes_again && same && !even && !replay.is_zero() && self.time_again() <= replay {
            return Ok(self.again());
        }
        let mut why = "its text is not all there is to it, and it would not be the same again".to_owned();
        let plain = self.transcript.plain().filter(|_| self.asked.is_plain()).map(str::to_owned);
        if let Some(text) = plain {
            if talk.llama {
                let asker = Asker(guard.options.command.key.as_deref());
                let Making { asked, borders, rendered, out, .. } = self;
                let behind = resume::Behind { asked, api, talk, even };
                let made = behind.continuation((asker, &flight.life), (&text, borders), rendered);
                match out.wait(until_death(flight, made)).await?? {
                    Ok(on) => return Ok(Plan::Behind(Box::new(on))),
                    Err(NoAnswer::Broke(error)) => return Err(Stop::broke(&error)),
                    Err(NoAnswer::Refused(refusal)) => why = refusal,
                }
            } else if let Some(body) = resume::longer_prompt(&self.asked, api, &text, self.borders.tokens()) {
                return Ok(Plan::Longer(body, self.borders.tokens()));
            }
        }
        if comes_again { Ok(self.again()) } else { Err(self.cannot(&why)) }
    }

    fn again(&mut self) -> Plan {
        self.transcript.begin_again();
        self.before = Some(std::mem::take(&mut self.borders));
        Plan::Again
    }

    /// How long it takes to compute again what was computed.
    fn time_again(&self) -> Duration {
        let tokens = u32::try_from(self.borders.tokens()).unwrap_or(u32::MAX);
        self.per_token.saturating_mul(tokens)
    }

    pub(super) fn cannot(&self, why: &str) -> Stop {
        let text = format!("the server behind this guard stopped in this stream, which cannot go on: {why}");
        Stop::Fail(ApiError::internal(text).with_code("stream_cut"))
    }

    /// Tells that an answer goes on.
    fn tell(&mut self, plan: &Plan) -> Result<(), Stop> {
        if self.attempts == 0 {
            return Ok(());
        }
        let guard = &self.active.guard;
        let begun = !matches!(plan, Plan::Anew);
        let exact = match plan {
            Plan::Anew | Plan::Again => true,
            Plan::Behind(on) => on.exact,
            Plan::Longer(..) => false,
        };
        {
            let mut standing = guard.standing();
            standing.resumed += 1;
            standing.streams_resumed += u64::from(begun);
        }
        let (request, tokens) = (self.active.number, self.borders.tokens());
        guard.tell(Event::RequestContinued { request, how: plan.name(), tokens, exact });
        if begun {
            self.resumed = self.resumed.saturating_add(1);
            self.exact &= exact;
            self.out.comment(&format!(
                "unfazed guard: {}{}",
                plan.name(),
                if exact { ", exact" } else { "" }
            ))?;
        }
        Ok(())
    }

    /// Looks at the head of an answer: its body, if it is a stream. Whatever else it is has been dealt with.
    async fn head(
        &mut self,
        flight: &Flight,
        response: Response<Incoming>,
    ) -> Result<Option<Incoming>, Stop> {
        let guard = Arc::clone(&self.active.guard);
        let (parts, body) = response.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let headers = exchange::passed_on(&parts.headers);
        if parts.status == StatusCode::OK && kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            self.out.begin(headers);
            return Ok(Some(body));
        }
        let collected =
            self.out.wait(until_death(flight, Limited::new(body, MOST_WHOLE).collect())).await??;
        let body = collected.map_err(|error| Stop::broke(&error))?.to_bytes();
        if exchange::is_loading(parts.status, &body) {
            self.out.wait(tokio::time::sleep(AGAIN)).await?;
            return Err(Stop::Broke);
        }
        if parts.status.is_server_error() && self.out.wait(exchange::is_engine_fault(&guard, flight)).await? {
            return Err(Stop::Broke);
        }
        let error = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = parts.status;
        *response.headers_mut() = headers;
        self.out.whole(response, &error);
        Ok(None)
    }
}

impl Stop {
    pub(super) fn broke(error: &impl std::fmt::Display) -> Stop {
        tracing::debug!(%error, "a request to the server failed");
        Stop::Broke
    }
}

/// Waits for something of a process's, unless the process ends.
pub(super) async fn until_death<T>(flight: &Flight, work: impl Future<Output = T>) -> Result<T, Stop> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        _ = flight.life.death() => Err(Stop::Broke),
    }
}
