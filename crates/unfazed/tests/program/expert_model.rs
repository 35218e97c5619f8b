//! A model of many small experts, servers of it and requests to them.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use unfazed_formats::config::ExpertConfig;
use unfazed_formats::{Checkpoint, ModelConfig};
use unfazed_store::experts::trace::{Step, TraceReader};
use unfazed_testkit::fuse::FaultyMount;
use unfazed_testkit::shape::Preset;
use unfazed_testkit::{Mix, SyntheticModel, vocabulary};

use crate::group::Group;
use crate::streams::{Answer, Stream};
use crate::support::{Server, output, signal, text, wait};

/// Where requests go to: prompts as they are, so that no two have a beginning in common.
pub(crate) const PATH: &str = "/v1/completions";
/// Layers, all of which have experts.
pub(crate) const LAYERS: usize = 4;
/// Experts of a layer. Enough for prompts that leave many of them alone.
const EXPERTS: usize = 128;
/// Experts of all layers.
pub(crate) const ALL: usize = LAYERS * EXPERTS;
/// Chunks of prompts: several to each prompt.
const CHUNK: &str = "32";

/// The model, in a folder that is removed with it. What servers keep from run to run is in the same folder.
pub(crate) struct ExpertModel {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// An expert by layer and number.
pub(crate) type Expert = (u32, u32);

impl ExpertModel {
    /// 512 experts of 55 KB in four layers.
    pub(crate) fn new() -> ExpertModel {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("many-experts.gguf");
        let experts = ExpertConfig { count: EXPERTS, used: 2, feed_forward: 128, normalised: true };
        let tiny = Preset::Tiny.config(vocabulary::tiny_len());
        let model = SyntheticModel {
            name: "many experts".to_owned(),
            config: ModelConfig { layers: LAYERS, experts: Some(experts), ..tiny },
            mix: Mix::from_name("q4_0").unwrap(),
            tokenizer: vocabulary::tiny_metadata(),
            seed: 1,
            router_skew: None,
        };
        model.write(&path, 2, &|_, _| ()).unwrap();
        ExpertModel { folder, path }
    }

    /// The model's file.
    pub(crate) fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// A path in the model's folder.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The model on a file system of its own; `None` where none can be mounted.
    pub(crate) fn mount(&self) -> Option<FaultyMount> {
        let folder = self.beside("mount");
        std::fs::create_dir(&folder).unwrap();
        let mount = FaultyMount::new(&folder, &self.path).unwrap();
        if mount.is_none() {
            eprintln!("skipped: no FUSE file system can be mounted here");
        }
        mount
    }

    /// A server of the model, as it is at `path`.
    pub(crate) fn serve_from(&self, path: &Path, args: &[&str]) -> Server {
        let own = ["-m", path.to_str().unwrap(), "--prefill-chunk", CHUNK, "--context", "2048"];
        let cache = self.beside("cache");
        let variables = [("XDG_CACHE_HOME", cache.to_str().unwrap())];
        Server::start_with_log(&variables, &[&own, args].concat(), &self.beside("log"))
    }

    /// The same in a memory control group.
    pub(crate) fn serve_in(&self, group: &Group, args: &[&str]) -> Server {
        let own = ["serve", "--port", "0", "-m", self.path(), "--prefill-chunk", CHUNK, "--context", "2048"];
        let mut command = group.command(env!("CARGO_BIN_EXE_unfazed"));
        command.args(own).args(args).env("XDG_CACHE_HOME", self.beside("cache"));
        Server::start_command(&mut command, &self.beside("log"))
    }

    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        self.serve_from(&self.path, args)
    }

