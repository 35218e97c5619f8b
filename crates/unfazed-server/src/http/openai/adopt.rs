//! Answers that another front began: from the journal on disk, or handed over by it.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::http::header;
use axum::response::IntoResponse;

use super::super::error::ApiError;
use super::super::random_id::RandomId;
use super::super::router::App;
use super::admission::Admission;
use super::answer::{chunks, gathered, make_whole};
use super::making::Making;
use crate::handover::{Answer, Answered, Predecessor};
use crate::journal::{Recorded, Tape};

/// Longest error body.
const ERROR_BYTES: usize = 1 << 20;

/// Goes on with an answer; `predecessor` is told what comes of it where somebody waits for it there.
pub(crate) fn adopt(app: &App, answer: &Answer, predecessor: Option<&Predecessor>) {
    let admission: Result<Admission, ApiError> = serde_json::from_str(&answer.admission)
        .map_err(|error| {
            tracing::error!(answer = String::from(answer.key), %error, "an answer of another front cannot be read");
            ApiError::internal("this request came to another build of the server, which this one cannot go on with")
        });
    match admission {
        Ok(admission) if admission.model != app.model.identity => {
            let message = "the server was started with another model before this answer was whole";
            give_up(
                app,
                answer,
                Some(&admission),
                ApiError::internal(message).with_code("model_changed"),
                predecessor,
            );
        }
        Ok(admission) if admission.stream => stream(app, answer, &admission, predecessor),
        Ok(admission) => whole(app, answer, &admission, predecessor),
        Err(error) => give_up(app, answer, None, error, predecessor),
    }
}

fn stream(app: &App, answer: &Answer, admission: &Admission, predecessor: Option<&Predecessor>) {
    let id = RandomId::of(answer.key.0);
    // Several choices may mix in another order when the last of what was told is told again.
    let exact = admission.sequences.len() < 2;
    let opened = app.streams.restore(id, admission.keep, answer.events, exact);
    let mut making = Making::new(app, admission, chunks(app, admission));
    let (steps, replayed) = making.replay(answer.told.as_bytes());
    // What was told once fits into the memory for streams, or is lost as it would have been.
    opened.maker.take_texts(steps.into_iter().flat_map(|step| step.texts));
    let tape = tape(app, answer, replayed.bytes);
    if !replayed.ended {
        making.go_on(app, admission, &replayed);
    }
    if let Some(predecessor) = predecessor.filter(|_| answer.read) {
        predecessor.relay(answer.key, opened.reader);
    }
    tokio::spawn(opened.maker.run(tape, Arc::clone(&app.passage), making.steps()));
}

fn whole(app: &App, answer: &Answer, admission: &Admission, predecessor: Option<&Predecessor>) {
    let Some(predecessor) = predecessor else { return };
    let mut making = Making::new(app, admission, gathered(app, admission));
    let (steps, replayed) = making.replay(answer.told.as_bytes());
    let tape = tape(app, answer, replayed.bytes);
    let told = steps.into_iter().filter_map(|mut step| step.texts.pop()).next_back();
    if !replayed.ended {
        making.go_on(app, admission, &replayed);
    }
    let (app, id) = (Arc::clone(app), answer.key.0);
    predecessor.relay_whole(answer.key, async move {
        if let Some(body) = told {
            let result = making.form().error.clone().map_or(Ok(body), Err);
            return Some(answered(result).await);
        }
        match make_whole(&app, making, &tape).await {
            Ok(result) => Some(answered(result).await),
            // Yet another front makes it.
            Err(successor) => match successor.follow(id).next().await? {
                crate::handover::Relayed::Whole(answered) => Some(answered),
                _ => None,
            },
        }
    });
}

/// The answer's tape, as far as it was of use.
fn tape(app: &App, answer: &Answer, used: usize) -> Tape {
    let mut told = answer.told.clone().into_bytes();
    let same = answer.same && told.len() == used;
    told.truncate(used);
    let admission = answer.admission.clone().into_bytes();
    app.tapes.restore(answer.key.0, Recorded { admission, told, stored: answer.stored }, same)
}

/// An answer that nobody can go on with ends by name.
fn give_up(
    app: &App,
    answer: &Answer,
    admission: Option<&Admission>,
    error: ApiError,
    predecessor: Option<&Predecessor>,
) {
    let keep = admission.and_then(|admission| admission.keep);
    let streamed = admission.is_none_or(|admission| admission.stream);
    let read = predecessor.filter(|_| answer.read);
    if streamed {
        let opened = app.streams.restore(RandomId::of(answer.key.0), keep, answer.events, false);
        if let Some(predecessor) = read {
            predecessor.relay(answer.key, opened.reader);
        }
        let tape = tape(app, answer, 0);
        let step =
            super::super::streams::Step { texts: vec![error.body().to_string()], ..Default::default() };
        let steps = futures::stream::iter([step]);
        tokio::spawn(opened.maker.run(tape, Arc::clone(&app.passage), steps));
    } else if let Some(predecessor) = read {
        predecessor.relay_whole(answer.key, async move { Some(answered(Err(error)).await) });
    }
}

async fn answered(result: Result<String, ApiError>) -> Answered {
    match result {
        Ok(body) => Answered { status: 200, retry_after: None, body },
        Err(error) => {
            let response = error.into_response();
            let status = response.status().as_u16();
            let retry_after = response.headers().get(header::RETRY_AFTER);
            let retry_after = retry_after.and_then(|value| Some(value.to_str().ok()?.to_owned()));
            let body = to_bytes(response.into_body(), ERROR_BYTES).await.unwrap_or_default();
            Answered { status, retry_after, body: String::from_utf8_lossy(&body).into_owned() }
        }
    }
}
