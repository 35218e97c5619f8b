//! Its endpoints.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{self, Events, Request};
use super::{Does, Life, Plan, field, model};

/// How long a token takes.
const TOKEN: Duration = Duration::from_millis(1);

struct Server {
    plan: Plan,
    life: Life,
    computed: AtomicUsize,
    failed: AtomicBool,
    failed_once: AtomicBool,
}

/// Serves until it ends as its plan says.
pub(super) fn serve(port: u16, plan: Plan, life: Life) {
    let server = Arc::new(Server {
        plan,
        life,
        computed: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        failed_once: AtomicBool::new(false),
    });
    say("made-up server: loading");
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for socket in listener.incoming().flatten() {
        let server = Arc::clone(&server);
        thread::spawn(move || http::read(socket).map(|request| server.answer(request)));
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A chat's prompt.
pub(super) fn render(messages: &Value) -> String {
    let messages = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    let part = |message: &Value| {
        let of = |name| field(message, name).as_str().unwrap_or_default();
        format!("<{}>{}", of("role"), of("content"))
    };
    messages.iter().map(part).collect::<String>() + "<assistant>"
}

/// Tokens of a prompt: text, ids, or both.
fn prompt(prompt: &Value) -> Vec<u64> {
    match prompt {
        Value::Array(parts) => parts.iter().flat_map(self::prompt).collect(),
        Value::Number(id) => vec![id.as_u64().unwrap()],
        text => model::read(text.as_str().unwrap_or_default()),
    }
}

impl Server {
    fn answer(&self, request: Request) -> Option<()> {
        let path = request.path.clone();
        let path = path.as_str();
        let llama = self.plan.llama;
        match path {
            "/health" if self.life.does == Does::NeverUp => {
                request.answer(503, &json!({"error": {"message": "Loading model", "code": 503}}));
            }
            "/health" => request.answer(200, &json!({"status": "ok", "own": "words"})),
            "/v1/models" => request.answer(200, &json!({"data": [{"id": "made-up"}]})),
            "/props" if llama => {
                let settings = json!({"params": {"temperature": 0.8}});
                request.answer(200, &json!({"default_generation_settings": settings}));
            }
            "/slots" if llama => request.answer(200, &self.slots()),
            "/tokenize" if llama => {
                let tokens = model::tokenize(field(&request.body, "content").as_str()?);
                request.answer(200, &json!({ "tokens": tokens }));
            }
            "/apply-template" if llama => {
                let prompt = render(field(&request.body, "messages"));
                request.answer(200, &json!({ "prompt": prompt }));
            }
            "/v1/chat/completions" | "/v1/completions" => return self.complete(request, path),
            "/completion" if llama => return self.complete(request, path),
            _ => request.answer(404, &json!({"error": {"message": "there is no such path", "code": 404}})),
        }
        Some(())
    }

    fn slots(&self) -> Value {
        let computed = self.computed.load(Ordering::Relaxed);
        json!([{"id": 0, "id_task": 1, "is_processing": true, "next_token": [{"n_decoded": computed}]}])
    }

    fn complete(&self, request: Request, path: &str) -> Option<()> {
        let body = request.body.clone();
        let chat = path == "/v1/chat/completions";
        let mut tokens = if chat {
            model::read(&render(field(&body, "messages")))
        } else {
            prompt(field(&body, "prompt"))
        };
        if field(&body, "temperature").as_f64() != Some(0.0) {
            // A draw that never comes again.
            tokens.push(1000 + u64::from(std::process::id() % 256));
        }
        let poison = body.to_string().contains("poison");
        if poison && self.life.does == Does::DiesOfPoison {
            std::process::abort();
        }
        let fails = self.life.does == Does::FailsOnce && body.to_string().contains("fails");
        if self.failed.load(Ordering::Relaxed) || (fails && !self.failed_once.swap(true, Ordering::Relaxed)) {
            request.answer(
                500,
                &json!({"error": {"message": "Compute error.", "type": "server_error", "code": 500}}),
            );
            return Some(());
        }
        let limit = ["n_predict", "max_completion_tokens", "max_tokens"];
        let limit = limit.iter().find_map(|name| field(&body, name).as_u64()).unwrap_or(40) as usize;
        // A probe computes, and does not count.
        let counts = limit > 1;
        let mut answer = Answer {
            path: path.to_owned(),
            like: body.clone(),
            thinks: self.plan.thinks && chat,
            prompt: tokens.len(),
            limit,
            pending: Vec::new(),
            text: String::new(),
        };
        if field(&body, "stream") == true {
            let mut events = request.stream(self.plan.llama)?;
            answer.begin(&mut events)?;
            for computed in 1..=limit {
                let token = self.compute(&mut tokens, counts, Some(&mut events))?;
                answer.token(token, computed, &mut events)?;
            }
            if self.life.does == Does::AbortAtEnd {
                std::process::abort();
            }
            answer.end(&mut events)?;
            events.end();
        } else {
            for _ in 0..limit {
                answer.pending.push(self.compute(&mut tokens, counts, None)?);
            }
            request.answer(200, &answer.whole());
        }
        Some(())
    }

    /// A token, unless the process fails.
    fn compute(&self, tokens: &mut Vec<u64>, counts: bool, events: Option<&mut Events>) -> Option<u64> {
        thread::sleep(TOKEN);
        if self.life.does == Does::Mute {
            wait_for_ever();
        }
        if counts && self.computed.fetch_add(1, Ordering::SeqCst) >= self.life.after {
            match self.life.does {
                Does::Abort => std::process::abort(),
                Does::Exit => std::process::exit(6),
                Does::Hang => wait_for_ever(),
                Does::SubmissionsIgnored => {
                    say(
                        "[METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).",
                    );
                    say(
                        "[METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored).",
                    );
                    wait_for_ever()
                }
                Does::DeviceFails => {
                    if !self.failed.swap(true, Ordering::SeqCst) {
                        say("ggml_metal_synchronize: error: command buffer 0 failed with status 5");
                        say(
                            "error: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
                        );
                    }
                    say(
                        "backend is in error state from a previous command buffer failure - recreate the backend to recover",
                    );
                    let error =
                        json!({"error": {"code": 500, "message": "Compute error.", "type": "server_error"}});
                    events?.send(&error.to_string());
                    return None;
                }
                Does::Nothing
                | Does::AbortAtEnd
                | Does::Mute
                | Does::DiesOfPoison
                | Does::FailsOnce
                | Does::NeverUp => {}
            }
        }
        let token = model::next(tokens);
        tokens.push(token);
        Some(token)
    }
}

fn wait_for_ever() -> ! {
    loop {
        thread::sleep(Duration::from_secs(600));
    }
}

/// An answer, in the shape of its path.
struct Answer {
    path: String,
    /// The request.
    like: Value,
    thinks: bool,
    prompt: usize,
    limit: usize,
    /// Tokens whose text is not sent yet.
    pending: Vec<u64>,
    text: String,
}

impl Answer {
    fn asks(&self, name: &str) -> bool {
        let value = field(&self.like, name);
        *value == true || value.as_u64().is_some_and(|n| n > 0)
    }

    fn frame(&self, choice: &Value) -> Value {
        let id = format!("made-up-{}", std::process::id());
        json!({"id": id, "created": std::process::id(), "model": "made-up", "object": "chunk", "choices": [choice]})
    }

    fn begin(&self, events: &mut Events) -> Option<()> {
        if self.path != "/v1/chat/completions" {
            return Some(());
        }
        let delta = json!({"role": "assistant", "content": null});
        events.send(&self.frame(&json!({"index": 0, "delta": delta, "finish_reason": null})).to_string())
    }

    /// As llama-server does: a character comes with its last token, whose id alone is told.
    fn token(&mut self, token: u64, computed: usize, events: &mut Events) -> Option<()> {
        self.pending.push(token);
        let Ok(text) = String::from_utf8(model::bytes(&self.pending)) else { return Some(()) };
        self.pending.clear();
        self.text += &text;
        let mut chunk = match self.path.as_str() {
            "/completion" => {
                json!({"content": text, "tokens": [token], "stop": false, "tokens_predicted": computed, "tokens_evaluated": self.prompt})
            }
            "/v1/completions" => self.frame(&json!({"index": 0, "text": text, "finish_reason": null})),
            _ => {
                let field =
                    if self.thinks && computed <= self.limit / 2 { "reasoning_content" } else { "content" };
                let mut choice = json!({"index": 0, "delta": {field: text}, "finish_reason": null});
                if self.asks("n_probs") {
                    choice["logprobs"] = json!({"content": [{"id": token, "token": text}]});
                }
                self.frame(&choice)
            }
        };
        if self.asks("verbose") {
            chunk["__verbose"] = json!({"tokens": [token], "tokens_predicted": computed});
        }
        if self.asks("timings_per_token") {
            chunk["timings"] = json!({"predicted_n": computed});
        }
        events.send(&chunk.to_string())
    }

    fn usage(&self) -> Value {
        json!({"prompt_tokens": self.prompt, "completion_tokens": self.limit, "total_tokens": self.prompt + self.limit})
    }

    fn end(&self, events: &mut Events) -> Option<()> {
        match self.path.as_str() {
            "/completion" => {
                let last = json!({"content": "", "tokens": [], "stop": true, "stop_type": "limit", "tokens_predicted": self.limit,
                    "tokens_evaluated": self.prompt});
                return events.send(&last.to_string());
            }
            "/v1/completions" => {
                let mut last = self.frame(&json!({"index": 0, "text": "", "finish_reason": "length"}));
                last["usage"] = self.usage();
                events.send(&last.to_string())?;
            }
            _ => {
                let last = self.frame(&json!({"index": 0, "delta": {}, "finish_reason": "length"}));
                events.send(&last.to_string())?;
                if self.like["stream_options"]["include_usage"] == true {
                    let mut usage = self.frame(&Value::Null);
                    usage["choices"] = json!([]);
                    usage["usage"] = self.usage();
                    events.send(&usage.to_string())?;
                }
            }
        }
        events.send("[DONE]")
    }

    fn whole(&self) -> Value {
        let text = model::text(&self.pending);
        let choice = if self.path == "/v1/chat/completions" {
            json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"})
        } else {
            json!({"index": 0, "text": text, "finish_reason": "length"})
        };
        let mut answer = self.frame(&choice);
        answer["usage"] = self.usage();
        answer
    }
}
