//! The engine process as its front sees it, with the demo model and a real socket; the process is a thread here.

#![allow(clippy::unwrap_used, clippy::panic)] // A test may.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, SystemTime};

use unfazed_engine::{EngineError, run};
use unfazed_formats::source::FileSource;
use unfazed_formats::{Checkpoint, Headers};
use unfazed_wire::link::{self, Receiver, Sender};
use unfazed_wire::memory::{KvSegment, Segment, WEIGHTS_OFFSET};
use unfazed_wire::{
    BUILD_ID, FinishReason, Gpus, Placement, Progress, ReadyInfo, RequestId, Sampling, Start, Submit,
    ToEngine, ToFront,
};

/// Two of f16 for each of 8 layers, 2 heads, 64 dimensions and 32 positions.
const PAGE_BYTES: usize = 4 * 8 * 2 * 64 * 32;

/// What outlives engines.
struct Memory {
    weights: Segment,
    kv: Segment,
}

impl Memory {
    fn new(start: &Start) -> Memory {
        let create = |what, bytes| Segment::create(what, bytes).unwrap();
        Memory { weights: create("weights", start.weight_memory), kv: create("KV pages", start.kv_memory) }
    }
}

struct Front {
    sender: Sender,
    receiver: Receiver,
    engine: JoinHandle<Result<(), EngineError>>,
}

/// Starts an engine and hears its hello.
fn front() -> Front {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let engine = spawn(|| run(theirs, false));
    let (sender, mut receiver) = link::split(ours).unwrap();
    let hello = receiver.receive().unwrap();
    assert_eq!(hello, Some(ToFront::Hello { build_id: BUILD_ID.to_owned() }));
    Front { sender, receiver, engine }
}

fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-moe-29m-Q4_0.gguf")
}

fn demo() -> Checkpoint {
    Checkpoint::open(&demo_path()).unwrap()
}

fn start(model: &Checkpoint) -> Start {
    Start {
        headers: Headers::from(model).encode().unwrap(),
        context: 256,
        parallel: 2,
        pages: 16,
        page_tokens: 32,
        cache_type_k: "f16".to_owned(),
        cache_type_v: "f16".to_owned(),
        chunk: 32,
        threads: 2.into(),
        isa: None,
        weight_memory: WEIGHTS_OFFSET as u64 + (24 << 20),
        kv_memory: KvSegment { pages: 16, page_bytes: PAGE_BYTES }.bytes().unwrap() as u64,
        experts: None,
        expert_trace: false,
        engine: 1,
        troubles: Vec::new(),
        cpu_alone: false,
        placement: Placement::cpu(model.config.layers),
        gpus: Gpus::default(),
        fault_plan: None,
    }
}

fn submit(id: u64, max_tokens: usize) -> ToEngine {
    ToEngine::Submit(Box::new(Submit {
        request: RequestId(id),
        prompt: vec![1, 4093, 198, 6403, 1980, 253],
        max_tokens,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stop_tokens: Vec::new(),
        repeat_stop_tokens: 0,
        logprobs: Some(1),
        prompt_logprobs: None,
        resumed: None,
    }))
}

impl Front {
    fn start(&mut self, start: &Start, files: &[FileSource]) {
        self.start_on(start, files, &Memory::new(start));
    }

    fn start_on(&mut self, start: &Start, files: &[FileSource], memory: &Memory) {
        let files = files.iter().map(|file| file.file().as_fd());
        let descriptors: Vec<BorrowedFd<'_>> =
            files.chain([memory.weights.as_fd(), memory.kv.as_fd()]).collect();
        self.sender.send_with_descriptors(&ToEngine::Start(Box::new(start.clone())), &descriptors).unwrap();
    }

    fn next(&mut self) -> ToFront {
        self.next_or_end().unwrap()
    }

    /// The next message, signs of life left out.
    fn next_or_end(&mut self) -> Option<ToFront> {
        loop {
            match self.receiver.receive().unwrap() {
                Some(ToFront::Working) => {}
                message => return message,
            }
        }
    }

