//! An answer that is being made of what engines tell, from its admission or from where another process had come with it.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::{Stream, StreamExt, stream};

use super::super::error::ApiError;
use super::super::router::AppState;
use super::super::streams::Step;
use super::admission::Admission;
use super::choice::Choice;
use super::forms::Form;
use super::told;
use crate::supervisor::{Interruption, Sequence, Unfinished, Update};

/// An answer that is being made. Dropping it leaves its sequences.
pub(crate) struct Making<F> {
    choices: Vec<Choice>,
    /// Those that engines have not ended.
    sequences: Vec<Option<Sequence>>,
    form: F,
    /// The choice that is asked for news first: each in its turn.
    turn: usize,
}

impl<F: Form> Making<F> {
    /// An answer of which nothing was told yet, and no engine knows.
    pub(crate) fn new(app: &AppState, admission: &Admission, form: F) -> Making<F> {
        let now = Instant::now();
        let arrived = now.checked_sub(admission.age()).unwrap_or(now);
        let model = &app.model;
        let choice = |script: &super::choice::Script| {
            let detokenizer = admission.endpoint.detokenizer(model);
            Choice::new(script.clone(), detokenizer, Arc::clone(model), arrived, Arc::clone(&app.metrics))
        };
        let choices: Vec<Choice> = admission.sequences.iter().map(|(_, script)| choice(script)).collect();
        let sequences = choices.iter().map(|_| None).collect();
        Making { choices, sequences, form, turn: 0 }
    }

    /// Goes through what was told before: the texts of it, one step after the other. What is no such entry, and whatever
    /// follows, is told anew by an engine; how many bytes were of use.
    pub(crate) fn replay(&mut self, told: &[u8]) -> (Vec<Step>, Replayed) {
        let mut replayed = Replayed { tokens: vec![Vec::new(); self.choices.len()], ..Replayed::default() };
        replayed.prompt_logprobs = vec![0; self.choices.len()];
        let mut steps = Vec::new();
        for line in told.split_inclusive(|byte| *byte == b'\n') {
            let Some((choice, update)) = line.strip_suffix(b"\n").and_then(told::read) else { break };
            if choice >= self.choices.len() {
                break;
            }
            replayed.note(choice, &update);
            replayed.bytes += line.len();
            steps.push(self.take(choice, update));
            if replayed.failed {
                break;
            }
        }
        replayed.ended = replayed.failed || self.choices.iter().all(Choice::ended);
        (steps, replayed)
    }

    /// Hands its sequences to the engine, those that have not ended, from where they are.
    pub(crate) fn go_on(&mut self, app: &AppState, admission: &Admission, replayed: &Replayed) {
        let unfinished = |(index, choice): (usize, &Choice)| {
            let (submit, _) = admission.sequences.get(index).filter(|_| !choice.ended())?;
            let tokens = replayed.tokens.get(index).cloned().unwrap_or_default();
            let prompt_logprobs = replayed.prompt_logprobs.get(index).copied().unwrap_or(0);
            Some((index, Unfinished { submit: submit.clone(), tokens, prompt_logprobs }))
        };
        let (indices, unfinished): (Vec<usize>, Vec<Unfinished>) =
            self.choices.iter().enumerate().filter_map(unfinished).unzip();
        for (index, sequence) in indices.into_iter().zip(app.engine.adopt(unfinished)) {
            if let Some(place) = self.sequences.get_mut(index) {
                *place = Some(sequence);
            }
        }
    }

    /// Sequences that an engine was given, one for each choice.
    pub(crate) fn follow(&mut self, sequences: Vec<Sequence>) {
        self.sequences = sequences.into_iter().map(Some).collect();
    }

    /// What the engine tells next; `None` once all is told.
    pub(crate) async fn step(&mut self) -> Option<Step> {
        let (choice, update) = futures::future::poll_fn(|context| self.poll(context)).await?;
        Some(match update {
            Some(Update::Interrupted(Interruption::Shutdown)) => self.interrupted(),
            Some(update) => self.take(choice, update),
            // The journal's record is gone without a last word, which no path does.
            None => self.fail(None, ApiError::internal("the engine's link lost this request")),
        })
    }

    /// All steps to the end.
    pub(crate) fn steps(self) -> impl Stream<Item = Step> + Send
    where
        F: 'static,
    {
        stream::unfold(self, |mut making| async move {
            let step = making.step().await?;
            Some((step, making))
        })
    }

    /// What it is written as.
    pub(crate) fn form(&self) -> &F {
        &self.form
    }

    /// The next update of any choice, each in its turn.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Option<Update>)>> {
        let count = self.sequences.len();
        let mut open = false;
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            let Some(Some(sequence)) = self.sequences.get_mut(index) else { continue };
            open = true;
            if let Poll::Ready(update) = sequence.poll_next_unpin(context) {
                self.turn = index + 1;
                return Poll::Ready(Some((index, update)));
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    fn take(&mut self, index: usize, update: Update) -> Step {
        let entry = told::write(index, &update);
        let Some(choice) = self.choices.get_mut(index) else { return Step::default() };
        if let Err(error) = choice.take(update) {
            return self.fail(Some(entry), error);
        }
        let mut texts = Vec::new();
        while let Some(news) = choice.news() {
            texts.extend(self.form.write(index, news));
        }
        // An engine that goes on behind a stop string is told to stop now, not when the client has read the answer.
        if choice.ended()
            && let Some(sequence) = self.sequences.get_mut(index)
        {
            *sequence = None;
        }
        Step { entry: Some(entry), texts, several: self.choices.len() > 1, ..Step::default() }
    }

    /// One choice's error is the whole answer's. The others are left.
    fn fail(&mut self, entry: Option<Vec<u8>>, error: ApiError) -> Step {
        self.sequences.clear();
        let texts = self.form.fail(error);
        Step { entry, texts, ..Step::default() }
    }

    /// The server ends before the answer does: another one goes on with it where it is kept.
    fn interrupted(&mut self) -> Step {
        let step = self.fail(None, Interruption::Shutdown.into());
        Step { interrupted: true, ..step }
    }
}

/// What was told before.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// Tokens of each choice.
    tokens: Vec<Vec<u32>>,
    /// Prompt tokens of each choice whose log probabilities were told.
    prompt_logprobs: Vec<usize>,
    /// Bytes of what was told that were of use.
    pub(crate) bytes: usize,
    failed: bool,
    /// It is the whole answer.
    pub(crate) ended: bool,
}

impl Replayed {
    fn note(&mut self, choice: usize, update: &Update) {
        match update {
            Update::Token(event) => {
                if let Some(tokens) = self.tokens.get_mut(choice) {
                    tokens.push(event.token);
                }
            }
            Update::PromptLogprobs(scores) => {
                if let Some(count) = self.prompt_logprobs.get_mut(choice) {
                    *count = count.saturating_add(scores.len());
                }
            }
            Update::Failed(_) | Update::Interrupted(_) => self.failed = true,
            Update::Resumed | Update::Finished(..) => {}
        }
    }
}
