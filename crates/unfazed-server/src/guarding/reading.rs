//! A stream of the server's, event by event: what of it goes to the client, and what is remembered of it.

use std::sync::Arc;
use std::time::Instant;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::exchange;
use super::life::Flight;
use super::request::{Additions, Api, Told};
use super::resume::{self, Continuation};
use super::state::Pass;
use super::stream::{Making, Plan, Stop};
use super::transcript::Again;
use crate::event_stream::{Block, Parser};
use crate::http::sse::DONE;

/// Tokens after which it is known how long one takes.
const ENOUGH: u64 = 4;

/// A stream to be read.
pub(super) struct Reading<'a> {
    pub(super) flight: &'a Flight,
    pub(super) api: Option<Api>,
    pub(super) additions: Additions,
    /// It may be silent while something is computed for it.
    pub(super) hidden: bool,
    pub(super) plan: Plan,
}

/// What an event was.
enum Read {
    /// One of several.
    More,
    /// The last one.
    Last,
}

impl Making {
    /// Reads a stream to its end.
    pub(super) async fn read(&mut self, mut reading: Reading<'_>, mut body: Incoming) -> Result<(), Stop> {
        let mut parser = Parser::default();
        let (began, tokens) = (Instant::now(), self.borders.tokens());
        let mut comment = None;
        loop {
            // What the process wrote before its end is still there, and the end of it too: no need to look for its death.
            let Some(frame) = self.out.wait(body.frame()).await? else {
                return self.end_of_bytes(&reading);
            };
            let frame = frame.map_err(|error| Stop::broke(&error))?;
            let bytes = frame.into_data().unwrap_or_default();
            let computed = self.borders.tokens().saturating_sub(tokens);
            if computed >= ENOUGH {
                self.per_token = began.elapsed() / u32::try_from(computed).unwrap_or(u32::MAX);
            }
            parser.push(&bytes).map_err(|error| self.cannot(&error.to_string()))?;
            while let Some(block) = parser.next_block() {
                if block.data.is_none() && block.comment != comment {
                    // A comment that says something new, as of a prompt that is read.
                    comment.clone_from(&block.comment);
                    reading.flight.moved(false);
                }
                if let Read::Last = self.block(&mut reading, block).await? {
                    return Ok(());
                }
            }
        }
    }

    /// The bytes ended without the last event.
    fn end_of_bytes(&mut self, reading: &Reading<'_>) -> Result<(), Stop> {
        match (reading.api, &reading.plan) {
            (_, Plan::Behind(_)) if self.finished => Ok(self.out.done()?),
            // Some servers end so.
            (Some(Api::Native), _) if self.finished => Ok(()),
            (Some(_), _) if self.finished => Ok(self.out.done()?),
            (Some(_), _) => Err(Stop::Broke),
            // Of streams of another kind it is not known what ends them: a process that lives has ended this one well.
            (None, _) if crate::Process::exit(&*reading.flight.life.process).is_none() => Ok(()),
            (None, _) => Err(Stop::Broke),
        }
    }

    async fn block(&mut self, reading: &mut Reading<'_>, block: Block) -> Result<Read, Stop> {
        let data = match (&block.data, &block.name) {
            (None, _) => {
                self.out.send(block.raw)?;
                return Ok(Read::More);
            }
            (Some(data), _) if data == DONE => {
                self.out.done()?;
                return Ok(Read::Last);
            }
            (Some(data), name) => {
                let named = name.as_ref().is_some_and(|name| !name.is_empty() && name != "message");
                (!named).then_some(data)
            }
        };
        let chunk = data.and_then(|data| serde_json::from_str::<Value>(data).ok());
        let (Some(api), Some(chunk)) = (reading.api, chunk) else {
            self.got(reading, true);
            self.transcript.add_unknown();
            self.out.send(block.raw)?;
            return Ok(Read::More);
        };
        if chunk["error"].is_object() || chunk["error"].is_string() {
            return self.error(reading, block.raw).await;
        }
        self.finished |= ends(&chunk);
        match &mut reading.plan {
            Plan::Behind(on) => {
                let chunks = self.behind(api, on, chunk)?;
                self.got(reading, true);
                for chunk in chunks {
                    self.out.event(&chunk)?;
                }
                if self.finished {
                    self.out.done()?;
                    return Ok(Read::Last);
                }
            }
            Plan::Anew | Plan::Again | Plan::Longer(..) => self.chunk(reading, api, chunk, block.raw)?,
        }
        Ok(Read::More)
    }

    /// A chunk of the answer itself.
    fn chunk(&mut self, reading: &Reading<'_>, api: Api, mut chunk: Value, raw: Vec<u8>) -> Result<(), Stop> {
        let told = Told::of(api, &chunk);
        self.got(reading, told.as_ref().is_some_and(|told| !told.text.is_empty()));
        if let Some(told) = told {
            self.borders.add(told);
        }
        let mut same = !reading.additions.any();
        reading.additions.strip(&mut chunk);
        if self.transcript.comes_again() {
            match self.transcript.again(api, &mut chunk) {
                Again::Sent => return Ok(()),
                Again::New => {}
                Again::Differs => return Err(Stop::Differs),
            }
        } else {
            self.transcript.add(api, &chunk);
        }
        if self.like.is_null() {
            self.like = chunk.clone();
        } else if self.attempts > 1 {
            same = false;
            for name in ["id", "created"] {
                if let (Some(value), Some(first)) = (chunk.get_mut(name), self.like.get(name)) {
                    *value = first.clone();
                }
            }
            if let Plan::Longer(_, tokens) = reading.plan {
                resume::count(&mut chunk, tokens);
            }
            if self.resumed > 0 {
                resume::mark(&mut chunk, self.resumed, self.exact);
            }
        }
        if same {
            self.out.send(raw)?
        } else {
            self.out.event(&chunk)?
        }
        Ok(())
    }

    /// A chunk of a raw completion that goes on with the answer.
    fn behind(&mut self, api: Api, on: &mut Continuation, chunk: Value) -> Result<Vec<Value>, Stop> {
        if let Some(told) = Told::of(Api::Native, &chunk) {
            self.borders.add(told);
        }
        let usage = self.asked.wants_usage() || api == Api::Completions;
        let chunks = on.translate(api, chunk, &self.like, usage);
        let mut chunks = chunks.map_err(|_| self.cannot("computed again it became another answer"))?;
        for chunk in &mut chunks {
            self.transcript.add(api, chunk);
            resume::mark(chunk, self.resumed, self.exact);
        }
        Ok(chunks)
    }

    /// The process gave something. `text`: which a client can see.
    fn got(&mut self, reading: &Reading<'_>, text: bool) {
        reading.flight.moved(text && !reading.hidden);
        if text && !std::mem::replace(&mut self.gained, true) && self.trials.gained() {
            self.pass = self.pass.take().map(Pass::share);
        }
    }

    /// The server ended the stream with an error, its own or the request's.
    async fn error(&mut self, reading: &Reading<'_>, raw: Vec<u8>) -> Result<Read, Stop> {
        let guard = Arc::clone(&self.active.guard);
        if self.out.wait(exchange::is_engine_fault(&guard, reading.flight)).await? {
            return Err(Stop::Broke);
        }
        self.out.send(raw)?;
        self.out.done()?;
        Ok(Read::Last)
    }
}

/// Whether a chunk is its answer's last, but for one with counts.
fn ends(chunk: &Value) -> bool {
    let choices = chunk["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
    chunk["stop"] == true || choices.iter().any(|choice| !choice["finish_reason"].is_null())
}
