//! Resumable streams.

use std::time::Duration;

use futures::StreamExt;
use reqwest::Response;
use serde_json::{Value, json};
use unfazed_server::ServeOptions;
use unfazed_wire::{FinishReason, Submit};

use crate::fake_engine::{Boot, PATIENCE, Step, cancelled};
use crate::server::{Server, chat_body, error, options};

fn pauses(_: &Submit) -> Vec<Step> {
    vec![Step::Text("abc"), Step::Hold, Step::Text("def"), Step::Finish(FinishReason::Stop)]
}

async fn resumable(server: &Server, seconds: &str) -> Response {
    let body = chat_body(json!({"stream": true}));
    server.post("/v1/chat/completions", &body).header("unfazed-resumable", seconds).send().await.unwrap()
}

fn stream_id(response: &Response) -> String {
    let id = response.headers()["unfazed-stream-id"].to_str().unwrap().to_owned();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    id
}

async fn resume(server: &Server, id: &str, last_event: Option<&str>) -> Response {
    let request = server.get(&format!("/v1/streams/{id}"));
    let request = last_event.into_iter().fold(request, |request, last| request.header("last-event-id", last));
    request.send().await.unwrap()
}

/// The events of a text, each with its lines.
fn events(text: &str) -> Vec<String> {
    assert!(text.ends_with("\n\n"), "{text}");
    let events = text.trim_end().split("\n\n").filter(|event| !event.starts_with(':'));
    events.map(str::to_owned).collect()
}

fn content(events: &[String]) -> String {
    let data = events.iter().filter_map(|event| event.split_once("data: ")?.1.parse::<Value>().ok());
    data.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect()
}

