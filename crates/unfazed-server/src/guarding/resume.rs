//! How an answer goes on in llama-server behind what was sent of it: its rendered prompt and its tokens so far are the
//! prompt of a raw completion, whose chunks become chunks of the answer.

use axum::body::Bytes;
use serde_json::{Map, Value, json};

use super::borders::Borders;
use super::life::Life;
use super::probe::{Asker, NoAnswer, Talk};
use super::request::{Api, Asked};

/// The endpoint for raw completions.
pub(super) const PATH: &str = "/completion";
/// What a chunk tells about an answer that another process went on with.
pub(super) const MARK: &str = "unfazed_guard";
/// Fields of a request that the raw completion must not have.
const REPLACED: [&str; 10] = [
    "messages",
    "prompt",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "n",
    "tool_choice",
    "response_format",
    "chat_template_kwargs",
];

/// A raw completion that goes on with an answer.
#[derive(Clone, Debug)]
pub(super) struct Continuation {
    /// Its request.
    pub(super) body: Value,
    /// Tokens that it goes on behind.
    kept: u64,
    /// Text behind them that was sent and comes again.
    again: String,
    /// The answer is the one that would have come.
    pub(super) exact: bool,
}

/// Text that comes again is another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Differs;

/// An answer that is to go on.
#[derive(Clone, Copy)]
pub(super) struct Behind<'a> {
    pub(super) asked: &'a Asked,
    pub(super) api: Api,
    pub(super) talk: &'a Talk,
    /// The same tokens give the same numbers, whether they were generated or are a prompt.
    pub(super) even: bool,
}

impl Behind<'_> {
    /// Makes a continuation of the text that was sent. `rendered` keeps the rendered prompt.
    pub(super) async fn continuation(
        self,
        (asker, life): (Asker<'_>, &Life),
        (text, borders): (&str, &mut Borders),
        rendered: &mut Option<String>,
    ) -> Result<Continuation, NoAnswer> {
        let asked = self.asked;
        let mut prompt = match self.api {
            Api::Chat => {
                if rendered.is_none() {
                    let body = asked.object.clone().map(Value::Object).unwrap_or_default();
                    let answer = asker.post(life, "/apply-template", &body).await?;
                    *rendered = answer["prompt"].as_str().map(str::to_owned);
                }
                vec![rendered.as_deref().ok_or("/apply-template gives no prompt")?.into()]
            }
            Api::Completions | Api::Native => asked.prompt().ok_or("it has no prompt to go on behind")?,
        };
        let greedy = asked.is_greedy(self.talk);
        let (ids, again) = if greedy {
            exact_tokens((asker, life), borders).await?
        } else {
            let ids = tokenize((asker, life), text).await?;
            borders.go_on(&ids, usize::MAX);
            (ids, String::new())
        };
        let kept = ids.len() as u64;
        prompt.extend(ids.into_iter().map(Value::from));
        // Where nothing is left the prompt is read, and the end told.
        let left = asked.limit().map(|limit| limit.saturating_sub(kept));
        Ok(Continuation { body: raw_body(asked, prompt, left), kept, again, exact: greedy && self.even })
    }
}

/// The request with a prompt that the text which was sent was added to, for servers that take nothing better.
pub(super) fn longer_prompt(asked: &Asked, api: Api, text: &str, tokens: u64) -> Option<Bytes> {
    let (Api::Completions, Value::String(prompt)) = (api, asked.object.as_ref()?.get("prompt")?) else {
        return None;
    };
    let mut body = asked.object.clone()?;
    body.insert("prompt".to_owned(), format!("{prompt}{text}").into());
    if let Some(limit) = asked.limit() {
        let left = limit.saturating_sub(tokens).max(1);
        body.insert("max_tokens".to_owned(), left.into());
    }
    Some(Bytes::from(Value::Object(body).to_string()))
}

/// Corrects counts of an answer whose prompt had so many tokens of it.
pub(super) fn count(chunk: &mut Value, tokens: u64) {
    let Some(usage) = chunk.get_mut("usage").filter(|usage| usage.is_object()) else { return };
    let of = |usage: &Value, name: &str| usage[name].as_u64().unwrap_or(0);
    usage["prompt_tokens"] = of(usage, "prompt_tokens").saturating_sub(tokens).into();
    usage["completion_tokens"] = of(usage, "completion_tokens").saturating_add(tokens).into();
}

fn raw_body(asked: &Asked, prompt: Vec<Value>, left: Option<u64>) -> Value {
    let mut body: Map<String, Value> = asked.object.clone().unwrap_or_default();
    REPLACED.iter().for_each(|name| drop(body.shift_remove(*name)));
    body.insert("prompt".to_owned(), prompt.into());
    body.insert("n_predict".to_owned(), left.map_or(json!(-1), Value::from));
    body.insert("stream".to_owned(), true.into());
    body.insert("return_tokens".to_owned(), true.into());
    Value::Object(body)
}

