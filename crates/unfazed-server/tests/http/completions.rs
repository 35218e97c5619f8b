//! Completions: prompts of every kind, echo and log probabilities as evaluation harnesses use them.

use serde_json::{Value, json};
use unfazed_wire::{FinishReason, Submit};

use crate::fake_engine::Step;
use crate::server::{END, Server, body, chunks};

fn says(text: &'static str) -> impl Fn(&Submit) -> Vec<Step> + Send + Sync {
    move |submit| {
        let most = submit.max_tokens.min(text.len());
        vec![Step::Prefill, Step::Text(&text[..most]), Step::Finish(FinishReason::Length)]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_prompt_is_continued() {
    let server = Server::start(says(" world")).await;
    let answer = body(server.complete(json!({"prompt": "hello"})).await).await;
    assert_eq!(answer["object"], "text_completion");
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(
        answer["choices"][0],
        json!({"index": 0, "text": " world", "logprobs": null, "finish_reason": "length"})
    );
    assert_eq!(server.control.submits()[0].max_tokens, 16, "OpenAI's default");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_special_token_text_is_the_special_token() {
    let server = Server::start(says("x")).await;
    server.complete(json!({"prompt": "a<|turn|>"})).await;
    assert_eq!(server.control.submits()[0].prompt, [97, 257]);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_prompts_give_choices_in_their_order() {
    let server = Server::start(|submit| {
        let text = if submit.prompt[0] == 97 { "A" } else { "B" };
        vec![Step::Text(text), Step::Finish(FinishReason::Length)]
    })
    .await;
    for prompt in [json!(["a", "b"]), json!([[97], [98]])] {
        let answer = body(server.complete(json!({"prompt": prompt, "n": 2})).await).await;
        let choices = answer["choices"].as_array().unwrap().iter();
        let shown: Vec<(u64, &str)> =
            choices.map(|c| (c["index"].as_u64().unwrap(), c["text"].as_str().unwrap())).collect();
        assert_eq!(shown, [(0, "A"), (1, "A"), (2, "B"), (3, "B")]);
        assert_eq!(answer["usage"]["prompt_tokens"], 2);
    }
    let choices: Vec<u32> = server.control.submits().iter().map(|submit| submit.sampling.choice).collect();
    assert_eq!(choices[..4], [0, 1, 0, 1]);
}

/// What lm-evaluation-harness sends for a log-likelihood: token ids, echo, one token that it drops.
fn likelihood(prompt: Value, max_tokens: u64) -> Value {
    json!({"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "logprobs": 1,
           "seed": 1234, "echo": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echo_scores_every_prompt_token_but_the_first() {
    let server = Server::start(says("d")).await;
    let answer = body(server.complete(likelihood(json!([[97, 98, 99]]), 1)).await).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abcd");
    assert_eq!(
        choice["logprobs"],
        json!({
            "tokens": ["a", "b", "c", "d"],
            "token_logprobs": [null, -0.5, -0.5, -0.5],
            "top_logprobs": [null, {"b": -0.5}, {"c": -0.5}, {"d": -0.5}],
            "text_offset": [0, 1, 2, 3],
        })
    );
    let submit = server.control.submits().remove(0);
    assert_eq!((submit.prompt_logprobs, submit.logprobs, submit.max_tokens), (Some(1), Some(1), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echo_without_a_generated_token_scores_the_prompt_alone() {
    let server = Server::start(says("")).await;
    let answer = body(server.complete(likelihood(json!("abc"), 0)).await).await;
    assert_eq!(answer["choices"][0]["text"], "abc");
    assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"], json!([null, -0.5, -0.5]));
    assert_eq!(server.control.submits()[0].max_tokens, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echoed_answer_that_ends_at_once_still_has_the_entry_that_harnesses_drop() {
    let server = Server::start(|_| vec![Step::Prefill, Step::Token(END)]).await;
    let answer = body(server.complete(likelihood(json!([97, 98]), 1)).await).await;
    let choice = &answer["choices"][0];
    assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some("ab"), Some("stop")));
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b", "<|end|>"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2]));
    assert!(server.control.submits()[0].stop_tokens.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_are_no_text_are_named_by_their_bytes() {
    let server = Server::start(says("é")).await;
    let answer = body(server.complete(json!({"prompt": "x", "logprobs": 0})).await).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["bytes:\\xc3", "bytes:\\xa9"]));
    assert_eq!(logprobs["top_logprobs"][0], json!({"bytes:\\xc3": -0.5}), "the token itself is always there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_an_echo_adds_up_to_the_body() {
    let server = Server::start(says("de")).await;
    let mut wanted = likelihood(json!("abc"), 2);
    let whole = body(server.complete(wanted.clone()).await).await;
    wanted["stream"] = json!(true);
    let chunks = chunks(server.complete(wanted).await).await;
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    let text: String = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(text, whole["choices"][0]["text"].as_str().unwrap());
    let tokens: Vec<Value> = choices
        .iter()
        .filter_map(|choice| choice["logprobs"]["tokens"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(Value::from(tokens), whole["choices"][0]["logprobs"]["tokens"]);
    assert_eq!(choices.last().unwrap()["finish_reason"], "length");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_prompt_is_a_texts_beginning() {
    let server = Server::start(says("x")).await;
    assert_eq!(server.complete(json!({"prompt": ""})).await.status(), 200);
    assert_eq!(
        server.control.submits()[0].prompt,
        [END],
        "this model has an end token and no other beginning"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_without_the_version_work_too() {
    let server = Server::start(says("x")).await;
    assert_eq!(server.post("/completions", &json!({"prompt": "x"})).send().await.unwrap().status(), 200);
    let chat = crate::server::chat_body(json!({}));
    assert_eq!(server.post("/chat/completions", &chat).send().await.unwrap().status(), 200);
    for path in ["/models", "/v1/models"] {
        let models = body(server.get(path).send().await.unwrap()).await;
        assert_eq!(models["data"][0]["id"], "tiny");
    }
    assert_eq!(server.get("/v1/models/tiny").send().await.unwrap().status(), 200);
    assert_eq!(server.get("/v1/models/other").send().await.unwrap().status(), 404);
}
