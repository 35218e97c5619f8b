//! What a request asks for, as far as it decides how its answer can go on in another process.

use axum::body::Bytes;
use axum::http::{HeaderMap, Method};
use serde_json::{Map, Value};

use super::probe::Talk;

/// Shapes of answers that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    /// OpenAI's chat.
    Chat,
    /// OpenAI's completions.
    Completions,
    /// llama-server's own completions.
    Native,
}

impl Api {
    /// By the path. `llama`: the server has llama-server's own endpoints.
    pub(super) fn of(path: &str, llama: bool) -> Option<Api> {
        match path.trim_end_matches('/') {
            "/v1/chat/completions" | "/chat/completions" => Some(Api::Chat),
            "/v1/completions" => Some(Api::Completions),
            "/completion" | "/completions" if llama => Some(Api::Native),
            "/completions" => Some(Api::Completions),
            _ => None,
        }
    }
}

/// A request, read whole, so that it can be sent again.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    /// Path and query.
    pub(super) target: String,
    pub(super) path: String,
    /// Those that go on to the server.
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The body, if it is a JSON object.
    pub(super) object: Option<Map<String, Value>>,
}

/// What is asked of the server beyond what the client asked for, and taken out of its answer again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Additions {
    /// Token ids in chunks of a chat.
    probabilities: bool,
    /// Token ids in chunks of completions.
    verbose: bool,
}

/// Fields of a request that make a state which text alone does not carry.
const STATEFUL: [&str; 11] = [
    "tools",
    "functions",
    "grammar",
    "json_schema",
    "response_format",
    "structured_outputs",
    "guided_json",
    "logprobs",
    "n_probs",
    "echo",
    "suffix",
];

impl Asked {
    /// Its answer comes piece by piece.
    pub(super) fn is_streamed(&self) -> bool {
        self.method == Method::POST && self.field("stream") == Some(&Value::Bool(true))
    }

    fn field(&self, name: &str) -> Option<&Value> {
        self.object.as_ref()?.get(name).filter(|value| !value.is_null())
    }

    /// The client wants token counts at the end of its stream.
    pub(super) fn wants_usage(&self) -> bool {
        self.field("stream_options").is_some_and(|options| options["include_usage"] == true)
    }

    /// Most tokens of its answer; `None` without a limit.
    pub(super) fn limit(&self) -> Option<u64> {
        let names = ["n_predict", "max_tokens", "max_completion_tokens"];
        names.iter().find_map(|name| self.field(name)?.as_i64()).and_then(|limit| u64::try_from(limit).ok())
    }

    /// Each token is the likeliest one: computed again it is the same.
    pub(super) fn is_greedy(&self, talk: &Talk) -> bool {
        let temperature = self.field("temperature").and_then(Value::as_f64).or(talk.temperature);
        temperature.is_some_and(|temperature| temperature <= 0.0) || self.takes_the_likeliest()
    }

    /// The same answer may come again. It is compared, so it does no harm if it does not.
    pub(super) fn may_come_again(&self, talk: &Talk) -> bool {
        let temperature = self.field("temperature").and_then(Value::as_f64).or(talk.temperature);
        self.is_seeded()
            || self.takes_the_likeliest()
            || temperature.is_none_or(|temperature| temperature <= 0.0)
    }

    /// Its draws are the same again.
    pub(super) fn is_seeded(&self) -> bool {
        self.field("seed").and_then(Value::as_i64).is_some_and(|seed| seed >= 0)
    }

    fn takes_the_likeliest(&self) -> bool {
        self.field("top_k").and_then(Value::as_i64) == Some(1)
    }

