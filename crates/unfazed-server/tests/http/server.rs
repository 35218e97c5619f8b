//! A running server with a byte-level tokenizer: a token's id is its byte.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use unfazed_formats::checkpoint::Layout;
use unfazed_formats::config::{Family, RopeConfig, RopePairing, RopeScaling};
use unfazed_formats::{Checkpoint, KvTypes, ModelConfig, TokenizerSource};
use unfazed_plan::{Bytes, Plan, Tokens};
use unfazed_server::{Event, ServeOptions, Served, ServerError, serve};

use crate::fake_engine::{Boot, Control, FakeLaunch, PATIENCE, Step};

/// The token that ends an answer.
pub(crate) const END: u32 = 256;
/// Token ids are below it.
const VOCAB: usize = 258;
/// Tokens of prompt and answer.
pub(crate) const CONTEXT: usize = 200;
/// Sequences side by side.
const PARALLEL: usize = 2;

pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) control: Arc<Control>,
    pub(crate) port: u16,
    events: mpsc::UnboundedReceiver<Event>,
    shutdown: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<Served, ServerError>>,
}

impl Server {
    /// A server that is ready, with an engine that answers by `script`.
    pub(crate) async fn start(
        script: impl Fn(&unfazed_wire::Submit) -> Vec<Step> + Send + Sync + 'static,
    ) -> Server {
        let mut server = Server::launch(options(), Boot::Normal, script).await;
        server.ready().await;
        server
    }

    /// A server that listens.
    pub(crate) async fn launch(
        options: ServeOptions,
        boot: Boot,
        script: impl Fn(&unfazed_wire::Submit) -> Vec<Step> + Send + Sync + 'static,
    ) -> Server {
        Server::launch_model(options, checkpoint(), boot, script).await
    }

    /// A server of a model whose chat template is this.
    pub(crate) async fn with_template(template: &str) -> (Server, Event) {
        let model = Checkpoint { chat_template: Some(template.to_owned()), ..checkpoint() };
        let mut server = Server::launch_model(options(), model, Boot::Normal, |_| {
            vec![Step::Text("x"), Step::Finish(unfazed_wire::FinishReason::Stop)]
        })
        .await;
        let ready = server.ready().await;
        (server, ready)
    }

    async fn launch_model(
        options: ServeOptions,
        checkpoint: Checkpoint,
        boot: Boot,
        script: impl Fn(&unfazed_wire::Submit) -> Vec<Step> + Send + Sync + 'static,
    ) -> Server {
        let control = Control::new(boot, script);
        let (sender, events) = mpsc::unbounded_channel();
        let (shutdown, stop) = oneshot::channel::<()>();
        let sender = Mutex::new(sender);
        let sink = Arc::new(move |event| drop(sender.lock().unwrap().send(event)));
        let launch = FakeLaunch(Arc::clone(&control));
        let task = tokio::spawn(serve(
            options,
            checkpoint,
            plan(),
            launch,
            sink,
            unfazed_server::Control::end_only(async {
                let _ = stop.await;
            }),
        ));
        let client = Client::builder().no_proxy().build().unwrap();
        let mut server = Server { client, control, port: 0, events, shutdown: Some(shutdown), task };
        server.port = match server.event().await {
            Event::Listening { port, .. } => port,
            other => panic!("the first event is {other:?}"),
        };
        server
    }

    /// Serves until the server ends by itself.
    pub(crate) async fn try_serve(options: ServeOptions) -> Result<Served, ServerError> {
        let launch = FakeLaunch(Control::new(Boot::Normal, |_| Vec::new()));
        serve(
            options,
            checkpoint(),
            plan(),
            launch,
            Arc::new(|_| {}),
            unfazed_server::Control::end_only(std::future::pending()),
        )
        .await
    }

    pub(crate) async fn event(&mut self) -> Event {
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        event.expect("an event in time").expect("the server still runs")
    }

    pub(crate) async fn ready(&mut self) -> Event {
        loop {
            let event = self.event().await;
            if matches!(event, Event::Ready(_)) {
                return event;
            }
        }
    }

