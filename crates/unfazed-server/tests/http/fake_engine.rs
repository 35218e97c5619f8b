//! An engine by script: real messages over a real socket, no model.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use unfazed_formats::Headers;
use unfazed_server::{Exit, Launch, Process};
use unfazed_wire::link::{self, Receiver, Sender};
use unfazed_wire::memory::Segment;
use unfazed_wire::{
    BUILD_ID, Failure, FailureKind, FinishReason, LoadFailure, LoadFault, ReadyInfo, RequestId, SandboxInfo,
    Start, Submit, Timings, ToEngine, ToFront, TokenEvent, TokenLogprobs,
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
    /// A place, with so many positions kept.
    Admit(usize),
    /// Declares a wait again and again until `Control::let_go`.
    Wait,
    /// Says nothing more, but listens.
    Hang,
    /// The same, and cannot be ended before `Control::let_end`.
    Stick,
    /// Closes the link and lives on.
    HangUp,
    /// Tries to shorten the memory that it was given.
    Shrink,
    /// The engine's death, with exit code 3.
    Die,
    /// Its death by a signal.
    Signal(i32),
}

/// How an engine behaves at its start.
#[derive(Clone, Debug, Default)]
pub(crate) enum Boot {
    #[default]
    Normal,
    /// Says nothing but Hello until `Control::let_load`.
    Held,
    /// The second engine cannot load, by the machine's fault.
    TroubledSecond,
    /// Cannot load.
    Refuses(&'static str),
    /// Another build.
    Foreign,
    /// Dies before a word.
    Stillborn,
    /// The first so many die before a word, after `Control::let_load`.
    StillbornFirst(usize),
    /// Dies of what it finds in memory, after `Control::let_load`: each one that is given the first one's.
    DiesOfMemory,
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
    /// A declared wait may end, and requests that hold go on.
    may_go: bool,
    /// Declared waits sent.
    waits: usize,
    messages: Vec<ToEngine>,
    given: Vec<Given>,
    processes: Vec<Arc<FakeProcess>>,
}

/// What an engine was given. Kept open, so that no other memory gets the same numbers.
pub(crate) struct Given {
    pub(crate) start: Start,
    weights: File,
    kv: File,
}

impl Given {
    /// Which memory it is: weights, KV pages.
    pub(crate) fn inodes(&self) -> (u64, u64) {
        (self.weights.metadata().unwrap().ino(), self.kv.metadata().unwrap().ino())
    }
}

impl Control {
    pub(crate) fn new(
        boot: Boot,
        script: impl Fn(&Submit) -> Vec<Step> + Send + Sync + 'static,
    ) -> Arc<Control> {
        Arc::new(Control { script: Box::new(script), boot, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Lets held engines load.
    pub(crate) fn let_load(&self) {
        self.change(|state| state.may_load = true);
    }

    /// Holds the next engine again.
    pub(crate) fn hold(&self) {
        self.change(|state| state.may_load = false);
    }

    /// Lets a declared wait end, and requests that hold go on.
    pub(crate) fn let_go(&self) {
        self.change(|state| state.may_go = true);
    }

    /// Lets processes end that could not be ended.
    pub(crate) fn let_end(&self) {
        self.change(|state| {
            state.processes.iter().for_each(|process| process.fate.lock().unwrap().stuck = false)
        });
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Waits for a message that the engine got.
    pub(crate) fn wait_for<T>(&self, what: &str, find: impl Fn(&[ToEngine]) -> Option<T>) -> T {
        self.wait_until(what, |state| find(&state.messages))
    }

    /// Waits until the engine has declared its wait so often.
    pub(crate) fn wait_for_waits(&self, count: usize) {
        self.wait_until("so far", |state| (state.waits >= count).then_some(()));
    }

    fn wait_until<T>(&self, what: &str, find: impl Fn(&Seen) -> Option<T>) -> T {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(found) = find(&state) {
                return found;
            }
            let (next, timeout) = self.changed.wait_timeout(state, PATIENCE).unwrap();
            assert!(!timeout.timed_out(), "the engine never got {what}");
            state = next;
        }
    }

    /// Looks at what each engine was given, in order.
    pub(crate) fn given<T>(&self, look: impl FnMut(&Given) -> T) -> Vec<T> {
        self.state.lock().unwrap().given.iter().map(look).collect()
    }

    pub(crate) fn submits(&self) -> Vec<Submit> {
        submits(&self.state.lock().unwrap().messages)
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
        let process = Arc::new(FakeProcess { fate: Mutex::default(), socket: engine.try_clone()? });
        let number = {
            let mut state = self.0.state.lock().unwrap();
            state.processes.push(Arc::clone(&process));
            state.launches += 1;
            state.launches
        };
        let (control, ending) = (Arc::clone(&self.0), Arc::clone(&process));
        thread::spawn(move || {
            let end = Life { control: &control, process: &ending, number }.live(engine);
            if let Some(exit) = end {
                ending.fate.lock().unwrap().exit.get_or_insert(exit);
            }
            // The process holds the socket as well: its end is the link's end.
            let _ = ending.socket.shutdown(std::net::Shutdown::Both);
        });
        Ok((front, process))
    }
}

struct FakeProcess {
    fate: Mutex<Fate>,
    socket: UnixStream,
}

#[derive(Default)]
struct Fate {
    exit: Option<Exit>,
    /// It cannot be ended, nor reaped.
    stuck: bool,
}

impl Process for FakeProcess {
    fn kill(&self) {
        let mut fate = self.fate.lock().unwrap();
        fate.exit.get_or_insert(Exit { code: None, signal: Some(9) });
        if !fate.stuck {
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
        }
    }

    fn exit(&self) -> Option<Exit> {
        let fate = self.fate.lock().unwrap();
        fate.exit.filter(|_| !fate.stuck)
    }
}

/// One engine.
struct Life<'a> {
    control: &'a Control,
    process: &'a FakeProcess,
    number: usize,
}

/// How an engine goes on after a step.
enum Next {
    On,
    End(Exit),
    /// It closes its link and does not end.
    Linger,
}

impl Life<'_> {
    /// Returns how it ends, if by itself.
    fn live(&self, socket: UnixStream) -> Option<Exit> {
        let (mut sender, mut receiver) = link::split(socket).unwrap();
        if let Err(code) = self.boot(&mut sender, &mut receiver) {
            return Some(exit_code(code));
        }
        while let Ok(Some(message)) = receiver.receive::<ToEngine>() {
            self.control.change(|state| state.messages.push(message.clone()));
            match message {
                ToEngine::Submit(submit) => {
                    for step in (self.control.script)(&submit) {
                        match self.perform(&mut sender, &mut receiver, &submit, &step) {
                            Next::On => {}
                            Next::End(exit) => return Some(exit),
                            Next::Linger => return None,
                        }
                    }
                }
                ToEngine::Shutdown => break,
                ToEngine::Start(_)
                | ToEngine::Cancel(_)
                | ToEngine::GiveUp { .. }
                | ToEngine::OpenUp { .. } => {}
            }
        }
        Some(exit_code(0))
    }

    /// Loads. An error is an exit code.
    fn boot(&self, sender: &mut Sender, receiver: &mut Receiver) -> Result<(), i32> {
        let stillborn = match self.control.boot {
            Boot::Stillborn => true,
            Boot::StillbornFirst(count) => {
                self.wait_to_load();
                self.number <= count
            }
            _ => false,
        };
        if stillborn {
            return Err(7);
        }
        let foreign = matches!(self.control.boot, Boot::Foreign);
        let build_id = if foreign { "another build" } else { BUILD_ID }.to_owned();
        sender.send(&ToFront::Hello { build_id }).map_err(|_| 1)?;
        let Ok(Some((ToEngine::Start(start), descriptors))) = receiver.receive_with_descriptors() else {
            return Err(1);
        };
        if let Boot::Refuses(message) = self.control.boot {
            let _ = sender.send(&ToFront::LoadFailed(LoadFailure {
                fault: LoadFault::Model,
                message: message.to_owned(),
            }));
            return Err(1);
        }
        let placement = start.placement.clone();
        self.take(*start, descriptors);
        if matches!(self.control.boot, Boot::TroubledSecond) && self.number == 2 {
            let (fault, message) = (LoadFault::Machine, "the disk is on fire".to_owned());
            let _ = sender.send(&ToFront::LoadFailed(LoadFailure { fault, message }));
            return Err(1);
        }
        if matches!(self.control.boot, Boot::DiesOfMemory) {
            self.wait_to_load();
            let inodes = self.control.given(Given::inodes);
            if inodes.first() == inodes.last() {
                return Err(8);
            }
        }
        if matches!(self.control.boot, Boot::Held) {
            self.wait_to_load();
        }
        let ready = ReadyInfo {
            isa: "fake".into(),
            threads: 1,
            weight_bytes: 2_000,
            kv_bytes: 1_000,
            load_ms: 1.5,
            read_bytes: if self.number == 1 { 2_000 } else { 0 },
            kept_bytes: if self.number == 1 { 0 } else { 2_000 },
            sandbox: SandboxInfo::default(),
            placement,
            gpus: Vec::new(),
        };
        let loading = [0, 10].map(|done| ToFront::Loading { done, total: 10 });
        loading
            .into_iter()
            .chain([ToFront::Ready(ready)])
            .try_for_each(|message| sender.send(&message))
            .map_err(|_| 1)
    }

    fn wait_to_load(&self) {
        self.wait_until_seen(|state| state.may_load);
    }

    fn wait_until_seen(&self, may: impl Fn(&Seen) -> bool) {
        let state = self.control.state.lock().unwrap();
        drop(self.control.changed.wait_timeout_while(state, PATIENCE, |state| !may(state)).unwrap());
    }

    /// Takes files and memory as the real engine does, and seals the weights.
    fn take(&self, start: Start, mut descriptors: Vec<OwnedFd>) {
        let files = Headers::decode(&start.headers).unwrap().files.len();
        assert_eq!(descriptors.len(), files + 2, "files, weights, KV pages");
        let mut next = |what, bytes| {
            let descriptor = descriptors.remove(files);
            let file = File::from(descriptor.try_clone().unwrap());
            (Segment::received(what, descriptor, bytes).unwrap(), file)
        };
        let (segment, weights) = next("weights", start.weight_memory);
        let (_, kv) = next("KV pages", start.kv_memory);
        segment.seal_contents().unwrap();
        self.control.change(|state| state.given.push(Given { start, weights, kv }));
    }

    fn perform(&self, sender: &mut Sender, receiver: &mut Receiver, submit: &Submit, step: &Step) -> Next {
        match step {
            Step::Die => return Next::End(exit_code(3)),
            Step::Signal(signal) => return Next::End(Exit { code: None, signal: Some(*signal) }),
            Step::HangUp => return Next::Linger,
            Step::Shrink => {
                self.control.given(|given| {
                    assert!(given.kv.set_len(0).is_err() && given.weights.set_len(0).is_err());
                });
                return Next::On;
            }
            Step::Hang | Step::Stick => {
                self.process.fate.lock().unwrap().stuck = matches!(step, Step::Stick);
                while let Ok(Some(_)) = receiver.receive::<ToEngine>() {}
                return Next::Linger;
            }
            Step::Wait => return self.wait(sender),
            Step::Hold => {
                self.wait_until_seen(|state| state.may_go);
                return Next::On;
            }
            _ => {}
        }
        match messages(submit, step).iter().try_for_each(|message| sender.send(message)) {
            Ok(()) => Next::On,
            Err(_) => Next::End(exit_code(1)),
        }
    }

    fn wait(&self, sender: &mut Sender) -> Next {
        for turn in 0..1500 {
            if self.control.state.lock().unwrap().may_go {
                return Next::On;
            }
            if sender.send(&ToFront::Waiting { what: "a disk".to_owned(), ms: turn * 100 }).is_err() {
                return Next::End(exit_code(1));
            }
            self.control.change(|state| state.waits += 1);
            thread::sleep(Duration::from_millis(20));
        }
        panic!("nobody let the wait end");
    }
}

fn exit_code(code: i32) -> Exit {
    Exit { code: Some(code), signal: None }
}

/// What the engine says in a step.
fn messages(submit: &Submit, step: &Step) -> Vec<ToFront> {
    let request = submit.request;
    let tokens = |tokens: TokenEvent| ToFront::Tokens(vec![tokens]);
    match step {
        Step::Text(text) => text.bytes().map(|byte| tokens(token(submit, u32::from(byte)))).collect(),
        Step::Token(id) => vec![tokens(token(submit, *id))],
        Step::Admit(kept) => vec![ToFront::Admitted { request, kept: *kept, missing: 2 }],
        Step::Prefill => {
            let prefill = ToFront::Prefill { request, done: 1, total: submit.prompt.len() };
            let scores = submit.prompt_logprobs.map(|top| {
                let tokens = submit.prompt.iter().skip(1).map(|token| scores(*token, top)).collect();
                ToFront::PromptLogprobs { request, tokens }
            });
            scores.into_iter().chain([prefill]).collect()
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
            vec![ToFront::Finished { request, reason: *reason, timings }]
        }
        Step::Fail(kind) => {
            let failure = Failure { kind: *kind, message: "layer 3 says NaN".to_owned() };
            vec![ToFront::Failed { request, failure }]
        }
        Step::Wait
        | Step::Hold
        | Step::Hang
        | Step::Stick
        | Step::HangUp
        | Step::Shrink
        | Step::Die
        | Step::Signal(_) => Vec::new(),
    }
}

fn token(submit: &Submit, token: u32) -> TokenEvent {
    TokenEvent { request: submit.request, token, logprobs: submit.logprobs.map(|top| scores(token, top)) }
}

/// The token itself is the likeliest; the next ids follow.
fn scores(token: u32, top: u32) -> TokenLogprobs {
    let top = (0..top).map(|rank| ((token + rank) % 256, -0.5 - rank as f32)).collect();
    TokenLogprobs { token, logprob: -0.5, top }
}