    /// One answer, of plain text: what was sent of it is all that there is to know of it.
    pub(super) fn is_plain(&self) -> bool {
        let asks = |name: &&str| match self.field(name) {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Array(list)) => !list.is_empty(),
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Object(object)) => object.get("type").and_then(Value::as_str) != Some("text"),
            Some(value) => value.as_f64() != Some(0.0),
        };
        let one = |name: &str| self.field(name).is_none_or(|n| n.as_u64() == Some(1));
        !STATEFUL.iter().any(asks) && one("n") && one("n_cmpl") && one("best_of") && self.is_text()
    }

    /// Tools are offered: a server may compute one's whole call before it sends any of it.
    pub(super) fn has_tools(&self) -> bool {
        ["tools", "functions"]
            .iter()
            .any(|name| self.field(name).and_then(Value::as_array).is_some_and(|tools| !tools.is_empty()))
    }

    /// No images or sounds, and one prompt.
    fn is_text(&self) -> bool {
        let text = |content: &Value| match content {
            Value::Array(parts) => parts.iter().all(|part| part["type"] == "text"),
            _ => true,
        };
        let messages = self.field("messages").and_then(Value::as_array);
        let messages =
            messages.is_none_or(|messages| messages.iter().all(|message| text(&message["content"])));
        let prompt = match self.field("prompt") {
            Some(Value::Array(ids)) => ids.iter().all(Value::is_u64),
            Some(Value::Object(_)) => false,
            _ => true,
        };
        messages && prompt
    }

    /// The prompt of a completion, as parts to which token ids can be added.
    pub(super) fn prompt(&self) -> Option<Vec<Value>> {
        match self.field("prompt")? {
            Value::String(text) => Some(vec![text.as_str().into()]),
            Value::Array(ids) => Some(ids.clone()),
            _ => None,
        }
    }

    /// The body to send, with what the guard needs to know beside, so that the answer can go on exactly.
    pub(super) fn with_additions(&self, api: Option<Api>, talk: &Talk) -> (Bytes, Additions) {
        let plain = (self.body.clone(), Additions::default());
        let (Some(object), Some(api)) = (&self.object, api) else { return plain };
        if !talk.llama || !self.is_streamed() || !self.is_plain() || !self.is_greedy(talk) {
            return plain;
        }
        let mut object = object.clone();
        let mut additions = Additions::default();
        let mut add = |names: &[(&str, Value)]| {
            names.iter().for_each(|(name, value)| drop(object.insert((*name).to_owned(), value.clone())));
        };
        match api {
            Api::Chat if self.field("timings_per_token").is_none() => {
                add(&[
                    ("n_probs", 1.into()),
                    ("post_sampling_probs", true.into()),
                    ("timings_per_token", true.into()),
                ]);
                additions.probabilities = true;
            }
            Api::Completions if self.field("verbose").is_none() => {
                add(&[("verbose", true.into())]);
                additions.verbose = true;
            }
            Api::Chat | Api::Completions | Api::Native => return plain,
        }
        (Bytes::from(Value::Object(object).to_string()), additions)
    }
}

impl Additions {
    /// Whether chunks have what the client did not ask for.
    pub(super) fn any(self) -> bool {
        self != Additions::default()
    }

    /// Takes out of a chunk what the client did not ask for.
    pub(super) fn strip(self, chunk: &mut Value) {
        let Some(object) = chunk.as_object_mut() else { return };
        if self.verbose {
            object.shift_remove("__verbose");
        }
        if self.probabilities {
            let mut last = object.contains_key("usage");
            if let Some(choices) = object.get_mut("choices").and_then(Value::as_array_mut) {
                for choice in choices.iter_mut().filter_map(Value::as_object_mut) {
                    choice.shift_remove("logprobs");
                    last |= choice.get("finish_reason").is_some_and(|reason| !reason.is_null());
                }
            }
            if !last {
                object.shift_remove("timings");
            }
        }
    }
}

/// A token as a chunk tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Text that became visible with it.
    pub(super) text: String,
    /// Its id, if that is told.
    pub(super) id: Option<u64>,
    /// Tokens computed so far in this answer, if that is told.
    pub(super) computed: Option<u64>,
}

