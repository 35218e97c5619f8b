//! Answers that say the same again and again.

use serde_json::{Value, json};

use crate::processes::signal_to;
use crate::streams::Stream;
use crate::support::{Server, one_line_error, output};
use rustix::process::Signal;

/// An answer that is one token all the time.
fn same_token(max_tokens: usize) -> Value {
    json!({
        "prompt": [1, 2, 3],
        "messages": [{"role": "user", "content": "Say it again."}],
        "max_tokens": max_tokens,
        "logit_bias": {"300": 100},
        "temperature": 0,
        "ignore_eos": true,
    })
}

fn with(mut body: Value, repeat_stop_tokens: usize) -> Value {
    body["repeat_stop_tokens"] = json!(repeat_stop_tokens);
    body
}

/// Tokens of an answer, and why it ended.
fn end(server: &Server, path: &str, body: &Value) -> (u64, String) {
    let (status, answer) = server.request("POST", path, "", body);
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let reason = answer["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
    (answer["usage"]["completion_tokens"].as_u64().unwrap(), reason)
}

const PATHS: [&str; 2] = ["/v1/completions", "/v1/chat/completions"];

#[test]
fn an_answer_that_repeats_itself_ends_where_its_request_or_the_server_says() {
    let off = Server::start(&[]);
    let on = Server::start(&["--repeat-stop-tokens", "9"]);
    for path in PATHS {
        assert_eq!(end(&off, path, &same_token(40)), (40, "length".to_owned()), "{path}");
        assert_eq!(end(&off, path, &with(same_token(40), 12)), (12, "repetition".to_owned()), "{path}");
        assert_eq!(end(&on, path, &same_token(40)), (9, "repetition".to_owned()), "{path}");
        assert_eq!(end(&on, path, &with(same_token(40), 0)), (40, "length".to_owned()), "{path}");
        let streamed = Stream::open(&on, path, &same_token(40)).finish();
        assert_eq!(streamed.usage["completion_tokens"], 9, "{path}");
        assert_eq!(streamed.choices[&0].finish_reason, "repetition", "{path}");
    }
}

#[test]
fn a_number_of_tokens_that_can_repeat_nothing_is_refused() {
    let server = Server::start(&[]);
    for tokens in [2, 4097] {
        let (status, answer) = server.request("POST", PATHS[0], "", &with(same_token(9), tokens));
        assert!(status == 400 && answer.contains("repeat_stop_tokens"), "{answer}");
        let refused = output(&["serve", "--repeat-stop-tokens", &tokens.to_string()]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("3 to 4096"), "{refused:?}");
    }
    assert!(
        one_line_error(&output(&["serve", "-m", "none.gguf", "--repeat-stop-tokens", "3"]))
            .contains("none.gguf")
    );
}

#[test]
fn an_answer_whose_engine_is_killed_ends_at_the_same_token() {
    let server = Server::start(&["--context", "1024"]);
    let mut body = with(same_token(900), 600);
    body["logprobs"] = json!(1);
    let undisturbed = Stream::open(&server, PATHS[0], &body).finish();
    assert_eq!(undisturbed.usage["completion_tokens"], 600);
    for before in [50, 300, 590] {
        let mut stream = Stream::open(&server, PATHS[0], &body);
        let mut tokens = 0;
        while tokens < before {
            tokens += stream.next().unwrap();
        }
        signal_to(server.engine(), Signal::KILL);
        stream.finish().assert_equals(&undisturbed, "after a kill");
    }
}
