//! The messages. Field order is the encoding: both processes are one build, checked by [`ToFront::Hello`].

use serde::{Deserialize, Serialize};
use unfazed_fault::{Action, Class};

use crate::placement::{GpuInUse, Gpus, Placement};

/// A request's number, given by the front, never used twice by one front. Each choice of an `n > 1` request is a
/// request of its own to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// Front to engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToEngine {
    /// The first message. Beside it travel descriptors: the model's files, then the memory for weights, then that for
    /// KV pages.
    Start(Box<Start>),
    /// A request to compute.
    Submit(Box<Submit>),
    /// Forget a request: its place is free at the next step. Nothing more is said about it.
    Cancel(RequestId),
    /// Memory runs out: return so many bytes to the system, if as many can be spared. Answered by [`ToFront::GaveUp`].
    GiveUp {
        /// How many.
        bytes: u64,
    },
    /// There is memory again: use so many more slots for experts. Answered by [`ToFront::OpenedUp`].
    OpenUp {
        /// How many.
        slots: usize,
    },
    /// End once running requests have ended or were cancelled.
    Shutdown,
}

/// What an engine needs to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The model's headers, as `unfazed-formats` encodes them, with the base names of its files in the order of the
    /// descriptors.
    pub headers: Vec<u8>,
    /// Longest sequence (prompt and answer), in tokens.
    pub context: usize,
    /// Sequences computed side by side.
    pub parallel: usize,
    /// KV pages.
    pub pages: usize,
    /// Positions in a KV page.
    pub page_tokens: usize,
    /// What keys are kept as, by name.
    pub cache_type_k: String,
    /// What values are kept as, by name.
    pub cache_type_v: String,
    /// Most rows in one step.
    pub chunk: usize,
    /// Compute threads.
    pub threads: Threads,
    /// Instruction set by name, or the best one.
    pub isa: Option<String>,
    /// Bytes of the memory for packed weights: [`crate::memory::WEIGHTS_OFFSET`] and the weights.
    pub weight_memory: u64,
    /// Bytes of the memory for KV pages: those of a [`crate::memory::KvSegment`].
    pub kv_memory: u64,
    /// How experts are streamed; `None` if all are among the weights.
    pub experts: Option<StreamedExperts>,
    /// A file that is told which experts each step used is among the descriptors.
    pub expert_trace: bool,
    /// Which engine of its front this is, from 1.
    pub engine: u64,
    /// Faults that earlier engines have not overcome: each class, and how often it came.
    pub troubles: Vec<(Class, u32)>,
    /// The device is not to be used: the processor computes alone.
    pub cpu_alone: bool,
    /// Which device computes which layer.
    pub placement: Placement,
    /// The GPUs that it names.
    pub gpus: Gpus,
    /// Faults to act out, in builds that can.
    pub fault_plan: Option<String>,
}

/// Experts that are read while steps are computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamedExperts {
    /// Slots of all layers together.
    pub slots: usize,
    /// Slots that may be used at first, if those are fewer because memory ran out before.
    pub open: usize,
    /// Slots that stay open however short memory is: what a token needs.
    pub least: usize,
    /// Bytes of a slot, those of its record included; those of an expert of any layer at least.
    pub slot_bytes: usize,
    /// Slots of the ring through which experts pass that get no slot.
    pub ring: usize,
    /// Which expert leaves when another one comes, by name.
    pub policy: String,
    /// Bytes of the memory for slots: those of a [`crate::memory::ExpertSegment`].
    pub memory: u64,
}

/// Compute threads and where they run. Nothing of it changes a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threads {
    /// Threads of a step of one row, bound by memory.
    pub decode: usize,
    /// Threads of a step of more rows.
    pub batch: usize,
    /// Numbers of the processors that they may run on; empty: all that the process may use.
    pub processors: Vec<usize>,
    /// Each thread stays on a processor of its own: thread `i` on `processors[i]`, from the start again where there are
    /// more threads.
    pub pin: bool,
}

impl Threads {
    /// As many threads as the largest step has.
    pub fn most(&self) -> usize {
        self.decode.max(self.batch)
    }
}

impl From<usize> for Threads {
    /// So many in every step, wherever the system puts them.
    fn from(threads: usize) -> Threads {
        Threads { decode: threads, batch: threads, processors: Vec::new(), pin: false }
    }
}

