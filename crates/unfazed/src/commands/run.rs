//! `unfazed run`: a chat in the terminal, with a server of its own or with one that runs already.

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use unfazed_server::{Control, Event, EventSink, ServeOptions, Served};

use super::serve::api_keys;
use crate::chat::client;
use crate::chat::endpoint::Endpoint;
use crate::chat::session::{AnswerFlags, Session};
use crate::chat::terminal::{self, INTERRUPTED};
use crate::flags::{LogFlags, ModelFlags, SandboxFlags};
use crate::report;
use crate::stderr::Stderr;
use crate::{launch, logging};

const EXAMPLES: &str = "\
Examples:
  unfazed run                                 chat with the built-in demo model
  unfazed run -m model.gguf                   chat with a model of your own
  unfazed run --url http://127.0.0.1:8080     chat with a running server
  unfazed run \"Tell me a story.\" -n 100       one answer, then the end
  echo question | unfazed run                 the answer alone goes to stdout
  unfazed run \"Sum this up:\" < notes.txt      a file behind the prompt

In the chat: /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// A question to answer once; without it, a chat
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,

    /// System prompt: who the model should be
    #[arg(long, value_name = "TEXT", help_heading = "Answers")]
    system: Option<String>,

    #[command(flatten)]
    answers: AnswerFlags,

    #[command(flatten)]
    model: ModelFlags,

    #[command(flatten)]
    sandbox: SandboxFlags,

    #[command(flatten)]
    server: ServerFlags,

    #[command(flatten)]
    log: LogFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Running server")]
struct ServerFlags {
    /// Talk to the server at this address instead of loading a model
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "context", "parallel", "prefill_chunk", "kv_type", "cache_type_k", "cache_type_v", "memory", "expert_cache", "stream_experts", "gpu", "gpu_layers", "cpu_moe", "n_cpu_moe", "split", "gpu_budget_ms", "gpu_host_copy", "expert_policy", "expert_trace", "strict", "isa", "threads", "threads_batch", "cpu_mask", "cpu_range", "pin", "sandbox"])]
    url: Option<String>,

    /// Key for that server [default: UNFAZED_API_KEY]
    #[arg(long, value_name = "KEY", requires = "url", conflicts_with = "api_key_file")]
    api_key: Option<String>,

    /// File with that key
    #[arg(long, value_name = "FILE", requires = "url")]
    api_key_file: Option<PathBuf>,
}

pub(crate) fn run(args: &RunArgs, stderr: &Stderr) -> anyhow::Result<ExitCode> {
    logging::start(&args.log, logging::CHAT, stderr)?;
    let question = question(&args.prompt.join(" "))?;
    let runtime = Runtime::new().context("cannot start the threads of the chat")?;
    let (endpoint, own) = match &args.server.url {
        Some(url) => {
            let mut keys = api_keys(args.server.api_key.as_deref(), args.server.api_key_file.as_deref())?;
            let key = (!keys.is_empty()).then(|| keys.swap_remove(0));
            (Endpoint::parse(url, key)?, None)
        }
        None => match OwnServer::start(&runtime, args, stderr)? {
            Some((endpoint, own)) => (endpoint, Some(own)),
            None => return Ok(ExitCode::from(INTERRUPTED)),
        },
    };
    let model = runtime.block_on(client::first_model(&endpoint))?;
    // The chat writes to the terminal itself, below what stands there.
    stderr.flush();
    let mut session = Session::new(endpoint, model, args.answers.clone(), args.system.clone());
    let result = match question {
        Some(question) => terminal::answer_once(&runtime, &mut session, question),
        None => terminal::chat(&runtime, &mut session),
    };
    if let Some(own) = own {
        own.stop(&runtime);
    }
    result
}

/// The question of the command line with what stands on standard input behind it; `None` asks for a chat.
fn question(prompt: &str) -> anyhow::Result<Option<String>> {
    let mut text = prompt.to_owned();
    if io::stdin().is_terminal() {
        return Ok((!text.trim().is_empty()).then_some(text));
    }
    let mut input = String::new();
    io::stdin().read_to_string(&mut input).context("cannot read the question from standard input")?;
    let input = input.trim_end();
    if !text.is_empty() && !input.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(input);
    if text.trim().is_empty() {
        bail!("there is no question, neither as an argument nor on standard input");
    }
    Ok(Some(text))
}

/// A server in this process, on a port of its own, that only this chat has the key for.
struct OwnServer {
    task: JoinHandle<anyhow::Result<Served>>,
    stop: oneshot::Sender<()>,
}

impl OwnServer {
    /// Loads the model; `None` if Ctrl-C came first.
    fn start(
        runtime: &Runtime,
        args: &RunArgs,
        stderr: &Stderr,
    ) -> anyhow::Result<Option<(Endpoint, OwnServer)>> {
        let key = random_key()?;
        let prepared = launch::prepare(&args.model, &args.sandbox, &args.log, logging::CHAT, None)?;
        let options = ServeOptions {
            port: 0,
            api_keys: vec![key.clone()],
            model_id: prepared.model_name().to_owned(),
            drain: Duration::ZERO,
            isa: args.model.isa()?,
            ..ServeOptions::default()
        };
        let (events, port) = port_when_ready(stderr.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            // An error means that the chat ended without a word; the server ends too.
            let _ = stopped.await;
        };
        runtime.block_on(async {
            let mut task = tokio::spawn(prepared.serve(options, events, Control::end_only(shutdown)));
            tokio::select! {
                result = &mut task => match result {
                    Ok(Err(error)) => Err(error),
                    Ok(Ok(_)) => bail!("the server ended before it was ready"),
                    Err(error) => Err(error).context("the server failed"),
                },
                Ok(port) = port => Ok(Some((Endpoint::local(port, key), OwnServer { task, stop }))),
                Ok(()) = tokio::signal::ctrl_c() => Ok(None),
            }
        })
    }

    /// Ends the server. What does not end in time ends with the process.
    fn stop(self, runtime: &Runtime) {
        const PATIENCE: Duration = Duration::from_secs(2);
        drop(self.stop);
        // The chat has its answers; how the server ended changes nothing for it.
        let _ = runtime.block_on(async { tokio::time::timeout(PATIENCE, self.task).await });
    }
}

/// A sink that draws the loading bar, and the port once the server is ready.
fn port_when_ready(stderr: Stderr) -> (EventSink, oneshot::Receiver<u16>) {
    let (send, receive) = oneshot::channel();
    let send = Mutex::new(Some(send));
    let sink: EventSink = Arc::new(move |event| {
        stderr.follow(&event);
        report::log(&event);
        if let Event::Ready(ready) = &event
            && let Some(send) = send.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            // Nobody waits after Ctrl-C.
            let _ = send.send(ready.port);
        }
    });
    (sink, receive)
}

/// 128 random bits.
fn random_key() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("the system gives no random numbers")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
