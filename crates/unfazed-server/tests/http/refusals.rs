//! What is refused, and how: each 4xx by name, in OpenAI's shape.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use unfazed_server::{CorsOrigins, Event, ServeOptions};
use unfazed_wire::{FailureKind, FinishReason, Submit};

use crate::fake_engine::{Boot, Step, cancelled, submits};
use crate::server::{CONTEXT, Server, chat_body, chunks, error, options};

fn short(submit: &Submit) -> Vec<Step> {
    let text = if submit.max_tokens > 0 { "x" } else { "" };
    vec![Step::Text(text), Step::Finish(FinishReason::Stop)]
}

async fn ready(options: ServeOptions) -> Server {
    let mut server = Server::launch(options, Boot::Normal, short).await;
    server.ready().await;
    server
}

/// Sends bytes as they are and reads to the connection's end, or to the end of the head.
async fn raw(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut block = [0; 4096];
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut block).await {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend_from_slice(&block[..read]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_mistakes_are_400_with_field_and_value() {
    let server = Server::start(short).await;
    for (more, code, named) in [
        (json!({"temperature": "hot"}), "invalid_value", "temperature is \"hot\""),
        (json!({"messages": []}), "invalid_value", "messages"),
        (json!({"messages": [{"role": "user", "content": "FAIL"}]}), "template_error", "no such luck"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "unsupported_parameter",
            "image_url",
        ),
        (json!({"n": 129}), "invalid_value", "n is 129"),
        (json!({"n": 9}), "invalid_value", "at most 8"),
        (json!({"top_logprobs": 2}), "invalid_value", "top_logprobs is 2"),
        (json!({"tool_choice": "required"}), "unsupported_parameter", "tool_choice is \"required\""),
        (json!({"response_format": {"type": "json_schema"}}), "unsupported_parameter", "json_schema"),
        (json!({"logit_bias": {"258": 1}}), "invalid_value", "below 258"),
    ] {
        let (status, found, message) = error(server.chat(more.clone()).await).await;
        assert_eq!((status, found.as_str()), (400, code), "{more}: {message}");
        assert!(message.contains(named), "{more}: {message}");
    }
    for (body, code, named) in [
        (json!({}), "invalid_value", "prompt is missing"),
        (json!({"prompt": {"a": 1}}), "invalid_value", "prompt is {\"a\":1}"),
        (json!({"prompt": [1, 258]}), "invalid_value", "token id 258"),
        (json!({"prompt": [[]]}), "invalid_value", "no tokens"),
        (json!({"prompt": "x", "suffix": "y"}), "unsupported_parameter", "suffix"),
        (json!({"prompt": "x", "best_of": 2}), "unsupported_parameter", "best_of is 2"),
        (json!({"prompt": "x", "logprobs": 21}), "invalid_value", "logprobs is 21"),
    ] {
        let (status, found, message) = error(server.complete(body.clone()).await).await;
        assert_eq!((status, found.as_str()), (400, code), "{body}: {message}");
        assert!(message.contains(named), "{body}: {message}");
    }
    assert!(server.control.submits().is_empty(), "none of these reached the engine");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_json_is_400_with_line_and_column() {
    let server = Server::start(short).await;
    let url = format!("http://127.0.0.1:{}/v1/chat/completions", server.port);
    let answer = server.client.post(url).body("{\"messages\": [\n}").send().await.unwrap();
    let (status, code, message) = error(answer).await;
    assert_eq!((status, code.as_str()), (400, "invalid_json"));
    assert!(message.contains("line 2 column 1"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_over_the_context_is_400_with_the_numbers() {
    let server = Server::start(short).await;
    let long = "x".repeat(CONTEXT);
    let answer = server.chat(json!({"messages": [{"role": "user", "content": long}]})).await;
    assert_eq!(answer.status(), 400);
    let body: Value = answer.json().await.unwrap();
    let error = &body["error"];
    assert_eq!(error["type"], "exceed_context_size_error");
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!((error["n_prompt_tokens"].as_u64(), error["n_ctx"].as_u64()), (Some(200), Some(200)));
    let filled = server.complete(json!({"prompt": long, "max_tokens": 0})).await;
    assert_eq!(filled.status(), 200, "a prompt that fills the context can be scored");
    let lowered = server.complete(json!({"prompt": "x".repeat(CONTEXT - 1), "max_tokens": 100})).await;
    assert_eq!(lowered.status(), 200);
    assert_eq!(server.control.submits().last().unwrap().max_tokens, 1, "max_tokens is lowered to what fits");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_cannot_fit_is_refused_before_it_is_tokenised() {
    let server = Server::start(short).await;
    let prompt = "x".repeat(CONTEXT * 100);
    let answer = server.complete(json!({"prompt": prompt})).await;
    assert_eq!(answer.status(), 400);
    let body: Value = answer.json().await.unwrap();
    let error = &body["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!((error.get("n_prompt_tokens"), error["n_ctx"].as_u64()), (None, Some(200)));
    assert!(error["message"].as_str().unwrap().contains("20000 bytes"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_does_not_compile_is_noted_at_start_and_refuses_chats_alone() {
    let (server, ready) = Server::with_template("{% for m in messages %}\n{{ m. }}{% endfor %}").await;
    let Event::Ready(ready) = ready else { panic!("{ready:?}") };
    let notes: Vec<&String> = ready.notes.iter().filter(|note| note.contains("chats are refused")).collect();
    assert!(notes.len() == 1 && notes[0].contains("line 2 of the chat template"), "{:?}", ready.notes);
    let (status, code, message) = error(server.chat(json!({})).await).await;
    assert_eq!((status, code.as_str()), (400, "template_error"));
    assert!(message.contains("line 2 of the chat template"), "{message}");
    assert_eq!(server.complete(json!({"prompt": "x"})).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_are_404_and_wrong_methods_405() {
    let server = Server::start(short).await;
    let (status, _, message) = error(server.get("/v1/nothing").send().await.unwrap()).await;
    assert_eq!(status, 404);
    assert!(message.contains("/v1/nothing"), "{message}");
    let (status, _, message) = error(server.get("/v1/chat/completions").send().await.unwrap()).await;
    assert_eq!(status, 405);
    assert!(message.contains("GET"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_413_and_a_slow_one_408() {
    let limits = ServeOptions { body_limit: 1000, receive_timeout: Duration::from_millis(300), ..options() };
    let server = ready(limits).await;
    let (status, code, _) = error(server.chat(json!({"user": "x".repeat(2000)})).await).await;
    assert_eq!((status, code.as_str()), (413, "request_too_large"));
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
    assert!(raw(&server, head).await.starts_with("HTTP/1.1 408"));
    let head = head.replace("Length: 100", "Length: 1001");
    let answer = raw(&server, &head).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "the rest is not waited for");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_431_and_a_slow_one_is_cut() {
    let server = ready(ServeOptions { receive_timeout: Duration::from_millis(300), ..options() }).await;
    // Not a byte more than the server reads: what it leaves unread would reset the connection under the answer.
    let mut large = "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ".to_owned();
    large += &"x".repeat((64 << 10) - large.len());
    assert!(raw(&server, &large).await.starts_with("HTTP/1.1 431"));
    let many = format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(200));
    assert!(raw(&server, &many).await.starts_with("HTTP/1.1 431"));
    assert_eq!(raw(&server, "GET /health HTTP/1.1\r\nHost: lo").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_keys_only_health_is_open() {
    let keys = vec!["secret".to_owned(), "other".to_owned()];
    let server = ready(ServeOptions { api_keys: keys, ..options() }).await;
    assert_eq!(server.get("/health").send().await.unwrap().status(), 200);
    for path in ["/v1/models", "/metrics", "/nothing"] {
        let (status, code, _) = error(server.get(path).send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (401, "invalid_api_key"), "{path}");
        let wrong = server.get(path).bearer_auth("secre").send().await.unwrap();
        assert_eq!(wrong.headers()["www-authenticate"], "Bearer");
    }
    assert_eq!(error(server.chat(json!({})).await).await.0, 401);
    assert_eq!(server.get("/v1/models").bearer_auth("other").send().await.unwrap().status(), 200);
    assert_eq!(server.get("/v1/models").header("x-api-key", "secret").send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strange_host_or_origin_is_403() {
    let server = Server::start(short).await;
    let (status, code, _) =
        error(server.get("/v1/models").header("host", "evil.example").send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (403, "host_not_allowed"));
    let answer = server.get("/v1/models").header("origin", "http://evil.example").send().await.unwrap();
    assert!(answer.headers().get("access-control-allow-origin").is_none());
    let (status, code, _) = error(answer).await;
    assert_eq!((status, code.as_str()), (403, "origin_not_allowed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_origin_gets_cors_headers_and_its_preflight_needs_no_key() {
    let cors = Some(CorsOrigins::Only(vec!["https://app.example".to_owned()]));
    let server = ready(ServeOptions { cors, api_keys: vec!["k".to_owned()], ..options() }).await;
    let url = format!("http://127.0.0.1:{}/v1/chat/completions", server.port);
    let preflight = server.client.request(reqwest::Method::OPTIONS, &url);
    let preflight = preflight
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type,unfazed-resumable,last-event-id",
        );
    let answer = preflight.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://app.example");
    let allowed = answer.headers()["access-control-allow-headers"].to_str().unwrap();
    for header in ["authorization", "unfazed-resumable", "last-event-id"] {
        assert!(allowed.contains(header), "{allowed}");
    }
    let request = server.post("/v1/chat/completions", &chat_body(json!({}))).bearer_auth("k");
    let answer = request.header("origin", "https://app.example").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["access-control-allow-origin"], "https://app.example");
    let exposed = answer.headers()["access-control-expose-headers"].to_str().unwrap();
    assert!(exposed.contains("unfazed-stream-id"), "{exposed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_429_and_room_again_once_a_client_leaves() {
    // Capacity is 2 side by side and 6 that wait. The engine never answers.
    let server = Server::start(|_| Vec::new()).await;
    let waiting = tokio::spawn(server.post("/v1/completions", &json!({"prompt": "x", "n": 8})).send());
    server.control.wait_for("eight requests", |messages| (submits(messages).len() == 8).then_some(()));
    let answer = server.chat(json!({})).await;
    assert!(answer.headers().contains_key("retry-after"));
    let (status, code, _) = error(answer).await;
    assert_eq!((status, code.as_str()), (429, "queue_full"));
    waiting.abort();
    server.control.wait_for("eight cancels", |messages| (cancelled(messages).len() == 8).then_some(()));
    let left = server.post("/v1/completions", &json!({"prompt": "x", "n": 8}));
    let again = tokio::spawn(left.send());
    server.control.wait_for("eight more", |messages| (submits(messages).len() == 16).then_some(()));
    again.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_failure_is_500_by_its_name_and_never_the_clients_fault() {
    let script = |submit: &Submit| {
        let kind =
            if submit.prompt == [97] { FailureKind::NonfiniteLogits } else { FailureKind::InvalidRequest };
        vec![Step::Text("x"), Step::Fail(kind)]
    };
    let server = Server::start(script).await;
    let (status, code, message) = error(server.complete(json!({"prompt": "a"})).await).await;
    assert_eq!((status, code.as_str()), (500, "nonfinite_logits"));
    assert!(message.contains("layer 3"), "{message}");
    let (status, code, _) = error(server.complete(json!({"prompt": "b"})).await).await;
    assert_eq!((status, code.as_str()), (500, "engine_error"));
    let chunks = chunks(server.complete(json!({"prompt": "a", "stream": true})).await).await;
    assert_eq!(chunks.last().unwrap()["error"]["code"], "nonfinite_logits");
    assert_eq!(chunks.last().unwrap()["error"]["type"], "server_error");
    assert_eq!(server.chat(json!({"messages": []})).await.status(), 400, "the server lives");
}