/// Most tokens in which a repetition is looked for: each token is compared with a third as many.
pub const MOST_REPEAT_STOP_TOKENS: usize = 4096;

/// A request: one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    /// Its number.
    pub request: RequestId,
    /// Prompt, at least one token, all below the vocabulary.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; 0 computes the prompt alone.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the answer (not part of it); empty with `ignore_eos`.
    pub stop_tokens: Vec<u32>,
    /// The answer ends when its last so many tokens are one pattern again and again; 0 is never, and no more than
    /// [`MOST_REPEAT_STOP_TOKENS`] count.
    pub repeat_stop_tokens: usize,
    /// For each generated token its log probability and those of this many most likely tokens.
    pub logprobs: Option<u32>,
    /// The same for each position of the prompt.
    pub prompt_logprobs: Option<u32>,
    /// What an earlier engine got done, if one had this request.
    pub resumed: Option<Progress>,
}

/// How far a request had come when its engine died. The next one goes on from here and says nothing of it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Tokens of the answer that were verified.
    pub tokens: Vec<u32>,
    /// Prompt tokens whose log probabilities were told.
    pub prompt_logprobs: usize,
}

/// How a token is chosen from logits. Order: bias, penalties, temperature, top-k, top-p, min-p, draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest most likely tokens whose probabilities reach this.
    pub top_p: f32,
    /// Drop tokens less likely than this times the most likely.
    pub min_p: f32,
    /// Repetition, presence and frequency.
    pub penalties: Penalties,
    /// Added to a token's logit.
    pub logit_bias: Vec<(u32, f32)>,
    /// Draws are a function of (seed, choice, position).
    pub seed: u64,
    /// Index of the choice within its request.
    pub choice: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            penalties: Penalties::default(),
            logit_bias: Vec::new(),
            seed: 0,
            choice: 0,
        }
    }
}

/// Penalties on tokens that occurred. Presence and frequency count generated tokens (OpenAI's definition), repetition
/// counts the prompt as well (CTRL's: logits divided by it if positive, else multiplied).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Penalties {
    /// 1 is none.
    pub repetition: f32,
    /// Subtracted once from a token that occurred.
    pub presence: f32,
    /// Subtracted for each occurrence.
    pub frequency: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }
}

/// Engine to front.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToFront {
    /// The first message: which build this is.
    Hello {
        /// Must equal the front's own.
        build_id: String,
    },
    /// Weights loaded so far.
    Loading {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A step is being computed and got further since the last such message; sent a few times a second at most.
    Working,
    /// Something outside the engine is waited for; sent a few times a second while it lasts, by a thread that does not
    /// wait itself.
    Waiting {
        /// What for, for people.
        what: String,
        /// Since when, in milliseconds.
        ms: u64,
    },
    /// The engine computes.
    Ready(ReadyInfo),
    /// The model cannot be used; the engine ends.
    LoadFailed(LoadFailure),
    /// A request has its place and takes part in the steps that follow. Sent before the first of them.
    Admitted {
        /// Which.
        request: RequestId,
        /// Positions whose keys and values an earlier engine left and that were found good.
        kept: usize,
        /// Positions to be computed before its next token.
        missing: usize,
    },
    /// Prompt positions computed so far.
    Prefill {
        /// Whose.
        request: RequestId,
        /// Positions done.
        done: usize,
        /// Positions in all.
        total: usize,
    },
    /// Log probabilities of prompt tokens, in order; the first token of a prompt has none and is left out.
    PromptLogprobs {
        /// Whose.
        request: RequestId,
        /// The next of them; may come in several messages.
        tokens: Vec<TokenLogprobs>,
    },
    /// Verified tokens of one step, at most one for each request.
    Tokens(Vec<TokenEvent>),
    /// A request ended well. Its last token came before.
    Finished {
        /// Which.
        request: RequestId,
        /// Why.
        reason: FinishReason,
        /// What it took.
        timings: Timings,
    },
    /// The step waited for storage. Sent before what came of it, to those that are being computed.
    StorageWait {
        /// How long.
        ms: f64,
    },
    /// Something went wrong and costs nobody an answer.
    Fault(FaultReport),
    /// Memory was returned to the system.
    GaveUp(GivenUp),
    /// Slots are used again.
    OpenedUp {
        /// How many that were closed.
        slots: usize,
        /// How many are open now.
        open_slots: usize,
    },
    /// A request failed alone; the engine goes on.
    Failed {
        /// Which.
        request: RequestId,
        /// Why.
        failure: Failure,
    },
}

