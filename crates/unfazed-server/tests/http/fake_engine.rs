//! An engine by script: real messages over a real socket, no model.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use unfazed_server::{Exit, Launch, Process};
use unfazed_wire::link::{self, Sender};
use unfazed_wire::{
    BUILD_ID, Failure, FailureKind, FinishReason, LoadFailure, ReadyInfo, RequestId, Submit, Timings,
    ToEngine, ToFront, TokenEvent, TokenLogprobs,
};

/// How long a test waits for anything. Never reached by one that passes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What the engine does with a request, step by step.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// One token for each byte.
    Text(&'static str),
    /// A token by its id.
    Token(u32),
    /// Waits for `Control::let_go`.
    Hold,
    /// Progress in the prompt.
    Prefill,
    /// A good end.
    Finish(FinishReason),
    /// A failure of this request alone.
    Fail(FailureKind),
    /// The engine's death.
    Die,
}

/// How an engine behaves at its start.
#[derive(Clone, Debug, Default)]
pub(crate) enum Boot {
    #[default]
    Normal,
    /// Says nothing but Hello until `Control::let_load`.
    Held,
    /// Cannot load.
    Refuses(&'static str),
    /// Another build.
    Foreign,
    /// Dies before a word.
    Stillborn,
}

type Script = dyn Fn(&Submit) -> Vec<Step> + Send + Sync;

/// What tests hold of all engines that one server starts.
pub(crate) struct Control {
    script: Box<Script>,
    boot: Boot,
    state: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
struct Seen {
    launches: usize,
    may_load: bool,
    may_go: bool,
    messages: Vec<ToEngine>,
}

impl Control {
    pub(crate) fn new(
        boot: Boot,
        script: impl Fn(&Submit) -> Vec<Step> + Send + Sync + 'static,
    ) -> Arc<Control> {
        Arc::new(Control { script: Box::new(script), boot, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Lets a held engine load.
    pub(crate) fn let_load(&self) {
        self.state.lock().unwrap().may_load = true;
        self.changed.notify_all();
    }

    /// Lets requests that hold go on.
    pub(crate) fn let_go(&self) {
        self.state.lock().unwrap().may_go = true;
        self.changed.notify_all();
    }

    fn hold(&self, may: impl Fn(&Seen) -> bool) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_timeout_while(state, PATIENCE, |state| !may(state)).unwrap());
    }

    /// Waits for a message that the engine got.
    pub(crate) fn wait_for<T>(&self, what: &str, find: impl Fn(&[ToEngine]) -> Option<T>) -> T {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(found) = find(&state.messages) {
                return found;
            }
            let (next, timeout) = self.changed.wait_timeout(state, PATIENCE).unwrap();
            assert!(!timeout.timed_out(), "the engine never got {what}");
            state = next;
        }
    }

    pub(crate) fn submits(&self) -> Vec<Submit> {
        submits(&self.state.lock().unwrap().messages)
    }

    pub(crate) fn launches(&self) -> usize {
        self.state.lock().unwrap().launches
    }