    /// Waits for Ready; checks the progress before it.
    fn ready(&mut self) -> ReadyInfo {
        let mut last = (0, 1);
        loop {
            match self.next() {
                ToFront::Loading { done, total } => {
                    assert!(done >= last.0 && done <= total);
                    last = (done, total);
                }
                ToFront::Ready(ready) => {
                    assert_eq!(last.0, last.1, "loading did not end at its total");
                    return ready;
                }
                other => panic!("{other:?} while loading"),
            }
        }
    }

    /// The tokens of a request until its end.
    fn answer(&mut self, id: u64) -> (Vec<u32>, FinishReason) {
        let mut tokens = Vec::new();
        loop {
            match self.next() {
                ToFront::Tokens(events) => {
                    tokens
                        .extend(events.iter().filter(|event| event.request.0 == id).map(|event| event.token));
                }
                ToFront::Finished { request, reason, .. } if request.0 == id => return (tokens, reason),
                ToFront::Finished { .. } | ToFront::Prefill { .. } => {}
                ToFront::Admitted { .. } => {}
                other => panic!("{other:?} instead of an answer"),
            }
        }
    }

    /// What the engine says when it cannot load, and how it ends.
    fn load_failure(mut self) -> String {
        let message = match self.next() {
            ToFront::LoadFailed(failure) => failure.message,
            other => panic!("{other:?} instead of a failure"),
        };
        assert!(!message.contains('\n'));
        assert_eq!(self.receiver.receive::<ToFront>().unwrap(), None);
        match self.engine.join().unwrap() {
            Err(EngineError::Load { message: same, .. }) => assert_eq!(same, message),
            other => panic!("{other:?}"),
        }
        message
    }
}

#[test]
fn an_engine_loads_computes_and_ends_after_a_shutdown() {
    let model = demo();
    let mut front = front();
    front.start(&start(&model), &model.files);
    let ready = front.ready();
    assert_eq!(ready.threads, 2);
    assert!(ready.weight_bytes > 10_000_000 && ready.kv_bytes == 4 * 8 * 2 * 64 * 32 * 16);
    front.sender.send(&submit(1, 8)).unwrap();
    let (tokens, reason) = front.answer(1);
    assert_eq!((tokens.len(), reason), (8, FinishReason::Length));
    // Idle in between, then two at once, with the same answers.
    front.sender.send(&submit(2, 4)).unwrap();
    front.sender.send(&submit(3, 8)).unwrap();
    front.sender.send(&ToEngine::Shutdown).unwrap();
    assert_eq!(front.answer(3).0, tokens);
    assert_eq!(front.next_or_end(), None);
    assert!(front.engine.join().unwrap().is_ok());
}

#[test]
fn the_next_engine_finds_weights_and_pages_where_the_last_one_left_them() {
    let model = demo();
    let start = start(&model);
    let memory = Memory::new(&start);
    let submit = |max_tokens, resumed| match submit(1, max_tokens) {
        ToEngine::Submit(submit) => ToEngine::Submit(Box::new(Submit { resumed, ..*submit })),
        other => other,
    };
    let run = |message: ToEngine| {
        let mut front = front();
        front.start_on(&start, &model.files, &memory);
        let ready = front.ready();
        front.sender.send(&message).unwrap();
        let mut kept = 0;
        let mut tokens = Vec::new();
        loop {
            match front.next() {
                ToFront::Admitted { kept: positions, .. } => kept = positions,
                ToFront::Tokens(events) => tokens.extend(events.iter().map(|event| event.token)),
                ToFront::Finished { .. } => break,
                _ => {}
            }
        }
        front.sender.send(&ToEngine::Shutdown).unwrap();
        front.engine.join().unwrap().unwrap();
        (ready, kept, tokens)
    };
    let (first, kept, all) = run(submit(60, None));
    assert_eq!((first.kept_bytes, kept, all.len()), (0, 0, 60));
    assert_eq!(first.read_bytes, first.weight_bytes);
    assert_eq!(memory.weights.contents_are_sealed().unwrap(), cfg!(target_os = "linux"));
    let progress = Progress { tokens: all[..59].to_vec(), prompt_logprobs: 0 };
    let (second, kept, rest) = run(submit(60, Some(progress)));
    // The position of the last token is there too, and is computed again for its logits.
    assert_eq!((second.read_bytes, kept), (0, 6 + 59 - 1));
    assert!(second.kept_bytes >= first.weight_bytes);
    assert_eq!(rest, all[59..]);
}