/// What an engine returned to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    /// Bytes of KV pages.
    pub page_bytes: u64,
    /// Slots for experts that are closed now and were not before.
    pub slots: usize,
    /// Bytes of slots.
    pub slot_bytes: u64,
    /// Slots that are still open.
    pub open_slots: usize,
}

impl GivenUp {
    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.page_bytes.saturating_add(self.slot_bytes)
    }
}

/// A fault of what an engine computes on, and what was done about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// What happened.
    pub class: Class,
    /// What told so, for people.
    pub evidence: String,
    /// What was done, or will be by the front.
    pub action: Action,
    /// How often this class came in a row, from 1.
    pub attempt: u32,
    /// Time lost, in milliseconds.
    pub cost_ms: f64,
    /// Positions of all sequences that have to be computed again.
    pub positions: usize,
}

/// What a ready engine is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadyInfo {
    /// Instruction set in use.
    pub isa: String,
    /// Compute threads.
    pub threads: usize,
    /// Bytes of packed weights.
    pub weight_bytes: u64,
    /// Bytes of KV pages.
    pub kv_bytes: u64,
    /// Time from start to ready.
    pub load_ms: f64,
    /// Bytes of weights that were read from the model's files.
    pub read_bytes: u64,
    /// Bytes of packed weights that an earlier engine left in their memory.
    pub kept_bytes: u64,
    /// Rights that it has given up.
    pub sandbox: SandboxInfo,
    /// Which device computes which layer, as it came about.
    pub placement: Placement,
    /// The GPUs that it computes on.
    pub gpus: Vec<GpuInUse>,
}

/// Which of its rights an engine has given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// System calls that reach out of the process, by seccomp.
    pub seccomp: bool,
    /// All files but those that it needs, by this version of Landlock's interface.
    pub landlock: Option<u32>,
    /// It reads through an io_uring ring that can do nothing else; without one it reads by threads.
    pub ring: bool,
    /// What is not in force, with the reason: a line each.
    pub missing: Vec<String>,
}

/// Why a model could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadFailure {
    /// Whose fault it is.
    pub fault: LoadFault,
    /// One line for people, naming file, field and value.
    pub message: String,
}

/// Whose fault a failed load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadFault {
    /// The model's, or a setting's: it would fail the next time as well.
    Model,
    /// The machine's: a read that failed, memory or threads that could not be had. It may succeed the next time.
    Machine,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenEvent {
    /// Whose.
    pub request: RequestId,
    /// Its id.
    pub token: u32,
    /// If asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Log probabilities (natural, of the model's own distribution before penalties and temperature) at one position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The token that stands at the position.
    pub token: u32,
    /// Its log probability.
    pub logprob: f32,
    /// The most likely tokens, best first, as many as asked for.
    pub top: Vec<(u32, f32)>,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// A stop token.
    Stop,
    /// `max_tokens` reached, or the context is full.
    Length,
    /// The last [`Submit::repeat_stop_tokens`] tokens repeat a pattern.
    Repetition,
}

/// Times and counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Waited for a place.
    pub queue_ms: f64,
    /// Prompt tokens found computed already.
    pub cached_tokens: usize,
    /// Prompt tokens computed.
    pub prompt_tokens: usize,
    /// Time for the prompt.
    pub prompt_ms: f64,
    /// Tokens generated.
    pub predicted_tokens: usize,
    /// Time for them.
    pub predicted_ms: f64,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Whose fault, by name.
    pub kind: FailureKind,
    /// One line for people.
    pub message: String,
}

/// Kinds of failure; the names go to clients as error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The logits are not finite (`nonfinite_logits`): the model's fault.
    NonfiniteLogits,
    /// The request could not have been admitted (`invalid_request`): the front should have refused it.
    InvalidRequest,
    /// Weights that the request needs cannot be read (`storage_error`).
    Storage,
    /// Anything else (`engine_error`).
    Engine,
}

impl FailureKind {
    /// The error code that clients see.
    pub const fn code(self) -> &'static str {
        match self {
            FailureKind::NonfiniteLogits => "nonfinite_logits",
            FailureKind::InvalidRequest => "invalid_request",
            FailureKind::Storage => "storage_error",
            FailureKind::Engine => "engine_error",
        }
    }
}
