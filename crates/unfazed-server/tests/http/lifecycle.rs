//! Starts and ends: of the engine, of clients, of the server.

use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use unfazed_server::{Event, ServeOptions, ServerError};
use unfazed_wire::{FinishReason, Submit, ToEngine};

use crate::fake_engine::{Boot, PATIENCE, Step, cancelled, submits};
use crate::server::{Server, body, chat_body, chunks, error, options};

fn short(_: &Submit) -> Vec<Step> {
    vec![Step::Text("hello"), Step::Finish(FinishReason::Stop)]
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_of_loading_and_of_the_effective_settings() {
    let mut server = Server::launch(options(), Boot::Normal, short).await;
    let events = server.events_until(|event| matches!(event, Event::Ready(_))).await;
    assert!(
        matches!(events.first(), Some(Event::Loading { done_bytes: 0, total_bytes: 10, .. })),
        "{events:?}"
    );
    let ready = serde_json::to_value(events.last().unwrap()).unwrap();
    assert_eq!(
        (ready["event"].as_str(), ready["port"].as_u64()),
        (Some("ready"), Some(u64::from(server.port)))
    );
    assert_eq!(ready["model"], "tiny");
    assert_eq!(ready["partition"]["cpu_layers"], 4);
    assert_eq!(ready["partition"]["total_layers"], 4);
    assert_eq!(ready["settings"]["context"], 200);
    assert_eq!(ready["settings"]["isa"], "fake");
    assert_eq!(ready["notes"], json!(["--context is lowered from 300 to 200"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_model_loads_health_is_503_and_requests_wait() {
    let waiting = ServeOptions { keep_alive: Duration::from_millis(20), ..options() };
    let mut server = Server::launch(waiting, Boot::Held, short).await;
    let health = server.get("/health").send().await.unwrap();
    assert_eq!(health.status(), 503);
    let loading = json!({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}});
    assert_eq!(body(health).await, loading);
    let stream = server.chat(json!({"stream": true})).await;
    assert_eq!(stream.status(), 200, "a stream is opened at once");
    let mut stream = stream.bytes_stream();
    let first = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
    assert!(first.starts_with(b": keep-alive"), "{first:?}");
    let whole = tokio::spawn(server.post("/v1/chat/completions", &chat_body(json!({}))).send());
    server.control.let_load();
    server.ready().await;
    assert_eq!(body(whole.await.unwrap().unwrap()).await["choices"][0]["message"]["content"], "hello");
    let rest: Vec<_> = stream.collect().await;
    let rest: Vec<u8> = rest.into_iter().flat_map(|block| block.unwrap().to_vec()).collect();
    assert!(String::from_utf8(rest).unwrap().ends_with("data: [DONE]\n\n"));
    let health = body(server.get("/health").send().await.unwrap()).await;
    assert_eq!((&health["status"], &health["state"]), (&json!("ok"), &json!("ready")), "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_cancelled_in_the_queue_in_prefill_and_while_it_is_answered() {
    let scripts: [Vec<Step>; 3] = [vec![], vec![Step::Prefill], vec![Step::Prefill, Step::Text("x")]];
    for script in scripts {
        for stream in [false, true] {
            let steps = script.clone();
            let server = Server::start(move |_| steps.clone()).await;
            let request = server.post("/v1/chat/completions", &chat_body(json!({"stream": stream})));
            let client = tokio::spawn(async move {
                let answer = request.send().await.unwrap();
                answer.text().await
            });
            let submit =
                server.control.wait_for("a request", |messages| submits(messages).into_iter().next());
            client.abort();
            server
                .control
                .wait_for("a cancel", |messages| (cancelled(messages) == [submit.request]).then_some(()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_ends_the_server_with_the_engines_line() {
    let server = Server::launch(options(), Boot::Refuses("tiny.gguf: blk.0.w is 3: too few"), short).await;
    let error = server.result().await.unwrap_err();
    assert!(matches!(&error, ServerError::Load(_)));
    assert_eq!(error.to_string(), "tiny.gguf: blk.0.w is 3: too few");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_another_build_is_refused() {
    let server = Server::launch(options(), Boot::Foreign, short).await;
    let error = server.result().await.unwrap_err();
    assert!(matches!(&error, ServerError::Build { engine, .. } if engine == "another build"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_never_gets_ready_is_given_up() {
    let mut server = Server::launch(options(), Boot::Stillborn, short).await;
    let events = server.events_until(|event| matches!(event, Event::EngineRestart { attempt: 2, .. })).await;
    assert!(events.iter().all(|event| !matches!(event, Event::Ready(_))));
    let error = server.result().await.unwrap_err();
    assert!(
        matches!(&error, ServerError::NeverReady { attempts: 3, cause } if cause.contains("exit code 7")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_an_error_that_names_it() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let result = tokio::time::timeout(PATIENCE, Server::try_serve(ServeOptions { port, ..options() })).await;
    let error = result.unwrap().unwrap_err();
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_running_answers_end_and_refuses_new_ones() {
    let mut server = Server::start(|_| vec![Step::Text("first")]).await;
    let request = server.post("/v1/chat/completions", &chat_body(json!({"stop": "END"})));
    let running = tokio::spawn(request.send());
    let submit = server.control.wait_for("a request", |messages| submits(messages).into_iter().next());
    server.shut_down();
    let draining = server.events_until(|event| matches!(event, Event::Draining { .. })).await;
    assert!(matches!(draining.last(), Some(Event::Draining { requests: 1, limit_ms: 30_000 })));
    let answer = server.chat(json!({})).await;
    assert!(answer.headers().contains_key("retry-after"));
    let (status, code, _) = error(answer).await;
    assert_eq!((status, code.as_str()), (503, "shutting_down"));
    assert_eq!(server.get("/health").send().await.unwrap().status(), 503);
    running.abort();
    let all = server.events_until(|event| matches!(event, Event::Shutdown { .. })).await;
    assert!(matches!(all.last(), Some(Event::Shutdown { unfinished_requests: 0 })));
    server
        .control
        .wait_for("its cancel", |messages| cancelled(messages).contains(&submit.request).then_some(()));
    server.control.wait_for("the end", |messages| messages.contains(&ToEngine::Shutdown).then_some(()));
    server.result().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_outlasts_the_drain_ends_with_a_final_error() {
    let mut server =
        Server::launch(ServeOptions { drain: Duration::from_millis(50), ..options() }, Boot::Normal, |_| {
            vec![Step::Text("first")]
        })
        .await;
    server.ready().await;
    let stream = server.chat(json!({"stream": true})).await;
    let whole = tokio::spawn(server.post("/v1/chat/completions", &chat_body(json!({}))).send());
    server.control.wait_for("both requests", |messages| (submits(messages).len() == 2).then_some(()));
    server.shut_down();
    let chunks = chunks(stream).await;
    assert_eq!(chunks.last().unwrap()["error"]["code"], "shutting_down");
    let (status, code, _) = error(whole.await.unwrap().unwrap()).await;
    assert_eq!((status, code.as_str()), (503, "shutting_down"));
    let events = server.events_until(|event| matches!(event, Event::Shutdown { .. })).await;
    assert!(matches!(events.last(), Some(Event::Shutdown { unfinished_requests: 2 })), "{events:?}");
    server.result().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_happened_under_names_that_the_documentation_lists() {
    let server = Server::start(short).await;
    server.chat(json!({})).await;
    server.chat(json!({"n": 0})).await;
    let text = server.get("/metrics").send().await.unwrap().text().await.unwrap();
    for line in [
        "unfazed_requests_total{endpoint=\"chat_completions\",status=\"200\"} 1",
        "unfazed_requests_total{endpoint=\"chat_completions\",status=\"400\"} 1",
        "unfazed_requests_running 0",
        "unfazed_requests_queued 0",
        "unfazed_generated_tokens_total 5",
        "unfazed_kv_pages 14",
        "unfazed_engine_restarts_total 0",
        "unfazed_time_to_first_token_seconds_count 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let documented =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for name in names {
        assert!(documented.contains(&format!("`{name}`")), "{name} is not in docs/metrics.md");
    }
}
