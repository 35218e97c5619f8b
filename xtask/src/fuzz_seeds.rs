//! `cargo xtask fuzz-seeds`

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};
use unfazed_formats::BlockFormat;
use unfazed_formats::config::Family;
use unfazed_testkit::TinyModel;
use unfazed_testkit::damage::{Damage, Damager};
use unfazed_wire::{
    BUILD_ID, Failure, FailureKind, FinishReason, GpuInUse, Gpus, LoadFailure, LoadFault, Place, Placement,
    Progress, ReadyInfo, RequestId, Sampling, SandboxInfo, Start, StreamedExperts, Submit, Timings, ToEngine,
    ToFront, TokenEvent, TokenLogprobs, frame,
};

/// Write the first inputs of the fuzz targets: small sound files, damaged copies of them, frames and requests.
///
/// A fuzzer that starts from nothing would first have to find out what a GGUF file is.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the corpora; each target gets one of its name
    #[arg(value_name = "FOLDER", default_value = "fuzz/corpus")]
    folder: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    models(&arguments.folder)?;
    frames(&arguments.folder)?;
    requests(&corpus(&arguments.folder, "request")?)?;
    faults(&corpus(&arguments.folder, "fault_text")?)?;
    journals(&corpus(&arguments.folder, "journal")?)?;
    reports(&corpus(&arguments.folder, "crash_report")?)?;
    println!("{}", arguments.folder.display());
    Ok(())
}

/// Segments of a journal: a stream that goes on, one that is forgotten. The target gives them checksums.
fn journals(folder: &Path) -> anyhow::Result<()> {
    let mut segment = vec![0; 36];
    let records: [(u8, u8, u32, &[u8]); 5] =
        [(1, 1, 0, b"prompt"), (2, 1, 0, b"one"), (1, 2, 0, b"other"), (2, 1, 1, b"two"), (3, 2, 0, b"")];
    for (kind, stream, ordinal, bytes) in records {
        segment.extend([0xf5, b'J', 0x9d, 0xc1]);
        segment.extend((45 + bytes.len() as u32).to_le_bytes());
        segment.extend([0; 8]);
        segment.push(kind);
        segment.extend(1_u64.to_le_bytes());
        segment.extend([stream; 16]);
        segment.extend(ordinal.to_le_bytes());
        segment.extend([0; 16]);
        segment.extend(bytes);
    }
    put(&folder.join("raw"), &[&[0], segment.as_slice()].concat())?;
    put(&folder.join("sealed"), &[&[1], segment.as_slice()].concat())?;
    put(&folder.join("twice"), &[&[3], segment.as_slice(), &segment].concat())
}

/// Model files of each family.
fn models(folder: &Path) -> anyhow::Result<()> {
    let gguf = corpus(folder, "gguf_header")?;
    let safetensors = corpus(folder, "safetensors_header")?;
    for family in [Family::Llama, Family::Qwen3, Family::Qwen3Moe] {
        let model = small(family);
        let good = model.gguf()?;
        put(&gguf.join(format!("{family:?}")), &good)?;
        let damager = Damager::new(&good, 1)?;
        for damage in Damage::ALL {
            put(&gguf.join(format!("{family:?}-{}", damage.name())), &damager.apply(damage))?;
        }
        let directory = folder.join(format!("{family:?}"));
        std::fs::create_dir_all(&directory)?;
        model.write_huggingface(&directory, BlockFormat::BF16, 1)?;
        let shard = directory.join("model.safetensors");
        std::fs::rename(&shard, safetensors.join(format!("{family:?}"))).context("model.safetensors")?;
        std::fs::remove_dir_all(&directory)?;
    }
    Ok(())
}

/// A frame of each message, and what each process says in all.
fn frames(folder: &Path) -> anyhow::Result<()> {
    let folder = corpus(folder, "wire_frames")?;
    write_frames(&folder, "front", &from_front())?;
    write_frames(&folder, "engine", &from_engine())
}

fn write_frames<T: Serialize>(folder: &Path, sender: &str, messages: &[T]) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let mut bytes = Vec::new();
        frame::encode(message, &mut bytes)?;
        put(&folder.join(format!("{sender}-{at}")), &bytes)?;
        all.extend(bytes);
    }
    put(&folder.join(sender), &all)
}