/// Reads a beginning that holds this text.
async fn beginning(response: Response, until: &str) -> String {
    let mut text = String::new();
    let mut blocks = response.bytes_stream();
    while !text.contains(until) {
        let block = tokio::time::timeout(PATIENCE, blocks.next()).await.unwrap().unwrap().unwrap();
        text += std::str::from_utf8(&block).unwrap();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn events_carry_ids_and_can_be_read_again_from_any_of_them() {
    let server = Server::start(pauses).await;
    server.control.let_go();
    let response = resumable(&server, "60").await;
    let id = stream_id(&response);
    let whole = events(&response.text().await.unwrap());
    assert_eq!(content(&whole), "abcdef");
    for (at, event) in whole.iter().enumerate() {
        assert!(event.starts_with(&format!("id: {id}-{}\ndata: ", at + 1)), "{event}");
    }
    assert!(whole.last().unwrap().ends_with("data: [DONE]"));
    let again = resume(&server, &id, None).await;
    assert_eq!(stream_id(&again), id);
    assert_eq!(events(&again.text().await.unwrap()), whole);
    for read in 1..whole.len() {
        let rest = resume(&server, &id, Some(&format!("{id}-{read}"))).await;
        assert_eq!(events(&rest.text().await.unwrap()), whole[read..]);
    }
    let nothing = resume(&server, &id, Some(&format!("{id}-{}", whole.len()))).await;
    assert_eq!(nothing.status(), 204, "browsers come back until they see it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_gets_every_event_once_and_several_may_read() {
    let server = Server::start(pauses).await;
    let response = resumable(&server, "60").await;
    let id = stream_id(&response);
    let first = beginning(response, "\"c\"").await;
    let mut whole = events(&(first.rsplit_once("\n\n").unwrap().0.to_owned() + "\n\n"));
    let last = whole.last().unwrap().split_once('\n').unwrap().0.strip_prefix("id: ").unwrap().to_owned();
    let rest = resume(&server, &id, Some(&last)).await;
    let other = server.get(&format!("/streams/{id}")).send().await.unwrap();
    server.control.let_go();
    whole.extend(events(&rest.text().await.unwrap()));
    assert_eq!(content(&whole), "abcdef");
    assert_eq!(events(&other.text().await.unwrap()), whole);
    assert_eq!(server.control.submits().len(), 1);
    assert!(server.control.wait_for("messages", |all| Some(cancelled(all))).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_comes_back_to_is_cancelled_and_forgotten() {
    let server = Server::start(|_| vec![Step::Text("abc")]).await;
    let response = resumable(&server, "1").await;
    let id = stream_id(&response);
    drop(beginning(response, "\"c\"").await);
    let request = server.control.submits()[0].request;
    server.control.wait_for("a cancel", |all| (cancelled(all) == [request]).then_some(()));
    let (status, code, _) = error(resume(&server, &id, None).await).await;
    assert_eq!((status, code.as_str()), (404, "not_found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_make_no_sense_are_400_by_name_and_value() {
    let server = Server::start(pauses).await;
    server.control.let_go();
    for seconds in ["0", "3601", "-1", "1.5", "", "soon", "1, 2"] {
        let (status, _, message) = error(resumable(&server, seconds).await).await;
        assert_eq!(status, 400);
        assert!(message.contains(&format!("Unfazed-Resumable is {seconds:?}")), "{message}");
    }
    let whole = server.post("/v1/completions", &json!({"prompt": "x"})).header("unfazed-resumable", "7");
    let (status, _, message) = error(whole.send().await.unwrap()).await;
    assert_eq!(status, 400);
    assert!(message.contains("Unfazed-Resumable is 7") && message.contains("stream"), "{message}");
    assert!(server.control.submits().is_empty());
    let response = resumable(&server, "60").await;
    let id = stream_id(&response);
    response.text().await.unwrap();
    for last in ["1".to_owned(), format!("{id}-0"), format!("{id}-999"), format!("{}-1", "0".repeat(32))] {
        let (status, _, message) = error(resume(&server, &id, Some(&last)).await).await;
        assert_eq!(status, 400);
        assert!(message.contains(&format!("Last-Event-ID is {last:?}")), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_there_for_the_key_that_started_it_and_others_cannot_tell_that_it_is() {
    let api_keys = vec!["mine".to_owned(), "other".to_owned()];
    let mut server = Server::launch(ServeOptions { api_keys, ..options() }, Boot::Normal, pauses).await;
    server.ready().await;
    server.control.let_go();
    let body = json!({"prompt": "x", "stream": true});
    let request = server.post("/v1/completions", &body).header("unfazed-resumable", "60").bearer_auth("mine");
    let response = request.send().await.unwrap();
    let id = stream_id(&response);
    response.text().await.unwrap();
    let path = format!("/v1/streams/{id}");
    assert_eq!(server.get(&path).header("x-api-key", "mine").send().await.unwrap().status(), 200);
    assert_eq!(server.get(&path).send().await.unwrap().status(), 401);
    let foreign = error(server.get(&path).bearer_auth("other").send().await.unwrap()).await;
    let unknown = server.get(&format!("/v1/streams/{}", "0".repeat(32))).bearer_auth("mine");
    let unknown = error(unknown.send().await.unwrap()).await;
    assert_eq!(foreign.0, 404);
    assert_eq!(foreign, unknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_outgrows_the_memory_is_told_to_its_end_and_cannot_be_resumed() {
    let small = ServeOptions { stream_budget: 300, ..options() };
    let mut server = Server::launch(small, Boot::Normal, pauses).await;
    server.ready().await;
    let response = resumable(&server, "60").await;
    let id = stream_id(&response);
    server.control.let_go();
    assert_eq!(content(&events(&response.text().await.unwrap())), "abcdef");
    let (status, code, message) = error(resume(&server, &id, None).await).await;
    assert_eq!((status, code.as_str()), (410, "stream_lost"));
    assert!(message.contains("memory"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_end_is_a_resumable_streams_final_event() {
    let short = ServeOptions { drain: Duration::from_millis(50), ..options() };
    let mut server = Server::launch(short, Boot::Normal, |_| vec![Step::Text("abc")]).await;
    server.ready().await;
    let response = resumable(&server, "60").await;
    let id = stream_id(&response);
    let other = resume(&server, &id, None).await;
    server.shut_down();
    for response in [response, other] {
        let events = events(&response.text().await.unwrap());
        let [.., last, done] = events.as_slice() else { panic!("{events:?}") };
        assert!(last.contains("shutting_down") && done.ends_with("data: [DONE]"), "{events:?}");
    }
    server.result().await.unwrap();
}