#[test]
fn memory_that_is_not_what_the_front_says_is_refused_by_name() {
    let model = demo();
    let failure = |change: fn(&mut Memory)| {
        let start = start(&model);
        let mut memory = Memory::new(&start);
        change(&mut memory);
        let mut front = front();
        front.start_on(&start, &model.files, &memory);
        front.load_failure()
    };
    let short = failure(|memory| memory.kv = Segment::create("KV pages", 4096).unwrap());
    assert!(short.contains("KV pages has 4096 bytes"), "{short}");
    let short = failure(|memory| memory.weights = Segment::create("weights", 10 << 20).unwrap());
    assert!(short.contains("weights has 10485760 bytes"), "{short}");
}

#[test]
fn an_engine_ends_with_its_socket_even_while_it_computes() {
    let model = demo();
    let mut front = front();
    front.start(&start(&model), &model.files);
    front.ready();
    front.sender.send(&submit(1, 200)).unwrap();
    while !matches!(front.next(), ToFront::Tokens(_)) {}
    drop((front.sender, front.receiver));
    assert!(front.engine.join().unwrap().is_ok());
}

#[test]
fn an_engine_ends_with_its_socket_before_it_has_started() {
    let front = front();
    drop((front.sender, front.receiver));
    assert!(front.engine.join().unwrap().is_ok());
}

#[test]
fn a_first_message_other_than_start_is_refused() {
    let mut front = front();
    front.sender.send(&ToEngine::Shutdown).unwrap();
    assert!(matches!(front.engine.join().unwrap(), Err(EngineError::NotStarted)));
}

#[test]
fn a_model_that_cannot_be_loaded_is_refused_in_one_line_by_name() {
    let model = demo();
    let failure = |change: fn(&mut Start)| {
        let mut front = front();
        let mut start = start(&model);
        change(&mut start);
        front.start(&start, &model.files);
        front.load_failure()
    };
    assert!(failure(|start| start.isa = Some("sse9".into())).contains("\"sse9\" is no instruction set"));
    assert!(failure(|start| start.headers.truncate(100)).contains("headers do not decode"));
    assert!(failure(|start| start.chunk = 0).contains("chunk is 0"));
    assert!(failure(|start| start.page_tokens = 7).contains("page_tokens: 7"));
    assert!(failure(|start| start.cache_type_v = "q9".to_owned()).starts_with("q9: not a type"));

    let mut nothing = front();
    nothing.start(&start(&model), &[]);
    assert!(nothing.load_failure().contains("1 files were named and 0 handed over"));
}

#[test]
fn a_file_that_is_not_what_it_was_when_its_headers_were_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes = std::fs::read(demo_path()).unwrap();
    let changes: [fn(&Path, &[u8]); 3] = [
        |path, bytes| std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
        |path, bytes| std::fs::write(path, [bytes, b"more"].concat()).unwrap(),
        |path, bytes| {
            // As long as before, and written a moment later.
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.write_at(&bytes[..100], 0).unwrap();
            file.set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
        },
    ];
    for change in changes {
        std::fs::write(&path, &bytes).unwrap();
        let model = Checkpoint::open(&path).unwrap();
        change(&path, &bytes);
        let mut front = front();
        front.start(&start(&model), &model.files);
        let failure = front.load_failure();
        let says = failure.starts_with("model.gguf: the file changed after it was opened");
        assert!(says && failure.contains("start again"), "{failure}");
    }
}