fn from_front() -> Vec<ToEngine> {
    let start = Start {
        headers: vec![1, 2, 3],
        context: 2048,
        parallel: 4,
        pages: 300,
        page_tokens: 32,
        cache_type_k: "q8_0".to_owned(),
        cache_type_v: "f16".to_owned(),
        chunk: 256,
        threads: 2.into(),
        isa: Some("avx2".to_owned()),
        weight_memory: 4 << 30,
        kv_memory: 1 << 20,
        experts: Some(StreamedExperts {
            slots: 100,
            open: 6144,
            least: 384,
            slot_bytes: 8192,
            ring: 8,
            policy: "s3-fifo".to_owned(),
            memory: 819_200,
        }),
        expert_trace: true,
        engine: 1,
        troubles: Vec::new(),
        cpu_alone: false,
        placement: Placement::cpu(2),
        gpus: Gpus::default(),
        fault_plan: None,
    };
    let submit = Submit {
        request: RequestId(300),
        prompt: vec![1, 200, 70_000],
        max_tokens: 20,
        sampling: Sampling { logit_bias: vec![(7, -100.0)], ..Sampling::default() },
        stop_tokens: vec![2],
        logprobs: Some(5),
        prompt_logprobs: Some(0),
        repeat_stop_tokens: 0,
        resumed: Some(Progress { tokens: vec![9, 10], prompt_logprobs: 2 }),
    };
    vec![
        ToEngine::Start(Box::new(start)),
        ToEngine::Submit(Box::new(submit)),
        ToEngine::Cancel(RequestId(u64::MAX)),
        ToEngine::Shutdown,
    ]
}

fn from_engine() -> Vec<ToFront> {
    let request = RequestId(300);
    let scored = TokenLogprobs { token: 9, logprob: -0.5, top: vec![(9, -0.5), (70_000, -1.5)] };
    let ready = ReadyInfo {
        isa: "avx2".to_owned(),
        threads: 2,
        weight_bytes: 4 << 30,
        kv_bytes: 1 << 20,
        load_ms: 12.5,
        read_bytes: 0,
        kept_bytes: 4 << 30,
        sandbox: SandboxInfo { seccomp: true, landlock: Some(6), ring: true, missing: Vec::new() },
        placement: Placement { output: Place::Gpu(0), ..Placement::cpu(2) },
        gpus: vec![GpuInUse { name: "A GPU".to_owned(), driver: "its 1.0".to_owned(), software: false }],
    };
    vec![
        ToFront::Hello { build_id: BUILD_ID.to_owned() },
        ToFront::Loading { done: 1 << 20, total: 4 << 30 },
        ToFront::Working,
        ToFront::Waiting { what: "model.gguf".to_owned(), ms: 1500 },
        ToFront::Ready(ready),
        ToFront::LoadFailed(LoadFailure {
            fault: LoadFault::Machine,
            message: "model.gguf: a field is missing".to_owned(),
        }),
        ToFront::Admitted { request, kept: 32, missing: 7 },
        ToFront::Prefill { request, done: 32, total: 39 },
        ToFront::PromptLogprobs { request, tokens: vec![scored.clone(), scored.clone()] },
        ToFront::Tokens(vec![
            TokenEvent { request, token: 9, logprobs: Some(scored) },
            TokenEvent { request: RequestId(1), token: 10, logprobs: None },
        ]),
        ToFront::Finished { request, reason: FinishReason::Stop, timings: Timings::default() },
        ToFront::Failed {
            request,
            failure: Failure { kind: FailureKind::Engine, message: "it failed".to_owned() },
        },
    ]
}

