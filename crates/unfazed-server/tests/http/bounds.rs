//! Clients that take more than their share, and those beside them.

use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use unfazed_server::ServeOptions;
use unfazed_wire::{FinishReason, Submit};

use crate::fake_engine::{Boot, PATIENCE, Step};
use crate::server::{Server, chunks, error, options};

fn pauses(_: &Submit) -> Vec<Step> {
    vec![Step::Text("a"), Step::Hold, Step::Text("b"), Step::Finish(FinishReason::Stop)]
}

async fn ready(options: ServeOptions) -> Server {
    let mut server = Server::launch(options, Boot::Normal, pauses).await;
    server.ready().await;
    server
}

async fn sender(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    socket
}

const HALF_A_HEAD: &[u8] = b"POST /v1/completions HTTP/1.1\r\nHost: local";
const HALF_A_BODY: &[u8] =
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\": ";
const AN_IDLE_CONNECTION: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn slow_senders_keep_nobody_out_and_cut_no_answer() {
    // Nobody runs out of time.
    let receive_timeout = Duration::from_secs(3600);
    let server = ready(ServeOptions { connections: 8, receive_timeout, ..options() }).await;
    let stream = server.complete(json!({"prompt": "x", "stream": true})).await;
    for bytes in [HALF_A_HEAD, HALF_A_BODY, AN_IDLE_CONNECTION] {
        let slow = join_all((0..100).map(|_| sender(&server, bytes))).await;
        // A connection of its own, as no earlier one is idle.
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://127.0.0.1:{}/v1/models", server.port);
        assert_eq!(client.get(url).timeout(PATIENCE).send().await.unwrap().status(), 200);
        drop(slow);
    }
    server.control.let_go();
    let text: String =
        chunks(stream).await.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "ab");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_connections_are_answered_another_waits_for_the_first_that_ends() {
    let server = ready(ServeOptions { connections: 1, ..options() }).await;
    let stream = server.complete(json!({"prompt": "x", "stream": true})).await;
    let waiting = tokio::spawn(server.get("/v1/models").send());
    server.control.let_go();
    assert_eq!(chunks(stream).await.len(), 3);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_take_so_much_together_and_give_it_back() {
    let server = ready(ServeOptions { body_budget: 1000, ..options() }).await;
    server.control.let_go();
    let request = json!({"prompt": "x", "user": "y".repeat(300)});
    assert_eq!(server.complete(request.clone()).await.status(), 200);
    let announced = server.complete(json!({"prompt": "x", "user": "y".repeat(1000)})).await;
    assert!(announced.headers().contains_key("retry-after"));
    assert_eq!(error(announced).await.1, "server_busy");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n";
    let slow = head.to_owned() + &" ".repeat(900);
    let holds = async {
        let mut socket = sender(&server, slow.as_bytes()).await;
        while server.complete(request.clone()).await.status() != 429 {
            // Its bytes were not read yet, or met with a request's own: then it was refused itself.
            if socket.try_read(&mut [0; 16]).is_ok() {
                socket = sender(&server, slow.as_bytes()).await;
            }
        }
        socket
    };
    let slow = tokio::time::timeout(PATIENCE, holds).await.unwrap();
    let chunks = futures::stream::iter(["{\"prompt\": \"", "x\", \"user\": \""]).map(str::to_owned);
    let chunks = chunks.chain(futures::stream::iter(vec!["y".repeat(300)])).map(Ok::<_, std::io::Error>);
    let chunked = server.client.post(format!("http://127.0.0.1:{}/v1/completions", server.port));
    let chunked = chunked.body(reqwest::Body::wrap_stream(chunks)).send().await.unwrap();
    assert_eq!(error(chunked).await.1, "server_busy", "a body of no announced length counts as it comes");
    drop(slow);
    let answered = async { while server.complete(request.clone()).await.status() != 200 {} };
    tokio::time::timeout(PATIENCE, answered).await.unwrap();
}
