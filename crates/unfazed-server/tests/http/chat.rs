//! Chats: bodies, streams, stop strings, log probabilities.

use serde_json::{Value, json};
use unfazed_wire::{FinishReason, Submit};

use crate::fake_engine::{Step, cancelled};
use crate::server::{CONTEXT, END, Server, body, chunks};

fn says(text: &'static str) -> impl Fn(&Submit) -> Vec<Step> + Send + Sync {
    move |_| vec![Step::Prefill, Step::Text(text), Step::Finish(FinishReason::Stop)]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_answered_with_text_usage_and_timings() {
    let server = Server::start(says("Hé!")).await;
    let answer = body(server.chat(json!({"seed": 7, "temperature": 0})).await).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "tiny");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("unfazed-"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Hé!");
    assert_eq!((choice["finish_reason"].as_str(), choice["logprobs"].is_null()), (Some("stop"), true));
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5,
               "prompt_tokens_details": {"cached_tokens": 1}})
    );
    let timings = &answer["timings"];
    for (name, value) in [
        ("cache_n", 1.0),
        ("prompt_n", 1.0),
        ("prompt_ms", 10.0),
        ("prompt_per_second", 100.0),
        ("predicted_n", 3.0),
        ("predicted_ms", 30.0),
        ("predicted_per_second", 100.0),
    ] {
        assert_eq!(timings[name].as_f64(), Some(value), "{name}");
    }
    let submit = server.control.submits().remove(0);
    assert_eq!(submit.prompt, [u32::from(b'h'), u32::from(b'i')]);
    assert_eq!((submit.sampling.seed, submit.sampling.temperature), (7, 0.0));
    assert_eq!(submit.max_tokens, CONTEXT - 2);
    assert_eq!(submit.stop_tokens, [END]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_with_the_role_and_ends_with_reason_usage_and_done() {
    let server = Server::start(says("aé")).await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let chunks = chunks(server.chat(options).await).await;
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert_eq!(deltas[0], &json!({"role": "assistant", "content": ""}));
    assert_eq!(deltas[1], &json!({"content": "a"}));
    assert_eq!(deltas[2], &json!({"content": "é"}), "half a character is never sent");
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks.len(), 5);
    assert_eq!(chunks[4]["choices"], json!([]));
    assert_eq!(chunks[4]["usage"]["completion_tokens"], 3);
    assert_eq!(chunks[4]["timings"]["predicted_n"], 3);
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], chunks[0]["id"]);
    }
    assert!(chunks[..4].iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_include_usage_the_last_chunk_has_timings_and_no_chunk_has_usage() {
    let server = Server::start(says("a")).await;
    let chunks = chunks(server.chat(json!({"stream": true})).await).await;
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["timings"]["predicted_n"], 3);
    assert!(others.iter().all(|chunk| chunk.get("timings").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_across_tokens_ends_the_answer_and_the_engines_work() {
    // The engine would go on for ever: it never says that it has finished.
    let server = Server::start(|_| vec![Step::Text("one ST"), Step::Text("OP two")]).await;
    let answer = body(server.chat(json!({"stop": ["STOP", "never"]})).await).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "one ");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    let request = server.control.submits()[0].request;
    server.control.wait_for("a cancel", |messages| cancelled(messages).contains(&request).then_some(()));
    let chunks = chunks(server.chat(json!({"stop": "STOP", "stream": true})).await).await;
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "one ");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_come_with_every_shown_token() {
    let server = Server::start(says("aSTOP")).await;
    let wanted = json!({"logprobs": true, "top_logprobs": 2, "stop": "STOP"});
    let answer = body(server.chat(wanted).await).await;
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 1, "tokens of the stop string are not shown: {content:?}");
    assert_eq!(content[0]["token"], "a");
    assert_eq!(content[0]["bytes"], json!([97]));
    assert_eq!(content[0]["logprob"], -0.5);
    let top = content[0]["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), 2);
    assert_eq!((top[1]["token"].as_str(), top[1]["logprob"].as_f64()), (Some("b"), Some(-1.5)));
    assert_eq!(server.control.submits()[0].logprobs, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_choice_is_a_sequence_of_its_own() {
    let script = |submit: &Submit| {
        let text = if submit.sampling.choice == 0 { "zero" } else { "one" };
        vec![Step::Text(text), Step::Finish(FinishReason::Length)]
    };
    let server = Server::start(script).await;
    let answer = body(server.chat(json!({"n": 2})).await).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices[0]["message"]["content"], "zero");
    assert_eq!((&choices[1]["message"]["content"], &choices[1]["index"]), (&json!("one"), &json!(1)));
    assert_eq!(choices[1]["finish_reason"], "length");
    assert_eq!(answer["usage"]["prompt_tokens"], 2, "a prompt counts once");
    let chunks = chunks(server.chat(json!({"n": 2, "stream": true})).await).await;
    for (index, text) in ["zero", "one"].into_iter().enumerate() {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        let said: String = own.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(said, text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_special_token_text_stays_text() {
    let server = Server::start(says("x")).await;
    let message = json!({"messages": [{"role": "user", "content": "<|end|>"}]});
    server.chat(message).await;
    assert_eq!(server.control.submits()[0].prompt.len(), "<|end|>".len());
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_special_tokens_are_not_shown_and_are_counted_and_scored() {
    let script = |_: &Submit| {
        vec![Step::Text("a"), Step::Token(257), Step::Text("b"), Step::Finish(FinishReason::Length)]
    };
    let server = Server::start(script).await;
    let answer = body(server.chat(json!({"logprobs": true})).await).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "ab");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let tokens: Vec<&Value> = content.iter().map(|entry| &entry["token"]).collect();
    assert_eq!(tokens, ["a", "<|turn|>", "b"]);
    let answer = body(server.complete(json!({"prompt": "x"})).await).await;
    assert_eq!(answer["choices"][0]["text"], "ab");
    let answer = body(server.chat(json!({"stop": "<|turn|>"})).await).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "a");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_reach_the_engine() {
    let server = Server::start(says("x")).await;
    let wanted = json!({
        "top_k": 5, "top_p": 0.5, "min_p": 0.25, "repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -1,
        "logit_bias": {"3": -100}, "ignore_eos": true, "max_completion_tokens": 9, "unknown": {"ignored": true},
    });
    assert_eq!(server.chat(wanted).await.status(), 200);
    let submit = server.control.submits().remove(0);
    assert_eq!((submit.sampling.top_k, submit.sampling.top_p, submit.sampling.min_p), (5, 0.5, 0.25));
    let penalties = submit.sampling.penalties;
    assert_eq!((penalties.repetition, penalties.presence, penalties.frequency), (1.5, 1.0, -1.0));
    assert_eq!(submit.sampling.logit_bias, [(3, -100.0)]);
    assert_eq!((submit.stop_tokens, submit.max_tokens), (vec![], 9));
}