/// Bodies with every field that an endpoint knows, and some that are refused.
fn requests(folder: &Path) -> anyhow::Result<()> {
    let settings = json!({
        "model": "any", "stream": true, "stream_options": {"include_usage": true}, "n": 2, "stop": ["a", "b"],
        "seed": -7, "max_tokens": -1, "max_completion_tokens": 9, "temperature": 0.5, "top_p": 0.5, "top_k": 5,
        "min_p": 0.1, "repetition_penalty": 1.5, "repeat_penalty": 1.5, "presence_penalty": 1,
        "frequency_penalty": -1, "logit_bias": {"3": -100}, "ignore_eos": true, "response_format": {"type": "text"},
        "unknown": [[[{"a": null}]]],
    });
    let with = |more: Value| {
        let mut body = settings.clone();
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        body
    };
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let messages = json!([
        {"role": "developer", "content": "<|im_start|>"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "\u{e9}"}]},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "1"},
    ]);
    let chat = json!({
        "messages": messages, "logprobs": true, "top_logprobs": 2, "tools": [{"type": "function"}],
        "tool_choice": "auto", "chat_template_kwargs": {"a": [1]}, "enable_thinking": false,
        "add_generation_prompt": true,
    });
    put(&folder.join("chat"), with(chat).to_string().as_bytes())?;
    for (name, prompt) in [
        ("text", json!("a")),
        ("texts", json!(["a", "b"])),
        ("tokens", json!([1, 2])),
        ("several", json!([[1, 2], [3]])),
    ] {
        let more = json!({"prompt": prompt, "echo": true, "logprobs": 1, "suffix": "", "best_of": 1});
        put(&folder.join(name), with(more).to_string().as_bytes())?;
    }
    put(&folder.join("deep"), format!("{{\"messages\": {}1", "[".repeat(200)).as_bytes())?;
    put(&folder.join("not-utf8"), b"{\"prompt\": \"\xff\"}")
}

/// Messages of several programs and kernels, and a log in which one of them stands.
fn faults(folder: &Path) -> anyhow::Result<()> {
    let texts = [
        ("metal", "[METAL] Command buffer execution failed: Caused GPU Timeout Error (00000002:kIOGPU"),
        ("ggml", "ggml_metal_graph_compute: command buffer 0 failed with status 5\nerror: Innocent Victim"),
        ("cuda", "CUDA error: an illegal memory access was encountered\n  current device: 0"),
        ("vulkan", "terminate called\n  what():  vk::Queue::submit: ErrorDeviceLost"),
        ("macos", "panic(cpu 7): \"completeMemory() prepare count underflow\" @IOGPUMemory.cpp:550"),
        ("linux", "[1.0] Out of memory: Killed process 7 (llama) total-vm:8kB, anon-rss:7kB"),
        ("go", "panic: runtime error\n\ngoroutine 1 [running]:\n"),
        ("python", "Traceback (most recent call last):\nOSError: [Errno 116] Stale file handle"),
        ("shell", "\r\nKilled\r\n"),
    ];
    for (name, text) in texts {
        put(&folder.join(name), text.as_bytes())?;
    }
    let log = format!("{}\n{}\n", "a long line \u{e9} ".repeat(60), texts.map(|(_, text)| text).join("\n"));
    put(&folder.join("log"), log.as_bytes())
}

/// The made-up reports of the guard's tests, as each kind: the first byte says which.
fn reports(folder: &Path) -> anyhow::Result<()> {
    let reports = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/unfazed-guard/tests/reports");
    for entry in std::fs::read_dir(&reports).with_context(|| reports.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for kind in 0..3 {
            let content = std::fs::read(&path).with_context(|| path.display().to_string())?;
            put(&folder.join(format!("{name}-{kind}")), &[&[kind], content.as_slice()].concat())?;
        }
    }
    Ok(())
}

/// A model of a few KB: two layers, narrow.
fn small(family: Family) -> TinyModel {
    let mut model = TinyModel::new(family, BlockFormat::Q4_0);
    let config = &mut model.config;
    (config.layers, config.hidden, config.heads, config.kv_heads) = (2, 32, 1, 1);
    (config.head_dim, config.rope.dimensions, config.feed_forward) = (32, 32, 32);
    config.tied_embeddings = true;
    if let Some(experts) = &mut config.experts {
        (experts.count, experts.used, experts.feed_forward) = (2, 1, 32);
    }
    model
}

fn corpus(folder: &Path, target: &str) -> anyhow::Result<PathBuf> {
    let folder = folder.join(target);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| path.display().to_string())
}