    fn note(&self, message: &ToEngine) {
        self.state.lock().unwrap().messages.push(message.clone());
        self.changed.notify_all();
    }
}

pub(crate) fn submits(messages: &[ToEngine]) -> Vec<Submit> {
    let submit = |message: &ToEngine| match message {
        ToEngine::Submit(submit) => Some((**submit).clone()),
        _ => None,
    };
    messages.iter().filter_map(submit).collect()
}

pub(crate) fn cancelled(messages: &[ToEngine]) -> Vec<RequestId> {
    let cancel = |message: &ToEngine| match message {
        ToEngine::Cancel(request) => Some(*request),
        _ => None,
    };
    messages.iter().filter_map(cancel).collect()
}

/// Starts scripted engines.
pub(crate) struct FakeLaunch(pub(crate) Arc<Control>);

impl Launch for FakeLaunch {
    fn launch(&self) -> io::Result<(UnixStream, Arc<dyn Process>)> {
        let (front, engine) = UnixStream::pair()?;
        self.0.state.lock().unwrap().launches += 1;
        let process = Arc::new(FakeProcess { exit: Mutex::new(None), socket: engine.try_clone()? });
        let (control, ending) = (Arc::clone(&self.0), Arc::clone(&process));
        thread::spawn(move || {
            let code = live(&control, engine);
            *ending.exit.lock().unwrap() = Some(Exit { code: Some(code), signal: None });
            // The process holds the socket as well: its end is the link's end.
            let _ = ending.socket.shutdown(std::net::Shutdown::Both);
        });
        Ok((front, process))
    }
}

struct FakeProcess {
    exit: Mutex<Option<Exit>>,
    socket: UnixStream,
}

impl Process for FakeProcess {
    fn kill(&self) {
        self.exit.lock().unwrap().get_or_insert(Exit { code: None, signal: Some(9) });
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn exit(&self) -> Option<Exit> {
        *self.exit.lock().unwrap()
    }
}

/// A life; the result is the exit code.
fn live(control: &Control, socket: UnixStream) -> i32 {
    let (mut sender, mut receiver) = link::split(socket).unwrap();
    let build_id = match control.boot {
        Boot::Stillborn => return 7,
        Boot::Foreign => "another build".to_owned(),
        _ => BUILD_ID.to_owned(),
    };
    if sender.send(&ToFront::Hello { build_id }).is_err() {
        return 1;
    }
    match receiver.receive_with_descriptors::<ToEngine>() {
        Ok(Some((ToEngine::Start(start), files))) => assert_eq!(start.files.len(), files.len()),
        _ => return 1,
    }
    if let Boot::Refuses(message) = control.boot {
        let _ = sender.send(&ToFront::LoadFailed(LoadFailure { message: message.to_owned() }));
        return 1;
    }
    if matches!(control.boot, Boot::Held) {
        control.hold(|seen| seen.may_load);
    }
    let ready = ReadyInfo {
        isa: "fake".into(),
        threads: 1,
        weight_bytes: 2_000,
        kv_bytes: 1_000,
        load_ms: 1.5,
        read_bytes: 2_000,
        kept_bytes: 0,
    };
    for message in [
        ToFront::Loading { done: 0, total: 10 },
        ToFront::Loading { done: 10, total: 10 },
        ToFront::Ready(ready),
    ] {
        if sender.send(&message).is_err() {
            return 1;
        }
    }
    while let Ok(Some(message)) = receiver.receive::<ToEngine>() {
        control.note(&message);
        match message {
            ToEngine::Submit(submit) => {
                for step in (control.script)(&submit) {
                    if !perform(control, &mut sender, &submit, &step) {
                        return 3;
                    }
                }
            }
            ToEngine::Shutdown => return 0,
            ToEngine::Start(_) | ToEngine::Cancel(_) => {}
        }
    }
    0
}

/// False once the engine is to die, or nobody listens.
fn perform(control: &Control, sender: &mut Sender, submit: &Submit, step: &Step) -> bool {
    let request = submit.request;
    let message = match step {
        Step::Text(text) => {
            let mut tokens = text.bytes().map(|byte| token(submit, u32::from(byte)));
            return tokens.all(|token| sender.send(&ToFront::Tokens(vec![token])).is_ok());
        }
        Step::Hold => {
            control.hold(|seen| seen.may_go);
            return true;
        }
        Step::Token(id) => ToFront::Tokens(vec![token(submit, *id)]),
        Step::Prefill => {
            let prefill = ToFront::Prefill { request, done: 1, total: submit.prompt.len() };
            if let Some(top) = submit.prompt_logprobs {
                let scores = submit.prompt.iter().skip(1).map(|token| scores(*token, top)).collect();
                if sender.send(&ToFront::PromptLogprobs { request, tokens: scores }).is_err() {
                    return false;
                }
            }
            prefill
        }
        Step::Finish(reason) => {
            let timings = Timings {
                queue_ms: 1.0,
                cached_tokens: 1,
                prompt_tokens: submit.prompt.len() - 1,
                prompt_ms: 10.0,
                predicted_tokens: 3,
                predicted_ms: 30.0,
            };
            ToFront::Finished { request, reason: *reason, timings }
        }
        Step::Fail(kind) => ToFront::Failed {
            request,
            failure: Failure { kind: *kind, message: "layer 3 says NaN".to_owned() },
        },
        Step::Die => return false,
    };
    sender.send(&message).is_ok()
}

fn token(submit: &Submit, token: u32) -> TokenEvent {
    TokenEvent { request: submit.request, token, logprobs: submit.logprobs.map(|top| scores(token, top)) }
}

/// The token itself is the likeliest; the next ids follow.
fn scores(token: u32, top: u32) -> TokenLogprobs {
    let top = (0..top).map(|rank| ((token + rank) % 256, -0.5 - rank as f32)).collect();
    TokenLogprobs { token, logprob: -0.5, top }
}