impl Told {
    /// Of a chunk of an answer; `None` if it is about something else.
    pub(super) fn of(api: Api, chunk: &Value) -> Option<Told> {
        match api {
            Api::Native => {
                let text = chunk["content"].as_str()?.to_owned();
                Some(Told {
                    text,
                    id: chunk["tokens"][0].as_u64(),
                    computed: chunk["tokens_predicted"].as_u64(),
                })
            }
            Api::Completions => {
                let text = chunk["choices"][0]["text"].as_str()?.to_owned();
                let verbose = &chunk["__verbose"];
                let (id, computed) = (verbose["tokens"][0].as_u64(), verbose["tokens_predicted"].as_u64());
                Some(Told { text, id, computed })
            }
            Api::Chat => {
                let choice = chunk["choices"].get(0)?;
                let id = choice["logprobs"]["content"][0]["id"].as_u64();
                let text = choice["delta"]["content"].as_str();
                let text = text.map(str::to_owned).or_else(|| id.map(|_| String::new()))?;
                Some(Told { text, id, computed: chunk["timings"]["predicted_n"].as_u64() })
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn asked(path: &str, body: &Value) -> Asked {
        Asked {
            method: Method::POST,
            target: path.to_owned(),
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::from(body.to_string()),
            object: body.as_object().cloned(),
        }
    }

    fn llama() -> Talk {
        Talk { llama: true, ..Talk::default() }
    }

    #[test]
    fn paths_are_known_with_and_without_v1() {
        assert_eq!(Api::of("/v1/chat/completions", false), Some(Api::Chat));
        assert_eq!(Api::of("/chat/completions/", true), Some(Api::Chat));
        assert_eq!(Api::of("/completions", true), Some(Api::Native));
        assert_eq!(Api::of("/completions", false), Some(Api::Completions));
        assert_eq!(Api::of("/v1/messages", true), None);
    }

    #[test]
    fn an_answer_is_plain_if_its_text_is_all_there_is_to_know() {
        let chat = |more: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
            body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            asked("/v1/chat/completions", &body).is_plain()
        };
        for plain in [
            json!({}),
            json!({"tools": [], "n": 1, "logprobs": false, "response_format": {"type": "text"}}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}),
        ] {
            assert!(chat(plain.clone()), "{plain}");
        }
        for other in [
            json!({"tools": [{}]}),
            json!({"n": 2}),
            json!({"logprobs": true}),
            json!({"n_probs": 3}),
            json!({"grammar": "root ::= x"}),
            json!({"response_format": {"type": "json_object"}}),
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ] {
            assert!(!chat(other.clone()), "{other}");
        }
        let completion = |prompt: Value| asked("/v1/completions", &json!({"prompt": prompt})).is_plain();
        assert!(completion(json!("x")) && completion(json!([1, 2])));
        assert!(!completion(json!(["x", "y"])) && !completion(json!({"prompt_string": "x"})));
    }

    #[test]
    fn greedy_is_what_says_so_or_what_the_server_does_by_itself() {
        let is = |body: Value, talk: &Talk| {
            let asked = asked("/v1/completions", &body);
            (asked.is_greedy(talk), asked.may_come_again(talk))
        };
        let unknown = Talk::default();
        assert_eq!(is(json!({"temperature": 0}), &unknown), (true, true));
        assert_eq!(is(json!({"temperature": 0.7, "top_k": 1}), &unknown), (true, true));
        assert_eq!(is(json!({"temperature": 0.7}), &unknown), (false, false));
        assert_eq!(is(json!({"temperature": 0.7, "seed": 3}), &unknown), (false, true));
        assert_eq!(is(json!({}), &unknown), (false, true));
        assert_eq!(is(json!({}), &Talk { temperature: Some(0.0), ..llama() }), (true, true));
        assert_eq!(is(json!({}), &Talk { temperature: Some(0.8), ..llama() }), (false, false));
    }

    #[test]
    fn what_was_added_for_the_guard_does_not_reach_the_client() {
        let asked = asked(
            "/v1/chat/completions",
            &json!({"messages": [], "stream": true, "temperature": 0, "seed": 1}),
        );
        let (body, additions) = asked.with_additions(Some(Api::Chat), &llama());
        let sent: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&sent["n_probs"], &sent["timings_per_token"], &sent["seed"]),
            (&json!(1), &json!(true), &json!(1))
        );
        let chunk = json!({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": null,
            "logprobs": {"content": [{"id": 7}]}}], "timings": {"predicted_n": 3}, "id": "a"});
        let told = Told { text: "x".to_owned(), id: Some(7), computed: Some(3) };
        assert_eq!(Told::of(Api::Chat, &chunk), Some(told));
        let mut stripped = chunk.clone();
        additions.strip(&mut stripped);
        let expected =
            json!({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": null}], "id": "a"});
        assert_eq!(stripped, expected);
        // Elsewhere nothing is added.
        assert!(!asked.with_additions(Some(Api::Chat), &Talk::default()).1.any());
        assert_eq!(asked.with_additions(Some(Api::Chat), &Talk::default()).0, asked.body);
    }
}
