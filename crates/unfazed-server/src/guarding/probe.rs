//! Questions of the guard's own: whether the server is up, what it can do, and whether it computes.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::client::{self, ClientError};
use super::life::Life;

/// How long a question may take that a server answers without computing.
const QUICK: Duration = Duration::from_secs(5);
/// What is asked to see whether it computes.
const PROMPT: &str = "1 2 3";

/// What the server can do.
#[derive(Clone, Debug, Default)]
pub(super) struct Talk {
    /// It has llama-server's own endpoints.
    pub(super) llama: bool,
    /// Its model's name.
    pub(super) model: Option<String>,
    /// Temperature of requests that say none, where that is known.
    pub(super) temperature: Option<f64>,
}

/// What came of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    /// A token was computed.
    Computes,
    /// It refuses probes of this kind: nothing is known.
    Refused(String),
    /// It did not compute.
    Fails(String),
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The server did not answer: it has ended, or is about to.
    Broke(String),
    /// It will not.
    Refused(String),
}

impl From<&str> for NoAnswer {
    fn from(why: &str) -> NoAnswer {
        NoAnswer::Refused(why.to_owned())
    }
}

/// Who asks: the key that the server wants.
#[derive(Clone, Copy)]
pub(super) struct Asker<'a>(pub(super) Option<&'a str>);

impl Asker<'_> {
    async fn get(self, life: &Life, path: &str, limit: Duration) -> Result<(StatusCode, Value), ClientError> {
        let (status, body) = client::ask(life.port, self.0, path, None, limit).await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Puts a question with a body to the server's own endpoints.
    pub(super) async fn post(self, life: &Life, path: &str, body: &Value) -> Result<Value, NoAnswer> {
        let asked = client::ask(life.port, self.0, path, Some(body), QUICK).await;
        let (status, answer) = asked.map_err(|error| NoAnswer::Broke(error.to_string()))?;
        if status != StatusCode::OK {
            return Err(NoAnswer::Refused(format!("{path} is answered with {status}")));
        }
        serde_json::from_slice(&answer).map_err(|error| NoAnswer::Refused(format!("{path}: {error}")))
    }

    /// Whether it says that it is ready. It may say so and compute nothing.
    pub(super) async fn is_up(self, life: &Life, limit: Duration) -> Result<bool, ClientError> {
        let (status, _) = self.get(life, "/health", limit).await?;
        if status.is_success() {
            return Ok(true);
        }
        if status.is_server_error() {
            return Ok(false);
        }
        // It has no such path, or wants a key for it.
        let (status, _) = self.get(life, "/v1/models", limit).await?;
        Ok(!status.is_server_error())
    }

    /// What it can do.
    pub(super) async fn learn(self, life: &Life) -> Talk {
        let props = self.get(life, "/props", QUICK).await.map(|(_, props)| props).unwrap_or_default();
        let settings = &props["default_generation_settings"];
        let models = self.get(life, "/v1/models", QUICK).await.map(|(_, list)| list).unwrap_or_default();
        Talk {
            llama: settings.is_object(),
            model: models["data"][0]["id"].as_str().map(str::to_owned),
            temperature: settings["params"]["temperature"].as_f64(),
        }
    }

    /// Has one token computed.
    pub(super) async fn probe(self, life: &Life, talk: &Talk, limit: Duration) -> Probed {
        let mut refusal = String::new();
        for path in ["/v1/completions", "/v1/chat/completions"] {
            let mut body = json!({"max_tokens": 1, "temperature": 0, "stream": false});
            if path == "/v1/completions" {
                body["prompt"] = PROMPT.into();
            } else {
                body["messages"] = json!([{"role": "user", "content": PROMPT}]);
            }
            if let Some(model) = &talk.model {
                body["model"] = model.as_str().into();
            }
            match client::ask(life.port, self.0, path, Some(&body), limit).await {
                Ok((status, _)) if status.is_success() => return Probed::Computes,
                Ok((status, _)) if status.is_server_error() => {
                    return Probed::Fails(format!("{path} is answered with {status}"));
                }
                Ok((status, _)) => refusal = format!("{path} is answered with {status}"),
                Err(error) => return Probed::Fails(format!("{path}: {error}")),
            }
        }
        Probed::Refused(refusal)
    }

    /// Counters of llama-server's that move while it works; `None` if it does not tell in time.
    pub(super) async fn slots(self, life: &Life, limit: Duration) -> Option<Slots> {
        let (status, slots) = self.get(life, "/slots", limit).await.ok()?;
        status.is_success().then(|| Slots::of(&slots)).flatten()
    }
}

/// llama-server's places for requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots {
    /// Of those at work.
    counters: Vec<Vec<u64>>,
}

impl Slots {
    fn of(slots: &Value) -> Option<Slots> {
        let at_work = slots.as_array()?.iter().filter(|slot| slot["is_processing"] == true);
        let counters = at_work.map(|slot| {
            let next = &slot["next_token"];
            let decoded = next["n_decoded"].as_u64().or(next[0]["n_decoded"].as_u64());
            let fields = ["id", "id_task", "n_prompt_tokens", "n_prompt_tokens_processed"];
            let fields = fields.iter().map(|field| slot[*field].as_u64());
            fields.chain([decoded]).map(Option::unwrap_or_default).collect()
        });
        Some(Slots { counters: counters.collect() })
    }

    /// None is at work.
    pub(super) fn is_idle(&self) -> bool {
        self.counters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_at_work_move_with_their_prompt_and_their_tokens() {
        let slots = |processing: bool, prompt: u64, decoded: u64| {
            let slot = json!({"id": 0, "id_task": 3, "is_processing": processing, "n_prompt_tokens_processed": prompt,
                "next_token": [{"n_decoded": decoded}]});
            Slots::of(&json!([slot, {"id": 1, "is_processing": false}])).unwrap()
        };
        assert_eq!(slots(true, 5, 0), slots(true, 5, 0));
        assert_ne!(slots(true, 5, 0), slots(true, 6, 0));
        assert_ne!(slots(true, 5, 0), slots(true, 5, 1));
        assert!(slots(false, 5, 0).is_idle() && !slots(true, 0, 0).is_idle());
        for nonsense in [json!({}), json!("x"), Value::Null] {
            assert_eq!(Slots::of(&nonsense), None);
        }
        assert!(Slots::of(&json!([1, "x"])).unwrap().is_idle());
    }
}