    /// What all servers so far have logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.beside("log")).unwrap()
    }

    /// The smallest cache that a plan accepts: slots of all layers.
    pub(crate) fn least_slots(&self) -> usize {
        let plan = ["plan", "--json", "-m", self.path(), "--expert-cache", "1"];
        let plan = output(&plan);
        assert_eq!(plan.status.code(), Some(0), "{}", text(&plan.stderr));
        let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
        let slots = plan["experts"]["slots"].as_u64().unwrap() as usize;
        assert_eq!(slots, 2 * LAYERS, "as many slots in each layer as a token uses");
        slots
    }

    /// Answers of a server that has all experts in memory.
    pub(crate) fn undisturbed(&self, requests: &[Value]) -> Vec<Answer> {
        answers(&self.serve(&["--stream-experts", "off"]), requests)
    }

    /// The experts that a request uses.
    pub(crate) fn used(&self, request: &Value) -> BTreeSet<Expert> {
        let trace = self.beside("used.trace");
        let mut server = self.serve(&["--stream-experts", "on", "--expert-trace", trace.to_str().unwrap()]);
        let answer = Stream::open(&server, PATH, request).finish();
        assert_eq!(answer.error, Value::Null);
        end(&mut server);
        // What it learnt of the experts must not help others.
        std::fs::remove_dir_all(self.beside("cache")).unwrap();
        let steps = steps(&trace).into_iter().flat_map(|step| step.layers);
        steps.flat_map(|(layer, experts)| experts.into_iter().map(move |expert| (layer, expert))).collect()
    }

    /// Where an expert's matrices are in the file: gate, up, down.
    pub(crate) fn extents(&self, (layer, expert): Expert) -> [Range<u64>; 3] {
        let checkpoint = Checkpoint::open(&self.path).unwrap();
        ["gate", "up", "down"].map(|part| {
            let stack = checkpoint.tensors[&format!("blk.{layer}.ffn_{part}_exps.weight")].extent;
            let len = stack.len / EXPERTS as u64;
            let start = stack.offset + u64::from(expert) * len;
            start..start + len
        })
    }
}

/// Ends a server by a word, so that it saves what it keeps.
pub(crate) fn end(server: &mut Server) {
    signal(&server.child, Signal::TERM);
    assert_eq!(wait(&mut server.child).code(), Some(0));
}

/// The steps of a trace.
pub(crate) fn steps(trace: &Path) -> Vec<Step> {
    let mut reader = TraceReader::new("the trace", File::open(trace).unwrap()).unwrap();
    let steps = reader.by_ref().map(|step| step.unwrap()).collect();
    assert!(!reader.is_cut(), "the trace ends in the middle of a block");
    steps
}

/// A request with a prompt of about so many tokens, of words in an order of its own. Answers are as long as asked for.
pub(crate) fn request(number: usize, prompt_tokens: usize, max_tokens: usize) -> Value {
    const WORDS: [&str; 12] =
        ["rain", "a", "small", "cat", "runs", "over", "the", "old", "green", "hill", "and", "sleeps"];
    let mut prompt = format!("{number}");
    for at in 1.. {
        if prompt.len() >= prompt_tokens {
            break;
        }
        prompt += " ";
        prompt += WORDS[(at * at * (number + 3) + at) % WORDS.len()];
    }
    json!({
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": true,
        "logprobs": 3,
        "temperature": 0,
    })
}

/// The same, sampled.
pub(crate) fn sampled(number: usize, prompt_tokens: usize, max_tokens: usize) -> Value {
    let mut request = request(number, prompt_tokens, max_tokens);
    request["temperature"] = json!(0.9);
    request["seed"] = json!(number);
    request
}

/// Answers to requests that are all made at once.
pub(crate) fn answers(server: &Server, requests: &[Value]) -> Vec<Answer> {
    let streams: Vec<_> = requests.iter().map(|request| Stream::open(server, PATH, request)).collect();
    let answers: Vec<_> = streams.into_iter().map(Stream::finish).collect();
    for (answer, request) in answers.iter().zip(requests) {
        assert_eq!(answer.error, Value::Null, "{request}");
        assert_eq!(answer.usage["completion_tokens"], request["max_tokens"], "{request}");
    }
    answers
}

/// Asserts that each answer is the one that was expected, to the last bit of its log probabilities.
pub(crate) fn assert_same(answers: &[Answer], expected: &[Answer], what: &str) {
    assert_eq!(answers.len(), expected.len());
    for (number, (answer, expected)) in answers.iter().zip(expected).enumerate() {
        answer.assert_equals(expected, &format!("{what}, request {number}"));
    }
}

impl Drop for ExpertModel {
    /// What servers logged is of use where a test has failed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.beside("log")).unwrap_or_default());
        }
    }
}