    /// All events up to the one that `last` picks.
    pub(crate) async fn events_until(&mut self, last: impl Fn(&Event) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            events.push(self.event().await);
            if events.last().is_some_and(&last) {
                return events;
            }
        }
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("http://127.0.0.1:{}{path}", self.port)).timeout(PATIENCE)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.client.post(format!("http://127.0.0.1:{}{path}", self.port)).timeout(PATIENCE).json(body)
    }

    /// A chat with one message and these further fields.
    pub(crate) async fn chat(&self, more: Value) -> Response {
        self.post("/v1/chat/completions", &chat_body(more)).send().await.unwrap()
    }

    pub(crate) async fn complete(&self, body: Value) -> Response {
        self.post("/v1/completions", &body).send().await.unwrap()
    }

    /// Tells the server to end.
    pub(crate) fn shut_down(&mut self) {
        let _ = self.shutdown.take().unwrap().send(());
    }

    /// Waits for its end.
    pub(crate) async fn result(self) -> Result<Served, ServerError> {
        tokio::time::timeout(PATIENCE, self.task).await.expect("the server ends").expect("it does not panic")
    }
}

pub(crate) fn chat_body(more: Value) -> Value {
    let mut body = json!({"model": "any", "messages": [{"role": "user", "content": "hi"}]});
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}

pub(crate) fn options() -> ServeOptions {
    ServeOptions { port: 0, model_id: "tiny".to_owned(), max_queue: 6, ..ServeOptions::default() }
}

pub(crate) async fn body(response: Response) -> Value {
    response.json().await.unwrap()
}

/// Status, code and message of an error.
pub(crate) async fn error(response: Response) -> (u16, String, String) {
    let status = response.status().as_u16();
    let body = body(response).await;
    let error = &body["error"];
    assert!(error["type"].is_string() && error.get("param").is_some(), "{body}");
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (status, text("code"), text("message"))
}

/// The data lines of a stream: all but comments, with `[DONE]` as the last one checked and left out.
pub(crate) async fn chunks(response: Response) -> Vec<Value> {
    assert_eq!(response.status(), 200);
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let text = response.text().await.unwrap();
    let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{text}");
    data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn plan() -> Plan {
    Plan {
        context: Tokens(CONTEXT),
        parallel: PARALLEL,
        chunk: Tokens(32),
        pages: 14,
        cache: KvTypes::default(),
        threads: 1,
        batch_threads: 1,
        weight_bytes: Bytes(2_000),
        kv_bytes: Bytes(1_000),
        scratch_bytes: Bytes(500),
        notes: vec!["--context is lowered from 300 to 200".to_owned()],
        ..Plan::default()
    }
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        layout: Layout::HuggingFace,
        files: Vec::new(),
        tensors: BTreeMap::new(),
        config: ModelConfig {
            family: Family::Llama,
            layers: 4,
            hidden: 64,
            heads: 2,
            kv_heads: 2,
            head_dim: 32,
            feed_forward: 128,
            experts: None,
            vocab: VOCAB,
            context: CONTEXT,
            norm_epsilon: 1e-5,
            rope: RopeConfig {
                base: 1e4,
                dimensions: 32,
                pairing: RopePairing::Halves,
                scaling: RopeScaling::None,
            },
            tied_embeddings: true,
        },
        tokenizer: TokenizerSource::HuggingFace {
            json: serde_json::to_vec(&tokenizer()).unwrap(),
            config: Value::Null,
            eos: vec![END],
            bos: None,
        },
        chat_template: Some(TEMPLATE.to_owned()),
        name: "tiny".to_owned(),
        tensor_bytes: 2_000,
    }
}

/// Each message's text; one that says FAIL is refused.
const TEMPLATE: &str = "{%- for message in messages -%}
{%- if message.content == 'FAIL' -%}{{ raise_exception('no such luck') }}{%- endif -%}
{{ message.content }}
{%- endfor -%}";

/// Byte-level BPE without merges: each byte is a token of its own number.
fn tokenizer() -> Value {
    let mut next = 256;
    let vocab: Map<String, Value> = (0..=255u8)
        .map(|byte| {
            let shown = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let alias = if shown {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(alias).unwrap().to_string(), json!(byte))
        })
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(END, "<|end|>"), special(257, "<|turn|>")],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    })
}