/// The tokens that were sent, back to the last border that is known for sure, and the text behind it.
async fn exact_tokens(
    (asker, life): (Asker<'_>, &Life),
    borders: &mut Borders,
) -> Result<(Vec<u64>, String), NoAnswer> {
    let spans = borders.spans().ok_or("the answer is too long")?;
    let (mut ids, mut known) = (Vec::new(), 0);
    for span in spans {
        if span.is_known() {
            ids.extend(&span.ids);
        } else {
            let found = tokenize((asker, life), &span.text).await?;
            if !span.fits(&found) {
                break;
            }
            ids.extend(found);
        }
        known += 1;
    }
    let again = spans.iter().skip(known).map(|span| span.text.as_str()).collect();
    borders.go_on(&ids, known);
    Ok((ids, again))
}

async fn tokenize((asker, life): (Asker<'_>, &Life), text: &str) -> Result<Vec<u64>, NoAnswer> {
    let question = json!({"content": text, "add_special": false, "parse_special": false});
    let answer = asker.post(life, "/tokenize", &question).await?;
    let ids = answer["tokens"].as_array().ok_or("/tokenize gives no tokens")?;
    ids.iter().map(|id| id.as_u64().ok_or("/tokenize gives no token ids".into())).collect()
}

impl Continuation {
    /// What the client gets of a chunk of the raw completion: chunks of its own answer. `like` is the first chunk that it got.
    pub(super) fn translate(
        &mut self,
        api: Api,
        mut chunk: Value,
        like: &Value,
        usage: bool,
    ) -> Result<Vec<Value>, Differs> {
        let mut text = chunk["content"].as_str().unwrap_or_default().to_owned();
        if !self.again.is_empty() && !text.is_empty() {
            if let Some(rest) = self.again.strip_prefix(text.as_str()) {
                self.again = rest.to_owned();
                text.clear();
            } else {
                text = text.strip_prefix(self.again.as_str()).ok_or(Differs)?.to_owned();
                self.again.clear();
            }
        }
        let ends = chunk["stop"] == true;
        if ends && !self.again.is_empty() {
            return Err(Differs);
        }
        let computed = chunk["tokens_predicted"].as_u64().unwrap_or(0).saturating_add(self.kept);
        let prompt = chunk["tokens_evaluated"].as_u64().unwrap_or(0).saturating_sub(self.kept);
        if api == Api::Native {
            chunk["content"] = text.as_str().into();
            chunk["tokens_predicted"] = computed.into();
            chunk["tokens_evaluated"] = prompt.into();
            return Ok(if text.is_empty() && !ends { Vec::new() } else { vec![chunk] });
        }
        let mut chunks = Vec::new();
        if !text.is_empty() {
            chunks.push(piece(api, like, &text, &Value::Null));
        }
        if ends {
            let reason = if chunk["stop_type"] == "limit" { "length" } else { "stop" };
            chunks.extend(Self::end(
                api,
                like,
                reason,
                usage.then_some((prompt, computed)),
                &chunk["timings"],
            ));
        }
        Ok(chunks)
    }

    /// The last chunks.
    fn end(api: Api, like: &Value, reason: &str, usage: Option<(u64, u64)>, timings: &Value) -> Vec<Value> {
        let mut last = piece(api, like, "", &reason.into());
        let usage = usage.map(|(prompt, computed)| {
            json!({
                "completion_tokens": computed,
                "prompt_tokens": prompt,
                "total_tokens": prompt.saturating_add(computed),
                "prompt_tokens_details": {"cached_tokens": timings["cache_n"].as_u64().unwrap_or(0).min(prompt)},
            })
        });
        // Of completions llama-server always tells usage, in the last chunk.
        let (in_last, behind) = if api == Api::Completions { (usage, None) } else { (None, usage) };
        if let Some(usage) = in_last {
            last["usage"] = usage;
        }
        if !timings.is_null() {
            last["timings"] = timings.clone();
        }
        let behind = behind.map(|usage| {
            let mut chunk = frame(like);
            chunk["choices"] = json!([]);
            chunk["usage"] = usage;
            chunk
        });
        std::iter::once(last).chain(behind).collect()
    }
}

/// What all chunks of an answer have in common.
fn frame(like: &Value) -> Value {
    let mut frame = like.clone();
    if let Some(object) = frame.as_object_mut() {
        object.retain(|name, _| {
            ["id", "object", "created", "model", "system_fingerprint"].contains(&name.as_str())
        });
    } else {
        frame = json!({});
    }
    frame
}

/// A chunk of an answer with one choice.
fn piece(api: Api, like: &Value, text: &str, reason: &Value) -> Value {
    let mut chunk = json!({});
    chunk["choices"] = match api {
        Api::Chat => {
            let delta = if text.is_empty() { json!({}) } else { json!({ "content": text }) };
            json!([{"finish_reason": reason, "index": 0, "delta": delta}])
        }
        Api::Completions | Api::Native => {
            json!([{"text": text, "index": 0, "logprobs": null, "finish_reason": reason}])
        }
    };
    if let (Some(chunk), Value::Object(frame)) = (chunk.as_object_mut(), frame(like)) {
        chunk.extend(frame);
    }
    chunk
}

/// Says in an answer's last chunk that processes took turns at it.
pub(super) fn mark(chunk: &mut Value, resumed: u32, exact: bool) {
    let ends = chunk["stop"] == true
        || chunk["choices"]
            .as_array()
            .is_some_and(|choices| choices.iter().any(|choice| !choice["finish_reason"].is_null()));
    if ends && let Some(chunk) = chunk.as_object_mut() {
        chunk.insert(MARK.to_owned(), json!({"resumed": resumed, "exact": exact}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarding::request::tests::asked;

    fn like() -> Value {
        json!({"choices": [{"delta": {}}], "created": 5, "id": "chatcmpl-1", "model": "m", "object": "chat.completion.chunk"})
    }

    fn on(kept: u64, again: &str) -> Continuation {
        Continuation { body: Value::Null, kept, again: again.to_owned(), exact: true }
    }

    #[test]
    fn raw_chunks_become_chunks_of_the_same_answer_with_the_same_counts() {
        let mut on = on(7, "");
        let chunk = json!({"content": " more", "tokens": [5], "stop": false, "tokens_predicted": 1});
        let chunks = on.translate(Api::Chat, chunk, &like(), true).unwrap();
        assert_eq!(chunks.len(), 1);
        assert_eq!(chunks[0]["choices"][0]["delta"], json!({"content": " more"}));
        assert_eq!((&chunks[0]["id"], &chunks[0]["created"]), (&json!("chatcmpl-1"), &json!(5)));
        let last = json!({"content": "", "stop": true, "stop_type": "eos", "tokens_predicted": 3, "tokens_evaluated": 17});
        let mut chunks = on.translate(Api::Chat, last, &like(), true).unwrap();
        assert_eq!(chunks[0]["choices"][0]["finish_reason"], "stop");
        let usage = json!({"completion_tokens": 10, "prompt_tokens": 10, "total_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": 0}});
        assert_eq!((&chunks[1]["usage"], &chunks[1]["choices"]), (&usage, &json!([])));
        mark(&mut chunks[0], 2, true);
        assert_eq!(chunks[0][MARK], json!({"resumed": 2, "exact": true}));
    }

    #[test]
    fn text_that_was_sent_behind_the_border_comes_once() {
        let mut on = on(1, "🦀 and");
        let mut send = |text: &str, stop: bool| {
            on.translate(Api::Completions, json!({"content": text, "stop": stop}), &like(), false).map(
                |chunks| chunks.iter().map(|chunk| chunk["choices"][0]["text"].clone()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(send("🦀", false), Ok(vec![]));
        assert_eq!(send(" and more", false), Ok(vec![json!(" more")]));
        let mut other = Continuation { again: "crab".to_owned(), ..on.clone() };
        let lobster = json!({"content": "lobster"});
        assert_eq!(other.translate(Api::Chat, lobster, &like(), false), Err(Differs));
        let end = json!({"content": "", "stop": true});
        assert_eq!(other.translate(Api::Chat, end, &like(), false), Err(Differs));
    }

    #[test]
    fn a_server_without_token_ids_gets_a_longer_prompt() {
        let asked = asked("/v1/completions", &json!({"prompt": "Once", "max_tokens": 10, "stream": true}));
        let body = longer_prompt(&asked, Api::Completions, " upon", 3).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body, json!({"prompt": "Once upon", "max_tokens": 7, "stream": true}));
        assert_eq!(longer_prompt(&asked, Api::Chat, "x", 1), None);
        let mut chunk = json!({"usage": {"prompt_tokens": 8, "completion_tokens": 7, "total_tokens": 15}});
        count(&mut chunk, 3);
        assert_eq!(
            chunk,
            json!({"usage": {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}})
        );
    }

    #[test]
    fn a_raw_request_has_the_settings_of_the_first_one_and_what_is_left_of_its_limit() {
        let asked = asked(
            "/v1/chat/completions",
            &json!({"messages": [1], "temperature": 0, "max_tokens": 10, "stream": true, "seed": 4, "stop": ["x"],
                "stream_options": {"include_usage": true}}),
        );
        let body = raw_body(&asked, vec!["<|im_start|>".into(), 5.into()], Some(9));
        let expected = json!({"temperature": 0, "stream": true, "seed": 4, "stop": ["x"], "prompt": ["<|im_start|>", 5],
            "n_predict": 9, "return_tokens": true});
        assert_eq!(body, expected);
    }
}
