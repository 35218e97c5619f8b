//! The conversation: what was said, and asking for the next answer.

use std::future::Future;
use std::io::Write;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{self, Answer, ClientError, Part, Statistics};
use super::endpoint::Endpoint;
use crate::failure::OutputClosed;

/// Small models lose the thread at the API's default of 1.
const DEFAULT_TEMPERATURE: f32 = 0.7;

/// How answers are made; what is not given is the server's choice.
#[derive(Clone, Debug, Args, Serialize)]
#[command(next_help_heading = "Answers")]
pub(crate) struct AnswerFlags {
    /// 0 always takes the most likely token; higher is more varied
    #[arg(long, alias = "temp", value_name = "T", default_value_t = DEFAULT_TEMPERATURE)]
    temperature: f32,

    /// Choose among the most likely tokens whose probabilities reach P
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,

    /// Choose among the K most likely tokens
    #[arg(long, value_name = "K")]
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,

    /// Leave out tokens less likely than P times the most likely
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,

    /// The same seed gives the same answer
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,

    /// Longest answer, in tokens
    #[arg(short = 'n', long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
}

/// A message of the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

/// A conversation with a model.
pub(crate) struct Session {
    endpoint: Endpoint,
    model: String,
    flags: AnswerFlags,
    system: Option<String>,
    messages: Vec<Message>,
}

/// How an answer ended.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The person stopped it.
    pub(crate) stopped: bool,
    /// `stop`, `length`, ...
    pub(crate) finish: Option<String>,
    /// Counts and times, if the server gave them.
    pub(crate) statistics: Option<Statistics>,
    /// Messages dropped from the start of the conversation because it no longer fitted the context.
    pub(crate) forgotten: usize,
}

impl Session {
    /// A new conversation.
    pub(crate) fn new(
        endpoint: Endpoint,
        model: String,
        flags: AnswerFlags,
        system: Option<String>,
    ) -> Session {
        Session { endpoint, model, flags, system, messages: Vec::new() }
    }

    /// The model's name.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The system prompt.
    pub(crate) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Sets the system prompt; the conversation starts anew.
    pub(crate) fn set_system(&mut self, text: String) {
        self.system = Some(text);
        self.clear();
    }

    /// Forgets the conversation.
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
    }

    /// The conversation as JSON, as the API takes it.
    pub(crate) fn to_json(&self) -> Value {
        json!(self.all_messages())
    }

    /// Asks, and writes the answer to `out` as it comes. When `interrupted` ends first the answer stops there. A
    /// question that failed is not remembered.
    pub(crate) async fn ask(
        &mut self,
        question: String,
        out: &mut (dyn Write + Send),
        interrupted: impl Future<Output = ()>,
    ) -> anyhow::Result<Outcome> {
        let before = self.messages.len();
        self.messages.push(Message { role: "user", content: question });
        let mut outcome = Outcome::default();
        let mut text = String::new();
        let result = tokio::select! {
            result = self.stream(out, &mut text, &mut outcome) => Some(result),
            () = interrupted => None,
        };
        let keep = match result {
            Some(Err(error)) => {
                // What was forgotten stays forgotten: it would not fit the next time either.
                self.messages.truncate(before.saturating_sub(outcome.forgotten));
                return Err(error);
            }
            Some(Ok(())) => true,
            None => {
                outcome.stopped = true;
                !text.is_empty()
            }
        };
        if keep {
            self.messages.push(Message { role: "assistant", content: text });
        } else {
            self.messages.pop();
        }
        Ok(outcome)
    }

    async fn stream(
        &mut self,
        out: &mut (dyn Write + Send),
        text: &mut String,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let mut answer = self.request(outcome).await?;
        while let Some(part) = answer.next().await? {
            match part {
                Part::Text(part) => {
                    out.write_all(part.as_bytes()).and_then(|()| out.flush()).context(OutputClosed)?;
                    text.push_str(&part);
                }
                Part::Finish(reason) => outcome.finish = Some(reason),
                Part::Statistics(statistics) => outcome.statistics = Some(statistics),
            }
        }
        Ok(())
    }

    /// Sends the conversation; while it is longer than the context, its oldest exchange is dropped.
    async fn request(&mut self, outcome: &mut Outcome) -> Result<Answer, ClientError> {
        loop {
            match client::chat(&self.endpoint, &self.request_body()).await {
                Err(error) if error.is_context_overflow() && self.messages.len() > 2 => {
                    self.messages.drain(..2);
                    outcome.forgotten += 2;
                }
                result => return result,
            }
        }
    }

    fn request_body(&self) -> Value {
        let mut body = json!(self.flags);
        body["model"] = json!(self.model);
        body["messages"] = self.to_json();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        body
    }

    fn all_messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message { role: "system", content: text.clone() });
        system.chain(self.messages.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_only_what_was_asked_for() {
        let flags = AnswerFlags {
            temperature: 0.5,
            top_p: None,
            top_k: None,
            min_p: None,
            seed: Some(7),
            max_tokens: None,
        };
        let endpoint = Endpoint::local(1, String::new());
        let mut session = Session::new(endpoint, "m".to_owned(), flags, Some("Be brief.".to_owned()));
        session.messages.push(Message { role: "user", content: "Hi".to_owned() });
        assert_eq!(
            session.request_body(),
            json!({
                "model": "m",
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
                "temperature": 0.5,
                "seed": 7,
                "stream": true,
                "stream_options": {"include_usage": true},
            })
        );
    }
}
